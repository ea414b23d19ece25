//! Rules with `quota`: which buckets they apply to, and what they cannot have.

use sluicegate_rules::{Descriptor, Format, Request, RuleSet};

fn rules(text: &str) -> Result<RuleSet, String> {
    RuleSet::parse(text, Format::Yaml).map_err(|error| error.to_string())
}

#[test]
fn quota_applies_to_buckets_and_to_nothing_else() {
    let text = "
rules:
  - {name: limit, match: {domain: shop}, policy: 'gcra:5/1s'}
  - {name: each, match: {domain: shop}, key: descriptor.user, policy: 'gcra:1000/1s', quota: {proxies: 4},
     overrides: [{match: {descriptor.user: gold}, policy: 'gcra:9000/1s'}]}
  - {name: rest, match: {domain: shop}, policy: 'gcra:2000/1s', quota: true}
  - {name: off, match: {domain: other}, policy: 'gcra:2000/1s', quota: false}
";
    let rules = rules(text).expect("rules");
    let found = |domain: &str, entries: &[(&str, &str)]| {
        let (found, terms) = rules.quota(domain, entries)?;
        let key = String::from_utf8(found.charges[0].key.clone()).expect("a readable key");
        Some((found.rule.name().to_owned(), key, terms.tokens, terms.slots))
    };
    let expected = |name: &str, key: &str, tokens, slots| {
        Some((name.to_owned(), key.to_owned(), tokens, slots))
    };
    assert_eq!(found("shop", &[("user", "ada")]), expected("each", "rule:each|ada", 1000, 4));
    assert_eq!(found("shop", &[("user", "gold")]), expected("each", "rule:each|gold", 9000, 4));
    assert_eq!(found("shop", &[("path", "/")]), expected("rest", "rule:rest", 2000, 16));
    assert_eq!(found("other", &[("user", "ada")]), None);
    assert_eq!(rules.quotas().map(|it| it.name()).collect::<Vec<_>>(), ["each", "rest"]);
    let entries = [("user", "ada")];
    let [of_descriptor] =
        &rules.descriptors("shop", &[Descriptor { entries: &entries, limit: None }])[..]
    else {
        panic!()
    };
    let names: Vec<_> = of_descriptor.iter().map(|it| it.rule.name()).collect();
    assert_eq!(names, ["limit"]);
    assert!(rules.matches(&Request::http("GET", "/", &())).is_empty());
}

#[test]
fn quota_beside_what_envoy_cannot_enforce_is_an_error() {
    let rule = |rest: &str| format!("rules: [{{name: api, match: {{domain: shop}}, {rest}}}]");
    for (rest, expected) in [
        (
            "policy: 'fixed-window:5/1m', quota: true",
            "invalid policy `fixed-window:5/1m` of a rule with `quota`: expected one limit that is a `gcra`, `token-bucket` or `leaky-bucket`",
        ),
        (
            "policy: 'gcra:5/1s', cost: 2, quota: true",
            "invalid `cost` beside `quota`: expected only `match`",
        ),
        ("policy: 'gcra:5/1s', shadow: true, quota: true", "invalid `shadow` beside `quota`"),
        ("policy: 'gcra:5/1s', lease: 2, quota: true", "invalid `lease` beside `quota`"),
        ("policy: 'gcra:5/1s', on_error: allow, quota: true", "invalid `on_error` beside `quota`"),
        ("block: true, quota: true", "invalid `block` beside `quota`"),
        ("policy: 'gcra:5/1s', quota: {proxies: 6}", "expected a burst of at least 6"),
        ("policy: 'gcra:5/1s', quota: {proxies: 0}", "invalid proxies `0`: expected 1 to 1024"),
        (
            "policy: 'gcra:5/1s', quota: {proxies: 4294967296}",
            "invalid proxies `4294967296`: expected 1 to 1024",
        ),
        (
            "policy: 'gcra:5000/1s', quota: {proxies: 1025}",
            "invalid proxies `1025`: expected 1 to 1024",
        ),
        (
            "policy: 'gcra:5/1s', quota: {proxy: 6}",
            "unknown field `proxy` in a quota: expected `proxies`",
        ),
        (
            "policy: 'gcra:5/1s', quota: 3",
            "invalid quota `3`: expected `true`, or a map such as `{proxies: 8}`",
        ),
        (
            "policy: 'gcra:5/1s', quota: true, overrides: [{match: {domain: shop}, unlimited: true}]",
            "invalid override beside `quota`: expected only `policy`",
        ),
        (
            "policy: 'gcra:5/1s', quota: true, overrides: [{match: {domain: shop}, policy: 'sliding-log:5/1s'}]",
            "invalid policy `sliding-log:5/1s` of a rule with `quota`",
        ),
    ] {
        let error = rules(&rule(rest)).expect_err(rest);
        assert!(error.contains(expected), "{rest}: {error}");
    }
    let error =
        rules("rules: [{name: api, policy: 'gcra:5/1s', quota: true}]").expect_err("no domain");
    assert!(
        error
            .contains("invalid rule with `quota`: expected the domain or an entry of a descriptor"),
        "{error}"
    );
}
