//! All errors of rules files at once, each with its file.

use sluicegate_rules::{Format, RuleSet, RulesSource};

fn check(sources: &[(&str, &str)]) -> Vec<String> {
    let sources: Vec<_> = sources
        .iter()
        .map(|&(name, text)| RulesSource { name, text, format: Format::Yaml })
        .collect();
    let errors = RuleSet::check(&sources).map(|_| ()).unwrap_err();
    errors.iter().map(|(at, error)| format!("{} {error}", sources[*at].name)).collect()
}

#[test]
fn check_reports_every_invalid_rule_policy_descriptor_and_test() {
    let text = "
policies: {ok: 'gcra:1/1s', bad: 'gcra:1/60'}
rules:
  - {name: a, policy: bad}
  - {name: b, polcy: ok}
  - {name: c, policy: okk}
  - {name: d, match: {method: GTE}, policy: ok}
domain: d
descriptors:
  - {key: x, rate_limit: {unit: minutes}}
  - {key: y, descriptors: [{key: z, rate_limit: {}}]}
tests:
  - {name: t}
what: 1
";
    let errors = check(&[("a.yaml", text), ("b.yaml", "rules: ["), ("c.yaml", "")]);
    assert_eq!(
        errors,
        [
            "a.yaml line 2, column 42: invalid period `60`: expected a duration such as `60s`",
            "a.yaml line 5, column 15: unknown field `polcy` in a rule: did you mean `policy`?",
            "a.yaml line 6, column 23: unknown policy `okk`: did you mean `ok`?",
            "a.yaml line 7, column 31: unknown method `GTE`: did you mean `GET`? Write `{is: GTE}` for \
             another",
            "a.yaml line 10, column 33: unknown unit `minutes`: did you mean `minute`?",
            "a.yaml line 11, column 49: missing field `unit` in rate_limit: expected `second`, `minute`, \
             `hour`, `day`, `week`, `month` or `year`",
            "a.yaml line 13, column 5: missing request of a test: expected `request`, or `domain` and \
             `descriptors`",
            "a.yaml line 14, column 1: unknown field `what` in a rules file: expected `policies`, `rules`, \
             `domain`, `descriptors`, `tests` or `trusted_headers`",
            "b.yaml line 1, column 8: invalid YAML: unclosed bracket '['",
            "c.yaml line 1, column 1: empty rules file: expected rules; use `rules: []` for none",
        ]
    );
}

#[test]
fn check_named_policy_with_concurrency_is_accepted_where_no_rule_uses_it() {
    let text = "policies: {busy: 'concurrency:20/30s'}\nrules: [{name: a, policy: 'gcra:1/1s'}]";
    let rules = RuleSet::parse(text, Format::Yaml).unwrap();
    assert!(rules.policy("busy").is_some());
    // An invalid policy has one error, whatever the first policy.
    let text = "policies: {busy: 'concurrency:20/30s', b: x}\nrules: [{name: a, policy: b}]";
    let errors = check(&[("a.yaml", text)]);
    assert_eq!(errors.len(), 1, "{errors:?}");
}

#[test]
fn check_names_the_file_of_the_first_of_two_rules_or_policies() {
    let errors = check(&[
        ("a.yaml", "policies: {p: 'gcra:1/1s'}\nrules:\n- {name: login, policy: p}"),
        ("b.yaml", "policies: {p: 'gcra:1/1s'}\nrules: [{name: login, block: true}]"),
    ]);
    assert_eq!(
        errors,
        [
            "b.yaml line 1, column 12: duplicate policy `p`: first defined in line 1 of a.yaml",
            "b.yaml line 2, column 9: duplicate rule `login`: first defined in line 3 of a.yaml",
        ]
    );
}

#[test]
fn check_bounds_the_number_of_errors() {
    let text = format!("rules:\n{}", "- {}\n".repeat(10_000));
    assert_eq!(check(&[("a.yaml", &text)]).len(), 100);
}

#[test]
fn check_config_map_is_the_files_in_it_with_their_lines() {
    let manifest = |policy: &str| {
        format!(
            "apiVersion: v1
kind: ConfigMap
metadata: {{name: limits}}
data:
  README: not rules
  login.yaml: |
    # logins
    rules:
      - name: login
        key: client
        policy: {policy}
  plans.toml: |-
    [policies]
    free = 'gcra:10/1s'
    gold = 'gcra:100/60'
  quoted.yaml: 'rules: [{{name: q, polcy: free}}]'
"
        )
    };
    let errors = check(&[("map.yaml", &manifest("gcra:1/60"))]);
    assert_eq!(
        errors,
        [
            "map.yaml line 11, column 24: invalid period `60`: expected a duration such as `60s`",
            "map.yaml line 15, column 22: invalid period `60`: expected a duration such as `60s`",
            "map.yaml line 16, column 3: unknown field `polcy` in a rule: did you mean `policy`?",
        ]
    );
    let valid = manifest("free").replace("100/60", "100/60s").replace("polcy", "policy");
    let rules = RuleSet::parse(&valid, Format::Yaml).unwrap();
    assert_eq!(rules.policy_names(), ["free", "gold"]);
    let lines: Vec<_> = rules.rules().iter().map(|rule| (rule.name(), rule.line)).collect();
    assert_eq!(lines, [("login", 9), ("q", 16)]);
}
