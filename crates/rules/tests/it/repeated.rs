//! Headers and query parameters that occur several times.

use sluicegate_rules::Request;

use crate::rules;

const RULES: &str = "
rules:
  - {name: a, match: {header.x-plan: free}, key: query.user, policy: 'gcra:1/1s'}
  - {name: b, key: header.x-user, policy: 'gcra:1/1s', cost: header.x-cost}
tests:
  - {name: rejected, request: {path: '/?user=1&user=2'}, expect: deny}
";

#[test]
fn ambiguous_finds_values_that_rules_use() {
    let rules = rules(RULES);
    for (target, headers, expected) in [
        ("/?user=1", &[("x-plan", "free"), ("x-user", "7")][..], None),
        // Equal values are not ambiguous.
        ("/?user=1&user=1", &[("x-plan", "free"), ("X-Plan", "free")], None),
        ("/?user=a&us%65r=%61", &[], None),
        // Rules do not use this one.
        ("/?users=1&users=2&x=&x=1", &[("accept", "a"), ("accept", "b")], None),
        ("/", &[("x-plan", "free"), ("X-PLAN", "gold")], Some("header.x-plan")),
        ("/", &[("x-user", "7"), ("x-user", "")], Some("header.x-user")),
        ("/", &[("x-cost", "7"), ("x-cost", "1"), ("x-cost", "7")], Some("header.x-cost")),
        ("/?user=1&user=2", &[], Some("query.user")),
        ("/?user=1&us%65r=2", &[], Some("query.user")),
        ("/?user&user=2", &[], Some("query.user")),
        // Only some servers end the query at `#`.
        ("/?user=1#&user=2", &[], Some("query.user")),
    ] {
        let headers = headers.to_vec();
        let request = Request::http("GET", target, &headers);
        let found = rules.ambiguous(&request).map(ToString::to_string);
        assert_eq!(found.as_deref(), expected, "{target} {headers:?}");
    }
    assert_eq!(rules.run_example(&rules.examples()[0]), [""; 0]);
}
