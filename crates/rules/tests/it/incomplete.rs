//! Half-written rules files: a field whose value is missing is an error, so that a reload keeps the previous rules.

use sluicegate_rules::{Format, RuleSet};

fn error(text: &str) -> String {
    RuleSet::parse(text, Format::Yaml).map_or_else(|it| it.to_string(), |_| "valid".to_owned())
}

#[test]
fn field_without_value_names_it_and_what_is_expected() {
    const DEFAULT: &str = "expected one; remove the field to use its default";
    const KEY: &str =
        "expected an attribute or a list of them; remove the field to count all requests together";
    let mut wrong = Vec::new();
    for (text, at, field, expected) in [
        ("rules:", "1:1", "rules", "expected a list; use `rules: []` for no rules"),
        ("rules: ~", "1:1", "rules", "expected a list; use `rules: []` for no rules"),
        ("policies:", "1:1", "policies", "expected a map; use `policies: {}` for no policies"),
        ("rules: []\ntests:", "2:1", "tests", "expected a list; use `tests: []` for no tests"),
        (
            "domain:",
            "1:1",
            "domain",
            "expected the domain that Envoy sends, such as `domain: edge`",
        ),
        (
            "domain: d\ndescriptors:",
            "2:1",
            "descriptors",
            "expected a list; use `descriptors: []` for no descriptors",
        ),
        ("rules: []\ntrusted_headers:", "2:1", "trusted_headers", DEFAULT),
        (
            "rules:\n- name: a\n  policy: gcra:1/1s\n  match:",
            "4:3",
            "match",
            "expected attributes; remove the field to match all requests",
        ),
        ("rules:\n- name: a\n  policy: gcra:1/1s\n  key:", "4:3", "key", KEY),
        (
            "rules:\n- name: a\n  levels:\n  - name: l\n    policy: gcra:1/1s\n    key:",
            "6:5",
            "key",
            KEY,
        ),
        (
            "rules:\n- name: a\n  block: true\n  policy:",
            "4:3",
            "policy",
            "expected a policy, such as `gcra:30/1m`",
        ),
        ("rules:\n- name: a\n  levels:", "3:3", "levels", "expected a list of levels"),
        ("rules:\n- name: a\n  policy: gcra:1/1s\n  cost:", "4:3", "cost", DEFAULT),
        ("rules:\n- name: a\n  policy: gcra:1/1s\n  overrides:", "4:3", "overrides", DEFAULT),
        ("rules: []\ntests:\n- name: t\n  request: {path: /}\n  steps:", "5:3", "steps", DEFAULT),
    ] {
        let (line, column) = at.split_once(':').unwrap();
        let expected =
            format!("line {line}, column {column}: missing value of `{field}`: {expected}");
        let actual = error(text);
        if actual != expected {
            wrong.push(format!("{text}\n  {actual}\n  {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn item_or_attributes_without_value_is_an_error() {
    let rule = "rules:\n- {name: a, policy: 'gcra:1/1s', match: ";
    for (text, expected) in [
        ("rules:\n-", "line 2, column 2: invalid rule: expected a map, found nothing"),
        (
            &format!("{rule}{{header: }}}}"),
            "line 2, column 48: invalid header: expected a map, found nothing",
        ),
        (
            &format!("{rule}{{header.x: }}}}"),
            "line 2, column 50: invalid value: expected a string, found nothing",
        ),
        (
            "domain: d\ntests:\n- name: t\n  domain: d\n  descriptors:\n  -",
            "line 6, column 4: invalid descriptor: expected a map, found nothing",
        ),
    ] {
        assert_eq!(error(text), expected, "{text}");
    }
}

#[test]
fn config_map_empty_file_is_an_error() {
    let empty = "empty rules file: expected rules; use `rules: []` for none";
    let manifest = |data: &str| format!("apiVersion: v1\nkind: ConfigMap\ndata:{data}");
    for data in ["\n  a.yaml: ''", "\n  a.yaml: '# rules'", "\n  a.toml: ''", "\n  a.yaml: '{}'"] {
        assert_eq!(error(&manifest(data)), format!("line 4, column 3: {empty}"), "{data}");
    }
    let no_file =
        "invalid ConfigMap: expected a file under `data` that ends in .yaml, .yml or .toml";
    assert_eq!(error(&manifest("")), format!("line 1, column 1: {no_file}"));
}

/// Fields in the format of envoyproxy/ratelimit may have no value, as they may there.
#[test]
fn envoy_descriptor_field_without_value_is_the_same_as_none() {
    let text = "
domain: d
descriptors:
  - key: a
    value:
    rate_limit:
      unit: second
      requests_per_unit: 1
      name:
      replaces:
    descriptors:
  - key: b
    rate_limit:
    shadow_mode: ~
    descriptors:
      - {key: c, rate_limit: {unit: hour, requests_per_unit: 5, unlimited: null}}
";
    assert_eq!(error(text), "valid");
    assert_eq!(error("domain: d"), "valid");
}

/// A header of a request in a test may be empty.
#[test]
fn test_header_without_value_is_empty() {
    let text = "
rules: [{name: a, policy: 'gcra:1/1s', match: {header.x: {present: true}}}]
tests: [{name: t, request: {headers: {x: }}, rules: a}]
";
    let rules = RuleSet::parse(text, Format::Yaml).unwrap();
    assert_eq!(rules.run_example(&rules.examples()[0]), [""; 0]);
}
