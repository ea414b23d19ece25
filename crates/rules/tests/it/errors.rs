//! What is wrong with a file, by line and column.

use sluicegate_rules::{Format, RuleSet};

#[test]
fn errors_say_where_and_what_would_do() {
    let mut wrong = Vec::new();
    for (text, expected) in [
        ("rules: [", "line 1, column 8: this is no YAML: unclosed bracket '['"),
        (
            "rules:\n- name: a\n  policy: gcra:30/0s",
            "line 3, column 19: period `0s` is outside 1ms..=366d",
        ),
        (
            "rules:\n- name: a\n  policy: 'gcra:30/0s'",
            "line 3, column 20: period `0s` is outside 1ms..=366d",
        ),
        (
            "rules:\n- {name: a, policy: gold}",
            "line 2, column 21: no policy is named `gold`; a text as `gcra:30/1m` would do",
        ),
        (
            "policies: {x: 'gcra:1/1s'}\nrules:\n- {name: a, policy: gold}",
            "line 3, column 21: no policy is named `gold`; `x`, a text as `gcra:30/1m` would do",
        ),
        (
            "rules:\n- {name: a}",
            "line 2, column 3: a rule without a `policy`; one would do, or `unlimited: true`, or `block: true`",
        ),
        ("rules:\n- {policy: 'gcra:1/1s'}", "line 2, column 3: a rule has no `name`"),
        (
            "rules:\n- {name: a b, policy: 'gcra:1/1s'}",
            "line 2, column 10: rule name `a b` is not 1..=64 letters, digits, `-` and `_`",
        ),
        (
            "rules:\n- {name: a, unlimited: true}\n- {name: a, unlimited: true}",
            "line 3, column 3: a rule `a` is there already, in line 2; another name would do",
        ),
        (
            "rules:\n- {name: a, polcy: x}",
            "line 2, column 13: a rule has no `polcy`; it knows name, match, policy, unlimited, block, cost, shadow, on_error, stop, spread, state, key, levels, overrides",
        ),
        (
            "rules:\n- {name: a, unlimited: 1}",
            "line 2, column 24: unlimited is `1`; `true` or `false` would do",
        ),
        (
            "rules:\n- {name: a, unlimited: true, block: true}",
            "line 2, column 30: `unlimited` and `block` at once; one of them would do",
        ),
        (
            "rules:\n- {name: a, match: {paht: /}, block: true}",
            "line 2, column 21: `paht` is nothing that a rule matches; ",
        ),
        (
            "rules:\n- {name: a, match: {path: login}, block: true}",
            "line 2, column 27: path `login` does not begin with `/`",
        ),
        (
            "rules:\n- {name: a, match: {client: 10.1.0.0/8}, block: true}",
            "line 2, column 29: `10.1.0.0/8` has bits behind its prefix; `10.0.0.0/8` would do",
        ),
        (
            "rules:\n- {name: a, match: {path: []}, block: true}",
            "line 2, column 27: an empty list, which nothing would match; at least one value would do",
        ),
        (
            "rules:\n- {name: a, key: [client, user], policy: 'gcra:1/1s'}",
            "line 2, column 27: `user` is no part of a key; ",
        ),
        (
            "rules:\n- {name: a, key: path.id, policy: 'gcra:1/1s'}",
            "line 2, column 3: `path.id` needs a path with `{id}` in `match`",
        ),
        (
            "rules:\n- {name: a, cost: much, policy: 'gcra:1/1s'}",
            "line 2, column 19: cost `much` is neither a whole number of units nor an attribute that says one, as `header.x-tokens`",
        ),
        (
            "rules:\n- {name: a, on_error: open, policy: 'gcra:1/1s'}",
            "line 2, column 23: on_error `open` is unknown; `allow`, `deny`, `local` or `local=1/4` would do",
        ),
        (
            "rules:\n- name: a\n  name: b",
            "line 3, column 3: `name` is given twice; first in line 2",
        ),
        (
            "policies: {a: 'gcra:1/1s'}\n---\nrules: []",
            "line 2, column 1: a second document; one a file would do",
        ),
        ("descriptors: []", "line 1, column 14: descriptors without a `domain`"),
        ("domain: ''", "line 1, column 9: an empty domain; that of Envoy's filter would do"),
        (
            "domain: d\ndescriptors: [{key: ''}]",
            "line 2, column 15: a descriptor with an empty key",
        ),
        (
            "domain: d\ndescriptors: [{key: a}, {key: a}]",
            "line 2, column 25: descriptor `d.a` is there already",
        ),
        (
            "domain: d\ndescriptors: [{key: a, ratelimit: {}}]",
            "line 2, column 24: a descriptor has no `ratelimit`; it knows ",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: fortnight}}]",
            "line 2, column 43: unit `fortnight` is unknown; one of second, minute, hour, day, week, month, year would do",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, unlimited: true}}]",
            "line 2, column 43: a unit beside `unlimited`; leaving it out would do",
        ),
        (
            "domain: d\ndescriptors: [{key: a, value: b, share_threshold: true}]",
            "line 2, column 34: share_threshold needs a value with `*` in it",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, name: x, replaces: [{name: x}]}}]",
            "line 2, column 68: a limit that replaces itself",
        ),
        (
            "tests: [{name: x}]",
            "line 1, column 9: a test without a `request`, or `domain` and `descriptors`",
        ),
        (
            "tests: [{name: x, request: {}, steps: [{at: soon}]}]",
            "line 1, column 45: at `soon` is no span of time, as `250ms`, `90s`, `1m30s`, `2h`",
        ),
        ("[a, b]", "line 1, column 1: a rules file is a list, not a map"),
        (
            "what: 1",
            "line 1, column 1: a rules file has no `what`; it knows policies, rules, domain, descriptors, tests",
        ),
    ] {
        let error = RuleSet::parse(text, Format::Yaml).map(|_| ()).unwrap_err();
        // One that ends in a blank is only the beginning of a long one.
        let fits = match expected.ends_with(' ') {
            true => error.to_string().starts_with(expected),
            false => error.to_string() == expected,
        };
        if !fits || !error.excerpt().contains('^') {
            wrong.push(format!("{text}\n  found    {error}\n  expected {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let toml = "[[rules]]\nname = 'a'\npolicy = \"gcra:1/0s\"\n";
    let error = RuleSet::parse(toml, Format::Toml).unwrap_err();
    assert_eq!(error.to_string(), "line 3, column 18: period `0s` is outside 1ms..=366d");
    assert_eq!(error.excerpt(), "3 | policy = \"gcra:1/0s\"\n  |                  ^\n");
    let error = RuleSet::parse("a = ", Format::Toml).unwrap_err();
    assert!(error.to_string().starts_with("line 1, column 5: this is no TOML: "), "{error}");
}
