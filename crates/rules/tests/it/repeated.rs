//! Headers and parameters that come several times (L13).

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
fn ambiguous_values_that_rules_use_are_found() {
    let rules = rules(RULES);
    for (target, headers, expected) in [
        ("/?user=1", &[("x-plan", "free"), ("x-user", "7")][..], None),
        // Once more with the same value says nothing else.
        ("/?user=1&user=1", &[("x-plan", "free"), ("X-Plan", "free")], None),
        ("/?user=a&us%65r=%61", &[], None),
        // Others than rules ask for may come as often as they like.
        ("/?users=1&users=2&x=&x=1", &[("accept", "a"), ("accept", "b")], None),
        ("/", &[("x-plan", "free"), ("X-PLAN", "gold")], Some("header.x-plan")),
        ("/", &[("x-user", "7"), ("x-user", "")], Some("header.x-user")),
        ("/", &[("x-cost", "7"), ("x-cost", "1"), ("x-cost", "7")], Some("header.x-cost")),
        ("/?user=1&user=2", &[], Some("query.user")),
        ("/?user=1&us%65r=2", &[], Some("query.user")),
        ("/?user&user=2", &[], Some("query.user")),
        // One server ends the query at `#`, another one does not.
        ("/?user=1#&user=2", &[], Some("query.user")),
    ] {
        let headers = headers.to_vec();
        let request = Request::http("GET", target, &headers);
        let found = rules.ambiguous(&request).map(ToString::to_string);
        assert_eq!(found.as_deref(), expected, "{target} {headers:?}");
    }
    assert_eq!(rules.run_example(&rules.examples()[0]), [""; 0]);
}
