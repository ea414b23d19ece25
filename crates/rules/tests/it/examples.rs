//! Examples in rules files, run in virtual time.

use sluicegate_rules::{Format, RuleSet};

use super::rules;

const RULES: &str = "
rules:
  - {name: login, match: {path: /login}, key: client, policy: 'sliding-log:2/1m', stop: true}
  - name: api
    levels:
      - {name: user, key: header.u, policy: 'fixed-window:2/1m'}
      - {name: all, policy: 'fixed-window:3/1m'}
  - {name: trial, shadow: true, policy: 'fixed-window:1/1h'}
domain: web
descriptors:
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: q, value: x, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: q, value: y, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}
";

/// Differences from what an example expects.
fn faults(example: &str) -> Vec<String> {
    let rules = rules(&format!("{RULES}tests:\n  - {example}\n"));
    rules.run_example(&rules.examples()[0])
}

#[test]
fn run_example_that_holds_returns_no_faults() {
    for example in [
        "{name: x, request: {path: /login, client: 192.0.2.1}, rules: login, key: 'rule:login|192.0.2.1', policy: 'sliding-log:2/60s', expect: allow, remaining: 1}",
        "{name: x, request: {path: /login, client: 192.0.2.1}, steps: [{times: 2, expect: allow}, {at: 20s, expect: deny, rule: login, retry_after: 40s}, {at: 1m, expect: allow}]}",
        // A denied user does not use up the units that all users share.
        "{name: x, request: {headers: {u: a}}, rules: [api, trial], steps: [{times: 2, expect: allow}, {times: 9, expect: deny, rule: api/user}, {request: {headers: {u: b}}, expect: allow}, {request: {headers: {u: b}}, expect: deny, rule: api/all}]}",
        "{name: x, domain: web, descriptors: [{a: b}], key: 'envoy:web|a=b', steps: [{times: 2, expect: allow}, {expect: deny, rule: web.a}, {at: 1m, expect: allow}]}",
        "{name: x, domain: web, descriptors: [{a: b}], hits: 3, expect: deny}",
        // Limits in quota mode deny only together.
        "{name: x, domain: web, descriptors: [{q: x}, {q: y}], steps: [{expect: allow}, {times: 2, expect: allow}, {expect: deny}]}",
        "{name: x, domain: web, descriptors: [{q: x}, {a: b}], steps: [{expect: allow}, {expect: deny, rule: web.q_x}]}",
        // A server rejects a key that is too long.
        "{name: x, request: {headers: {u: LONG}}, expect: deny}",
        "{name: x, domain: other, descriptors: [{a: b}], rules: [], expect: allow}",
    ] {
        let example = example.replace("LONG", &"x".repeat(65_536));
        assert_eq!(faults(&example), [""; 0], "{example:.100}");
    }
}

/// As in the server: a client must not pass because its id is invalid.
#[test]
fn run_example_hold_with_an_invalid_id_is_denied() {
    let text = "
rules: [{name: flight, hold_id: descriptor.id, policy: 'concurrency:2/1m'}]
tests:
  - {name: x, domain: web, descriptors: [{id: r1}], expect: allow, remaining: 1}
  - {name: x, domain: web, descriptors: [{id: ''}], expect: deny, rule: flight, remaining: 2}
  - {name: x, domain: web, descriptors: [{id: LONG}], expect: deny, rule: flight, remaining: 2}
  - {name: x, domain: web, descriptors: [{id: r1}], steps: [{times: 2, expect: allow, remaining: 1}]}
  - {name: x, domain: web, descriptors: [{id: r1}], hits: 3, expect: deny, rule: flight, remaining: 2}
";
    let rules = rules(&text.replace("LONG", &"x".repeat(65)));
    for example in rules.examples() {
        assert_eq!(rules.run_example(example), [""; 0], "line {}", example.line);
    }
}

#[test]
fn run_example_that_fails_returns_what_was_found() {
    for (example, expected) in [
        (
            "{name: x, request: {path: /login, client: 192.0.2.1}, rules: api}",
            &["rules: expected api, found login"][..],
        ),
        (
            "{name: x, request: {path: /login}, rules: login}",
            &["rules: expected login, found trial"],
        ),
        (
            "{name: x, request: {path: /login, client: 192.0.2.1}, steps: [{times: 3, expect: allow}]}",
            &["step 1 (line 15), request 3: expected allow, found deny by login"],
        ),
        (
            "{name: x, request: {path: /login, client: 192.0.2.1}, expect: allow, remaining: 7, rule: api}",
            &[
                "step 1 (line 15): expected rule api, found login",
                "step 1 (line 15): expected remaining 7, found 1",
            ],
        ),
    ] {
        assert_eq!(faults(example), expected, "{example}");
    }
}

/// Otherwise an example would pass without a check of what it says.
#[test]
fn parse_example_field_without_effect_is_an_error() {
    let in_steps = |field: &str| format!("invalid `{field}` beside `steps`: expected it in a step");
    let hits = "invalid `hits` without `descriptors`: expected both, and `domain`".to_owned();
    for (example, expected) in [
        ("request: {}, expect: deny, steps: [{expect: allow}]", in_steps("expect")),
        ("request: {}, rule: login, steps: [{expect: allow}]", in_steps("rule")),
        ("request: {}, remaining: 1, steps: [{expect: allow}]", in_steps("remaining")),
        ("request: {}, retry_after: 1s, steps: [{expect: allow}]", in_steps("retry_after")),
        ("request: {}, steps: []", "invalid number of steps `0`: expected at least one".to_owned()),
        (
            "request: {}, domain: d",
            "invalid `request` beside `domain`: expected `request`, or `domain` and `descriptors`"
                .to_owned(),
        ),
        ("domain: d", "invalid `domain` without `descriptors`: expected both".to_owned()),
        ("descriptors: []", "invalid `descriptors` without `domain`: expected both".to_owned()),
        ("request: {}, hits: 3", hits.clone()),
        ("request: {}, steps: [{hits: 3}]", hits.clone()),
        ("request: {}, steps: [{request: {}, hits: 3}]", hits),
    ] {
        let text = format!("{RULES}tests:\n  - {{name: x, {example}}}\n");
        let error = RuleSet::parse(&text, Format::Yaml).map(|_| ()).expect_err(example);
        assert_eq!((error.at.line, error.message), (15, expected), "{example}");
    }
}
