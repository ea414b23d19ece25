//! The format of envoyproxy/ratelimit.

use sluicegate_rules::{Descriptor, Metadata, Treatment, Unit};

use super::{charges, descriptors, rules};

const TREE: &str = "
domain: web
descriptors:
  - key: database
    value: users
    rate_limit: {unit: second, requests_per_unit: 500}
  - key: database
    value: default
    rate_limit: {unit: MINUTE, requests_per_unit: 600}
  - key: database
    descriptors:
      - key: user
        rate_limit: {unit: hour, requests_per_unit: 3}
      - key: user
        value: root
  - key: path
    value: /files*
    share_threshold: true
    rate_limit: {unit: day, requests_per_unit: 7}
  - key: path
    value: /f*
    value_to_metric: true
    rate_limit: {unit: week, requests_per_unit: 8}
  - key: path
    rate_limit: {unit: month, requests_per_unit: 9}
  - key: plan
    value: blocked
    rate_limit: {unit: year, requests_per_unit: 0}
  - key: plan
    value: staff
    rate_limit: {unlimited: true}
  - key: plan
    detailed_metric: true
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: ours
    policy: gcra:5/1s
    on_error: deny
    rate_limit: {unit: second, requests_per_unit: 5, name: ours}
";

/// The rules that match one descriptor.
fn one(entries: &[(&str, &str)]) -> String {
    descriptors(&rules(TREE), "web", &[entries])[0].join(" + ")
}

#[test]
fn descriptors_exact_value_is_before_wildcards_and_key() {
    let window = |text: &str| format!("fixed-window:{text}:align=clock:count=all");
    for (entries, expected) in [
        (
            &[("database", "users")][..],
            format!("web.database_users envoy:web|database=users {}", window("500/1s")),
        ),
        (
            &[("database", "default")],
            format!("web.database_default envoy:web|database=default {}", window("600/1m")),
        ),
        (&[("database", "other")], String::new()),
        (
            &[("database", "other"), ("user", "bob")],
            format!("web.database.user envoy:web|database=other|user=bob {}", window("3/1h")),
        ),
        // A descriptor without a limit limits nothing.
        (&[("database", "other"), ("user", "root")], String::new()),
        // The exact value matches and has nothing below it: the key alone is not tried.
        (&[("database", "users"), ("user", "bob")], String::new()),
        (&[("database", "other"), ("user", "bob"), ("more", "1")], String::new()),
        (
            &[("path", "/files/a")],
            format!("web.path_/files* envoy:web|path=%/files* {}", window("7/1d")),
        ),
        (&[("path", "/fab")], format!("web.path_/f* envoy:web|path=/fab {}", window("8/1w"))),
        (&[("path", "/x")], format!("web.path envoy:web|path=/x {}", window("9/30d"))),
        (&[("plan", "blocked")], "web.plan_blocked Block".to_owned()),
        (&[("plan", "staff")], "web.plan_staff Unlimited".to_owned()),
        (&[("plan", "free")], format!("shadow web.plan envoy:web|plan=free {}", window("2/365d"))),
        (&[("ours", "1")], "web.ours envoy:web|ours=1 gcra:5/1s".to_owned()),
        (&[("unknown", "1")], String::new()),
        (&[], String::new()),
    ] {
        assert_eq!(one(entries), expected, "{entries:?}");
    }
    assert!(descriptors(&rules(TREE), "other", &[&[("path", "/x")]])[0].is_empty());
}

#[test]
fn descriptors_different_entries_have_different_keys() {
    let tree = "
domain: d
descriptors:
  - {key: a_b, descriptors: [{key: c, rate_limit: {unit: second, requests_per_unit: 1}}]}
  - {key: a, descriptors: [{key: b_c, rate_limit: {unit: second, requests_per_unit: 1}}]}
";
    let found = descriptors(
        &rules(tree),
        "d",
        &[
            &[("a_b", "x"), ("c", "y")],
            &[("a", "b_x"), ("b_c", "y")],
            &[("a", "x|b_c=y"), ("b_c", "")],
        ],
    );
    let keys: Vec<_> = found.iter().map(|it| it[0].split(' ').nth(1).unwrap()).collect();
    assert_eq!(keys, ["envoy:d|a_b=x|c=y", "envoy:d|a=b_x|b_c=y", "envoy:d|a=x%7Cb_c%3Dy|b_c="]);
}

#[test]
fn metric_contains_values_if_the_tree_sets_it() {
    let rules = rules(TREE);
    let metric = |entries: &[(&str, &str)]| {
        let found = rules.descriptors("web", &[Descriptor { entries, limit: None }]);
        found[0][0].metric.to_string()
    };
    assert_eq!(metric(&[("path", "/fab")]), "web.path_/fab");
    assert_eq!(metric(&[("path", "/files/a")]), "web.path_/files*");
    assert_eq!(metric(&[("path", "/x")]), "web.path");
    assert_eq!(metric(&[("plan", "free")]), "web.plan_free");
    assert_eq!(metric(&[("database", "x"), ("user", "bob")]), "web.database.user");
}

/// Names with values of requests are unknown in advance, as is the name for limits that come with a request.
#[test]
fn metric_names_exclude_names_with_values_of_requests() {
    let both = format!("{TREE}rules: [{{name: ours, match: {{path: /}}, policy: 'gcra:1/1s'}}]\n");
    let rules = rules(&both);
    let names: Vec<_> = rules.metric_names().collect();
    assert_eq!(
        names,
        [
            "ours",
            "web.database_users",
            "web.database_default",
            "web.database.user",
            "web.path_/files*",
            "web.path",
            "web.plan_blocked",
            "web.plan_staff",
            "web.ours",
        ]
    );
}

