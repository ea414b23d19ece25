//! Mistakes in rules files with their whole error: position, value and what is expected.
//!
//! It includes the 29 mistakes that a review of new users' files found.

use sluicegate_rules::{Format, RuleSet};

#[test]
fn rules_mistakes_name_the_position_the_value_and_what_is_valid() {
    let mut wrong = Vec::new();
    for (text, expected) in [
        // Files.
        ("~", "1:1: empty rules file: expected rules; use `rules: []` for none"),
        ("{}", "1:1: empty rules file: expected rules; use `rules: []` for none"),
        ("rules: [", "1:8: invalid YAML: unclosed bracket '['"),
        ("[a, b]", "1:1: invalid rules file: expected a map, found a list"),
        (
            "what: 1",
            "1:1: unknown field `what` in a rules file: expected `policies`, `rules`, `domain`, `descriptors`, `tests` or `trusted_headers`",
        ),
        ("rule: []", "1:1: unknown field `rule` in a rules file: did you mean `rules`?"),
        (
            "policies: {a: 'gcra:1/1s'}\n---\nrules: []",
            "3:1: invalid second document: expected one document in a file",
        ),
        (
            "apiVersion: apps/v1\nkind: Deployment",
            "2:7: invalid rules file: `Deployment` is a Kubernetes manifest; expected a rules file or a `ConfigMap` of them",
        ),
        (
            "apiVersion: v1\nkind: ConfigMap\ndata: {a: b}",
            "1:1: invalid ConfigMap: expected a file under `data` that ends in .yaml, .yml or .toml",
        ),
        (
            "- namespace: shop\n  max_value: 10",
            "1:1: invalid rules file: expected a map, found a list of limits in the format of limitador; write them as `rules`, as docs/coming-from.md shows",
        ),
        ("rules: {name: a}", "1:8: invalid rules: expected a list, found a map"),
        (
            "rules: [{name: a, key: {[x]: 1}, block: true}]",
            "1:25: invalid map key: expected a string",
        ),
        // Policies.
        (
            "policies: {gold: 'gcra:30/60'}\nrules: [{name: a, policy: gold}]",
            "1:27: invalid period `60`: expected a duration such as `60s`",
        ),
        (
            "policies: {'g d': 'gcra:1/1s'}",
            "1:12: invalid policy name `g d`: expected 1 to 64 letters, digits, `-` and `_`",
        ),
        (
            "policies:\n  a: gcra:1/1s\n  a: gcra:1/1s",
            "3:3: duplicate field `a`: first given in line 2",
        ),
        (
            "rules:\n- name: a\n  policy: gcra:30/0s",
            "3:19: invalid period `0s`: expected 1ms to 366d",
        ),
        (
            "rules:\n- name: a\n  policy: 'gcra:30/0s'",
            "3:20: invalid period `0s`: expected 1ms to 366d",
        ),
        (
            "rules:\n- name: a\n  policy: 100/minute",
            "3:11: invalid policy `100/minute`: expected an algorithm, such as `gcra:100/1m` or `fixed-window:100/1m`",
        ),
        (
            "rules:\n- {name: a, policy: gold}",
            "2:21: unknown policy `gold`: expected a policy such as `gcra:30/1m`",
        ),
        (
            "policies: {x: 'gcra:1/1s'}\nrules:\n- {name: a, policy: gold}",
            "3:21: unknown policy `gold`: expected `x`, or a policy such as `gcra:30/1m`",
        ),
        (
            "policies: {gold: 'gcra:1/1s'}\nrules:\n- {name: a, policy: glod}",
            "3:21: unknown policy `glod`: did you mean `gold`?",
        ),
        (
            "rules:\n- {name: a, policy: 'concurrency:20/30s'}",
            "2:21: invalid policy `concurrency:20/30s` of a rule: expected one without `concurrency`, because proxies report only the start of a request to the rules; hold and settle in the application (SG.HOLD, POST /v1/hold), use the Tower layer, or report the end from Envoy (`hold_id` in the rule, `apply_on_stream_done` in Envoy)",
        ),
        (
            "policies: {busy: 'gcra:1/1s,concurrency:2/1s'}\nrules:\n- {name: a, policy: '@busy'}",
            "3:21: invalid policy `@busy` of a rule: expected one without `concurrency`, because proxies report only the start of a request to the rules; hold and settle in the application (SG.HOLD, POST /v1/hold), use the Tower layer, or report the end from Envoy (`hold_id` in the rule, `apply_on_stream_done` in Envoy)",
        ),
        (
            "rules:\n- {name: a, hold_id: header.x-request-id, policy: 'concurrency:20/30s'}",
            "2:22: invalid hold_id `header.x-request-id`: expected an entry of a descriptor, such as `descriptor.hold`",
        ),
        (
            "rules:\n- {name: a, hold_id: descriptor.id, policy: 'gcra:1/1s'}",
            "2:45: invalid policy `gcra:1/1s` of a rule with `hold_id`: expected one with `concurrency`, such as `concurrency:20/30s`",
        ),
        (
            "rules:\n- {name: a, hold_id: descriptor.id, policy: 'concurrency:2/1s,leaky-queue:5/1s'}",
            "2:45: invalid policy `concurrency:2/1s,leaky-queue:5/1s` of a rule with `hold_id`: expected one without `leaky-queue`",
        ),
        (
            "rules:\n- {name: a, hold_id: descriptor.id, levels: [{name: b, policy: 'concurrency:2/1s'}]}",
            "2:45: invalid `levels` beside `hold_id`: expected one `policy`",
        ),
        (
            "rules:\n- {name: a}",
            "2:3: missing field `policy` in a rule: expected it, `unlimited: true` or `block: true`",
        ),
        // Rules.
        (
            "rules:\n- {policy: 'gcra:1/1s'}",
            "2:3: missing field `name` in a rule: expected a name such as `api`",
        ),
        (
            "rules:\n- {name: a b, policy: 'gcra:1/1s'}",
            "2:10: invalid rule name `a b`: expected 1 to 64 letters, digits, `-` and `_`",
        ),
        (
            "rules:\n- {name: [a], policy: 'gcra:1/1s'}",
            "2:10: invalid name of a rule: expected a string, found a list",
        ),
        (
            "rules:\n- {name: a, unlimited: true}\n- {name: a, unlimited: true}",
            "3:3: duplicate rule `a`: first defined in line 2",
        ),
        (
            "rules:\n- {name: a, polcy: x, block: true}",
            "2:13: unknown field `polcy` in a rule: did you mean `policy`?",
        ),
        (
            "rules:\n- {name: a, limit: x, block: true}",
            "2:13: unknown field `limit` in a rule: expected `name`, `match`, `hold_id`, `policy`, `unlimited`, `block`, `lease`, `cost`, `shadow`, `on_error`, `stop`, `spread`, `state`, `key`, `levels`, `overrides` or `quota`",
        ),
        (
            "rules:\n- {name: a, unlimited: 1}",
            "2:24: invalid unlimited `1`: expected `true` or `false`",
        ),
        (
            "rules:\n- {name: a, block: 'true'}",
            "2:20: invalid block `true`: expected it without quotes",
        ),
        (
            "rules:\n- {name: a, shadow: 'yes', policy: 'gcra:1/1s'}",
            "2:21: invalid shadow `yes`: expected `true` or `false`",
        ),
        (
            "rules:\n- {name: a, unlimited: true, block: true}",
            "2:30: invalid `block` beside `unlimited`: expected one of them",
        ),
        (
            "rules:\n- {name: a, block: true, policy: 'gcra:1/1s'}",
            "2:34: invalid `policy` beside `unlimited` or `block`: expected one of them",
        ),
        (
            "rules:\n- {name: a, cost: much, policy: 'gcra:1/1s'}",
            "2:19: invalid cost `much`: expected a whole number from 0 to 4294967295, or an attribute that gives one such as `header.x-tokens`",
        ),
        (
            "rules:\n- {name: a, cost: path.id, policy: 'gcra:1/1s'}",
            "2:19: invalid cost `path.id`: expected `method`, `path`, `header.NAME`, `query.NAME`, `client`, `descriptor.NAME` or `domain`",
        ),
        (
            "rules:\n- {name: a, on_error: open, policy: 'gcra:1/1s'}",
            "2:23: invalid on_error `open`: expected `allow`, `deny`, `local` or `local=1/4`",
        ),
        (
            "rules:\n- {name: a, on_error: fail, policy: 'gcra:1/1s'}",
            "2:23: invalid on_error `fail`: expected `allow`, `deny`, `local` or `local=1/4`",
        ),
        (
            "rules:\n- {name: a, policy: 'leaky-queue:1/1s', lease: 9}",
            "2:41: invalid policy `leaky-queue:1/1s` for a lease: `leaky-queue:1/1s` cannot have one, because it delays each request; expected limits without `borrow` and `count=all`, and no `leaky-queue` or `concurrency`",
        ),
        (
            "policies: {p: {policy: 'gcra:1/1s:borrow', lease: 9}}",
            "1:44: invalid policy `gcra:1/1s:borrow` for a lease: `gcra:1/1s:borrow` cannot have one, because a request may take more than is available; expected limits without `borrow` and `count=all`, and no `leaky-queue` or `concurrency`",
        ),
        (
            "rules: [{name: a, policy: gcra:1/1s,gcra:9/1m}]",
            "1:37: unknown field `gcra:9/1m` in a rule: expected quotes around a policy of several limits, 'gcra:10/1s,gcra:100/1m'",
        ),
        (
            "policies: {p: {policy: 'gcra:1/1s', leas: 9}}",
            "1:37: unknown field `leas` in a policy: did you mean `lease`?",
        ),
        (
            "rules:\n- {name: a, lease: 9, policy: 'gcra:1/1s', overrides: {match: {client: 10.0.0.1}, lease: 8}}",
            "2:83: invalid `lease` without `policy`: expected both",
        ),
        (
            "rules:\n- {name: a, lease: many, policy: 'gcra:1/1s'}",
            "2:20: invalid lease `many`: expected a whole number from 0 to 4294967295",
        ),
        ("rules:\n- name: a\n  name: b", "3:3: duplicate field `name`: first given in line 2"),
        // Conditions.
        (
            "rules:\n- {name: a, match: {paht: /}, block: true}",
            "2:21: unknown attribute `paht` in `match`: did you mean `path`?",
        ),
        (
            "rules:\n- {name: a, match: {ip: 10.0.0.1}, block: true}",
            "2:21: unknown attribute `ip` in `match`: did you mean `client`?",
        ),
        (
            "rules:\n- {name: a, match: {X-Api-Key: b}, block: true}",
            "2:21: unknown attribute `X-Api-Key` in `match`: did you mean `header.x-api-key`?",
        ),
        (
            "rules:\n- {name: a, match: {headers.x-plan: b}, block: true}",
            "2:21: unknown attribute `headers.x-plan` in `match`: did you mean `header.x-plan`?",
        ),
        (
            "rules:\n- {name: a, match: {header.x plan: b}, block: true}",
            "2:21: unknown attribute `header.x plan` in `match`: expected a header name of up to 256 letters, digits and `-`",
        ),
        (
            "rules:\n- {name: a, match: {header: {größe: b}}, block: true}",
            "2:30: unknown attribute `header.größe` in `match`: expected a header name of up to 256 letters, digits and `-`",
        ),
        (
            "rules:\n- {name: a, block: true}\ntrusted_headers: [x y]",
            "3:19: invalid header `x y`: expected a header name of up to 256 letters, digits and `-`",
        ),
        (
            "rules:\n- {name: a, match: {country: b}, block: true}",
            "2:21: unknown attribute `country` in `match`: expected `method`, `path`, `header.NAME`, `query.NAME`, `client`, `descriptor.NAME` or `domain`",
        ),
        (
            "rules:\n- {name: a, match: {header: x-plan}, block: true}",
            "2:29: invalid header: expected a map of names and values, or `header.x-plan` with a value, found `x-plan`",
        ),
        (
            "rules:\n- {name: a, match: {path: login}, block: true}",
            "2:27: invalid path `login`: expected one that begins with `/`",
        ),
        (
            "rules:\n- {name: a, match: {path: []}, block: true}",
            "2:27: invalid empty list: expected at least one value",
        ),
        (
            "rules:\n- {name: a, match: {method: GTE}, block: true}",
            "2:29: unknown method `GTE`: did you mean `GET`? Write `{is: GTE}` for another",
        ),
        (
            "rules:\n- {name: a, match: {method: [POST, DELTE]}, block: true}",
            "2:36: unknown method `DELTE`: did you mean `DELETE`? Write `{is: DELTE}` for another",
        ),
        (
            "rules:\n- {name: a, match: {method: GET/POST}, block: true}",
            "2:29: invalid method `GET/POST`: expected letters such as `GET`",
        ),
        (
            "rules:\n- {name: a, match: {client: 10.1.0.0/8}, block: true}",
            "2:29: invalid network `10.1.0.0/8`: did you mean `10.0.0.0/8`?",
        ),
        (
            "rules:\n- {name: a, match: {client: 10.0.0}, block: true}",
            "2:29: invalid client `10.0.0`: expected an address or a network such as `10.0.0.0/8`",
        ),
        (
            "rules:\n- {name: a, match: {header.x: {equals: b}}, block: true}",
            "2:32: invalid map as a value: expected one of `is: VALUE` (exactly, `*` too), `not: VALUE`, `present: true` or `present: false`",
        ),
        // Keys.
        (
            "rules:\n- {name: a, key: [client, user], policy: 'gcra:1/1s'}",
            "2:27: invalid key part `user`: expected `method`, `path`, `header.NAME`, `query.NAME`, `client`, `descriptor.NAME` or `domain`",
        ),
        (
            "rules:\n- {name: a, key: ip, policy: 'gcra:1/1s'}",
            "2:18: invalid key part `ip`: did you mean `client`?",
        ),
        (
            "rules:\n- {name: a, key: x-api-key, policy: 'gcra:1/1s'}",
            "2:18: invalid key part `x-api-key`: did you mean `header.x-api-key`?",
        ),
        (
            "rules:\n- {name: a, key: client/33, policy: 'gcra:1/1s'}",
            "2:18: invalid key part `client/33`: expected at most 32 bits of IPv4 and 128 of IPv6, such as `client/24/56`",
        ),
        (
            "rules:\n- name: a\n  key: {header: x-api-key}\n  policy: gcra:1/1s",
            "3:8: invalid key part: expected a string such as `header.x-api-key`, found a map",
        ),
        (
            "rules:\n- {name: a, key: path.id, policy: 'gcra:1/1s'}",
            "2:3: invalid key part `path.id`: expected a path with `{id}` in `match`",
        ),
        // Levels and overrides.
        (
            "rules:\n- {name: a, key: client, levels: [{name: u, policy: 'gcra:1/1s'}]}",
            "2:18: invalid `key` beside `levels`: expected one of them",
        ),
        ("rules:\n- {name: a, levels: []}", "2:21: invalid number of levels `0`: expected 1 to 8"),
        (
            "rules:\n- {name: a, levels: [{name: u, policy: 'gcra:1/1s'}, {name: u, policy: 'gcra:1/1s'}]}",
            "2:61: duplicate level `u`: expected each name once",
        ),
        (
            "rules:\n- {name: a, policy: 'gcra:1/1s', overrides: {policy: 'gcra:2/1s'}}",
            "2:45: missing condition of an override: expected `match`, or `by` with `values`",
        ),
        (
            "rules:\n- {name: a, levels: [{key: method}]}",
            "2:22: missing field `name` in a level: expected a name such as `user`",
        ),
        (
            "rules:\n- {name: a, levels: [{name: u}]}",
            "2:22: missing field `policy` in a level: expected a policy such as `gcra:30/1m`",
        ),
        (
            "rules:\n- {name: a, policy: 'gcra:1/1s', overrides: {by: plan, values: {}}}",
            "2:50: unknown attribute `plan`: expected `method`, `path`, `header.NAME`, `query.NAME`, `client`, `descriptor.NAME` or `domain`",
        ),
        // The format of envoyproxy/ratelimit.
        (
            "descriptors: []",
            "1:14: missing field `domain` beside `descriptors`: expected the domain of Envoy's rate limit filter",
        ),
        ("domain: ''", "1:9: invalid domain ``: expected the domain of Envoy's rate limit filter"),
        (
            "domain: d\ndescriptors: [{key: ''}]",
            "2:15: invalid key `` of a descriptor: expected a name",
        ),
        (
            "domain: d\ndescriptors: [{key: a}, {key: a}]",
            "2:25: duplicate descriptor `d.a`: first defined in line 2",
        ),
        (
            "domain: d\ndescriptors: [{key: a, policy: 'concurrency:2/1s'}]",
            "2:32: invalid policy `concurrency:2/1s` of a rule: expected one without `concurrency`, because proxies report only the start of a request to the rules; hold and settle in the application (SG.HOLD, POST /v1/hold), use the Tower layer, or report the end from Envoy (`hold_id` in the rule, `apply_on_stream_done` in Envoy)",
        ),
        (
            "domain: d\ndescriptors: [{key: a, ratelimit: {}}]",
            "2:24: unknown field `ratelimit` in a descriptor: did you mean `rate_limit`?",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {requests_per_unit: 1}}]",
            "2:36: missing field `unit` in rate_limit: expected `second`, `minute`, `hour`, `day`, `week`, `month` or `year`",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: minutes}}]",
            "2:43: unknown unit `minutes`: did you mean `minute`?",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: fortnight}}]",
            "2:43: unknown unit `fortnight`: expected `second`, `minute`, `hour`, `day`, `week`, `month` or `year`",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: -1}}]",
            "2:67: invalid requests_per_unit `-1`: expected a whole number from 0 to 4294967295",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, unlimited: true}}]",
            "2:43: invalid `unit` beside `unlimited`: expected one of them",
        ),
        (
            "domain: d\ndescriptors: [{key: a, value: b, share_threshold: true}]",
            "2:34: invalid share_threshold `true`: expected a `value` with `*` beside it",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, name: x, replaces: [{name: x}]}}]",
            "2:68: invalid name `x` in replaces: expected the name of another limit",
        ),
        // Tests.
        (
            "tests: [{request: {}}]",
            "1:9: missing field `name` in a test: expected a string that describes the test",
        ),
        (
            "tests: [{name: x}]",
            "1:9: missing request of a test: expected `request`, or `domain` and `descriptors`",
        ),
        (
            "tests: [{name: x, request: {}, expect: 200}]",
            "1:40: invalid expect `200`: expected `allow` or `deny`",
        ),
        (
            "tests: [{name: x, request: {client: me}}]",
            "1:37: invalid client `me`: expected an address such as `203.0.113.7`",
        ),
        (
            "tests: [{name: x, request: {}, steps: [{at: soon}]}]",
            "1:45: invalid at `soon`: expected a duration such as `250ms`, `90s`, `1m30s` or `2h`",
        ),
        (
            "tests: [{name: x, request: {}, steps: [{at: 2s}, {at: 1s}]}]",
            "1:55: invalid at `1s`: expected a time not before that of the step above",
        ),
        (
            "tests: [{name: x, request: {}, steps: [{times: 0}]}]",
            "1:48: invalid times `0`: expected a whole number from 1 to 4294967295",
        ),
    ] {
        let error = RuleSet::parse(text, Format::Yaml).map(|_| ()).unwrap_err();
        let (line, rest) = expected.split_once(':').unwrap();
        let (column, message) = rest.split_once(": ").unwrap();
        let expected = format!("line {line}, column {column}: {message}");
        let fits = error.to_string() == expected;
        if !fits || !error.excerpt.contains('^') {
            wrong.push(format!("{text}\n  found    {error}\n  expected {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (text, format) in [("", Format::Yaml), ("# none\n", Format::Yaml), ("\n", Format::Toml)] {
        assert_eq!(
            RuleSet::parse(text, format).unwrap_err().to_string(),
            "line 1, column 1: empty rules file: expected rules; use `rules: []` for none"
        );
    }
    let toml = "[[rules]]\nname = 'a'\npolicy = \"gcra:1/0s\"\n";
    let error = RuleSet::parse(toml, Format::Toml).unwrap_err();
    assert_eq!(error.to_string(), "line 3, column 18: invalid period `0s`: expected 1ms to 366d");
    assert_eq!(error.excerpt, "3 | policy = \"gcra:1/0s\"\n  |                  ^\n");
    let error = RuleSet::parse("a = ", Format::Toml).unwrap_err();
    assert!(error.to_string().starts_with("line 1, column 5: invalid TOML: "), "{error}");
}
