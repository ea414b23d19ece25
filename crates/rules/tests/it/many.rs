//! Many rules: the index finds the same rules as a test of each.

use std::collections::HashMap;

use proptest::prelude::*;
use sluicegate_rules::{Format, Request, RuleSet};

/// Overlapping conditions.
const CONDITIONS: [&str; 22] = [
    "{path: /a}",
    "{path: [/a, /b/*]}",
    "{path: '/b/**'}",
    "{path: '/{x}/c'}",
    "{path: '/**/c'}",
    "{path: '/b*/c'}",
    "{path: {not: /a}}",
    "{method: GET}",
    "{method: [GET, POST], header.h: x*}",
    "{header.h: x}",
    "{header.h: 'x*'}",
    "{header.h: '*y'}",
    "{header.h: 'x*y'}",
    "{header.h: '*'}",
    "{header.h: {present: false}}",
    "{header.h: {not: ['x*', y]}}",
    "{query.q: ['1', '2*']}",
    "{client: 10.0.0.0/8}",
    "{client: [10.1.0.0/16, 'fe80::/10']}",
    "{client: 0.0.0.0/0, path: /a}",
    "{client: {present: true}, method: GET}",
    "{}",
];

fn parse(conditions: impl IntoIterator<Item = &'static str>) -> RuleSet {
    let mut text = String::from("rules:\n");
    for (index, condition) in conditions.into_iter().enumerate() {
        text += &format!("- {{name: r{index}, match: {condition}, policy: 'gcra:1/1s'}}\n");
    }
    RuleSet::parse(&text, Format::Yaml).unwrap()
}

proptest! {
    #[test]
    fn index_finds_what_each_rule_alone_matches(
        chosen in prop::collection::vec(prop::sample::select(&CONDITIONS[..]), 1..30),
        path in prop::sample::select(&["/a", "/b", "/b/c", "/b/c/c", "/bb/c", "/", "/a?q=1", "/b/?q=22", "/d/c?q=3"][..]),
        method in prop::sample::select(&["GET", "POST"][..]),
        header in prop::option::of(prop::sample::select(&["x", "xy", "y", "", "xzy"][..])),
        client in prop::option::of(prop::sample::select(&["10.0.0.1", "10.1.2.3", "192.0.2.1", "fe80::1"][..])),
    ) {
        let headers: Vec<_> = header.iter().map(|value| ("H", *value)).collect();
        let mut request = Request::http(method, path, &headers);
        if let Some(client) = client {
            request = request.from(client.parse().unwrap());
        }
        let mut known: HashMap<&str, bool> = HashMap::new();
        let mut expected = Vec::new();
        for (index, condition) in chosen.iter().enumerate() {
            let holds = *known
                .entry(condition)
                .or_insert_with(|| !parse([*condition]).matches(&request).is_empty());
            if holds {
                expected.push(format!("r{index}"));
            }
        }
        let rules = parse(chosen.iter().copied());
        let found: Vec<_> = rules.matches(&request).iter().map(|it| it.rule.name().to_owned()).collect();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn parse_ten_thousand_rules_each_is_found() {
    let mut text = String::from("rules:\n");
    for index in 0..10_000 {
        text += &format!(
            "- {{name: r{index}, match: {{path: /p{index}/**}}, key: client, policy: 'gcra:{}/1m'}}\n",
            1 + index % 50
        );
    }
    let rules = RuleSet::parse(&text, Format::Yaml).unwrap();
    assert_eq!((rules.rules().len(), rules.all_policies().len()), (10_000, 50));
    for index in (0..10_000).step_by(997) {
        let target = format!("/p{index}/x");
        let request = Request::http("GET", &target, &()).from([192, 0, 2, 1].into());
        let found = rules.matches(&request);
        assert_eq!((found.len(), found[0].rule.name()), (1, &*format!("r{index}")));
    }
}