#[test]
fn descriptors_limit_of_the_request_replaces_the_rule() {
    let rules = rules(TREE);
    let entries = [("plan", "free")];
    let descriptor = |limit| Descriptor { entries: &entries, limit: Some(limit) };
    let found =
        rules.descriptors("web", &[descriptor((3, Unit::Hour)), descriptor((0, Unit::Day))]);
    assert_eq!(
        charges(&found[0]),
        ["web envoy:web|plan=free|3/hour fixed-window:3/1h:align=clock:count=all"]
    );
    assert_eq!(
        (found[0][0].wire.unwrap().rate, &*found[0][0].metric),
        (Some((3, Unit::Hour)), "web.plan_free")
    );
    assert_eq!(found[1][0].treatment, Treatment::Block);
}

#[test]
fn descriptors_limit_replaces_others_in_the_request() {
    let rules = rules(
        "
domain: d
descriptors:
  - {key: a, rate_limit: {unit: second, requests_per_unit: 1, name: small}}
  - {key: b, rate_limit: {unit: second, requests_per_unit: 9, name: big, replaces: [{name: small}]}}
",
    );
    let names = |all: &[&[(&str, &str)]]| {
        let found = descriptors(&rules, "d", all);
        found.iter().map(|it| it.len()).collect::<Vec<_>>()
    };
    assert_eq!(names(&[&[("a", "1")]]), [1]);
    assert_eq!(names(&[&[("a", "1")], &[("b", "1")]]), [0, 1]);
}

#[test]
fn metadata_is_kept_as_written() {
    let rules = rules(
        "
domain: d
descriptors:
  - key: a
    quota_mode: true
    metadata: {tier: gold, weight: 1.5, on: true, list: [1, null], quoted: '1'}
    rate_limit: {unit: second, requests_per_unit: 1}
",
    );
    let entries = [("a", "1")];
    let found = rules.descriptors("d", &[Descriptor { entries: &entries, limit: None }]);
    let envoy = found[0][0].rule.envoy().unwrap();
    assert!(envoy.quota_mode);
    let Some(Metadata::Map(entries)) = &envoy.metadata else { panic!("{envoy:?}") };
    let values: Vec<_> = entries.iter().map(|(_, value)| value.clone()).collect();
    assert_eq!(
        values,
        [
            Metadata::Text("gold".into()),
            Metadata::Number("1.5".into()),
            Metadata::Truth(true),
            Metadata::List(vec![Metadata::Number("1".into()), Metadata::Null]),
            Metadata::Text("1".into()),
        ]
    );
}

#[test]
fn scalars_are_strings_as_written() {
    let rules = rules(
        "
domain: d
descriptors:
  - {key: version, value: 1.10, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: version, value: 010, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: flag, value: yes, rate_limit: {unit: second, requests_per_unit: 1}}
",
    );
    let all: [&[(&str, &str)]; 3] =
        [&[("version", "1.10")], &[("version", "010")], &[("flag", "yes")]];
    assert!(descriptors(&rules, "d", &all).iter().all(|it| it.len() == 1));
    assert!(descriptors(&rules, "d", &[&[("version", "1.1")]])[0].is_empty());
}

#[test]
fn descriptors_scalars_of_yaml_1_1_are_read() {
    for (shadow, requests, expected) in
        [("yes", "1_000", 1000), ("on", "0x10", 16), ("Y", "+5", 5), ("TRUE", "010", 8)]
    {
        let text = format!(
            "domain: d\ndescriptors:\n- key: a\n  shadow_mode: {shadow}\n  rate_limit: {{unit: day, requests_per_unit: {requests}}}\n"
        );
        let rules = rules(&text);
        let found = rules.descriptors("d", &[Descriptor { entries: &[("a", "x")], limit: None }]);
        let found = &found[0][0];
        assert!(found.shadow, "{shadow}");
        assert_eq!(found.wire.unwrap().rate, Some((expected, Unit::Day)), "{requests}");
    }
    // The values of descriptors are strings.
    let text = "domain: d\ndescriptors:\n- {key: a, value: yes, rate_limit: {unit: day, requests_per_unit: 1}}\n";
    assert_eq!(descriptors(&rules(text), "d", &[&[("a", "yes")]])[0].len(), 1);
    // Rules in our own format keep to YAML 1.2.
    let text = "rules: [{name: a, policy: 'gcra:1/1s', shadow: yes}]";
    assert!(sluicegate_rules::RuleSet::parse(text, sluicegate_rules::Format::Yaml).is_err());
}

#[test]
fn descriptors_star_in_a_key_beside_a_value_matches_both() {
    let tree = |key: &str, value: &str| {
        rules(&format!(
            "domain: d\ndescriptors:\n- {{key: '{key}', value: '{value}', rate_limit: {{unit: day, requests_per_unit: 3}}}}\n"
        ))
    };
    for (key, value, entry, matches) in [
        ("a*", "b*", ("afoo", "b1"), true),
        ("a*", "b*", ("a", "b"), true),
        ("a*", "b*", ("afoo", "c1"), false),
        ("a*", "b*", ("bfoo", "b1"), false),
        ("a*", "b", ("afoo", "b"), true),
        ("a*", "b", ("afoo", "b1"), false),
        ("a", "b*", ("a", "b1"), true),
        ("a", "b*", ("afoo", "b1"), false),
    ] {
        let found = &descriptors(&tree(key, value), "d", &[&[entry]])[0];
        assert_eq!(!found.is_empty(), matches, "{key} {value} {entry:?}");
    }
    // Each pair of a key and a value has its own count.
    let found = |entry| descriptors(&tree("a*", "b*"), "d", &[&[entry]])[0].join(" ");
    assert_ne!(found(("afoo", "b1")), found(("abar", "b1")));
}
