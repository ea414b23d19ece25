//! Costs from attributes of requests.

use sluicegate_rules::{Format, Request, RuleSet};

use crate::rules;

/// The cost of a request with this value of `x-tokens`.
fn cost(rules: &RuleSet, tokens: &str) -> u32 {
    rules.matches(&Request::http("GET", "/", &[("x-tokens", tokens)]))[0].cost
}

#[test]
fn cost_from_header_no_value_is_below_the_minimum() {
    let rules = rules("rules: [{name: a, cost: header.x-tokens, policy: 'gcra:9/1s'}]");
    for (tokens, expected) in [
        ("7", 7),
        (" 7 ", 7),
        ("0", 1),
        ("00", 1),
        ("-0", 1),
        ("-5", 1),
        ("+5", 1),
        ("1.5", 1),
        ("", 1),
        ("text", 1),
        ("4294967295", u32::MAX),
        ("4294967296", u32::MAX),
        ("99999999999", u32::MAX),
        ("00000000000000000000000007", 7),
        (&"9".repeat(1000), u32::MAX),
    ] {
        assert_eq!(cost(&rules, tokens), expected, "{tokens}");
    }
    assert_eq!(rules.matches(&Request::http("GET", "/", &()))[0].cost, 1);
}

#[test]
fn cost_from_header_minimum_and_default_are_settings() {
    let with = |cost: &str| format!("rules: [{{name: a, cost: {cost}, policy: 'gcra:9/1s'}}]");
    for (form, zero, seven, absent) in [
        ("{from: header.x-tokens}", 1, 7, 1),
        ("{from: header.x-tokens, min: 0}", 0, 7, 1),
        ("{from: header.x-tokens, min: 0, default: 0}", 0, 7, 0),
        ("{from: header.x-tokens, min: 5}", 5, 7, 5),
        ("{from: header.x-tokens, min: 9, default: 20}", 9, 9, 20),
    ] {
        let rules = rules(&with(form));
        let found = ["0", "7", "text", "-5"].map(|tokens| cost(&rules, tokens));
        assert_eq!(found, [zero, seven, absent, absent], "{form}");
    }
    for (form, expected) in [
        (
            "{min: 0}",
            "missing field `from` in a cost: expected an attribute such as `header.x-tokens`",
        ),
        ("{from: tokens}", "invalid from `tokens`: expected `method`, "),
        (
            "{from: header.x, min: 2, default: 1}",
            "invalid default `1`: expected a whole number from 2 to ",
        ),
        (
            "{from: header.x, max: 2}",
            "unknown field `max` in a cost: expected `from`, `min` or `default`",
        ),
    ] {
        let error = RuleSet::parse(&with(form), Format::Yaml).map(|_| ()).unwrap_err();
        assert!(error.message.starts_with(expected), "{form}: {error}");
    }
}
