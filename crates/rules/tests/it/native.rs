//! Sluicegate's own format.

use sluicegate_core::OnError;
use sluicegate_rules::{Format, Request, RuleSet, RulesSource};

use super::{charges, descriptors, get, rules};

#[test]
fn matches_compares_method_path_header_query_client_and_descriptor() {
    let rules = rules(
        "
policies: {few: 'gcra:1/1s', some: 'gcra:2/1s'}
rules:
  - {name: method, match: {method: [post, PUT]}, policy: few}
  - {name: path, match: {path: '/v1/**'}, policy: few}
  - {name: header, match: {header.X-Plan: gold}, policy: some}
  - {name: nested, match: {header: {x-plan: 'g*'}}, policy: some}
  - {name: query, match: {query.mode: [fast, 'a b']}, policy: some}
  - {name: client, match: {client: [10.0.0.0/8, '2001:db8::/32']}, policy: '@few'}
  - {name: entry, match: {descriptor.plan: gold}, policy: few}
",
    );
    let all = |matches: Vec<String>| -> Vec<String> {
        matches.iter().map(|it| it.split(' ').next().unwrap().to_owned()).collect()
    };
    assert_eq!(all(get(&rules, "/v1", &[], "192.0.2.1")), ["path"]);
    assert_eq!(all(get(&rules, "/V1", &[], "192.0.2.1")), [""; 0]);
    assert_eq!(all(get(&rules, "/", &[("x-PLAN", "gold")], "192.0.2.1")), ["header", "nested"]);
    assert_eq!(all(get(&rules, "/", &[("x-plan", "green")], "192.0.2.1")), ["nested"]);
    assert_eq!(all(get(&rules, "/?mode=fast", &[], "192.0.2.1")), ["query"]);
    assert_eq!(all(get(&rules, "/?x&mode=a+b#mode", &[], "192.0.2.1")), ["query"]);
    assert_eq!(all(get(&rules, "/?mode=slow&mode=fast", &[], "192.0.2.1")), [""; 0]);
    assert_eq!(all(get(&rules, "/", &[], "::ffff:10.1.2.3")), ["client"]);
    assert_eq!(all(get(&rules, "/", &[], "2001:db8:1::2")), ["client"]);
    assert_eq!(
        charges(&rules.matches(&Request::http("PUT", "/", &()))),
        ["method rule:method gcra:1/1s"]
    );
    let found = descriptors(&rules, "web", &[&[("plan", "gold")], &[("plan", "free")]]);
    assert_eq!(found, [vec!["entry rule:entry gcra:1/1s".to_owned()], vec![]]);
}

#[test]
fn match_is_not_and_present_change_the_meaning_of_values() {
    let rules = rules(
        r"
rules:
  - {name: not, match: {header.a: {not: [x, 'y*']}}, policy: 'gcra:1/1s'}
  - {name: star, match: {header.b: {is: '*'}}, policy: 'gcra:1/1s'}
  - {name: escaped, match: {header.b: '\*'}, policy: 'gcra:1/1s'}
  - {name: there, match: {header.c: {present: true}}, policy: 'gcra:1/1s'}
  - {name: absent, match: {header.d: {present: false}}, policy: 'gcra:1/1s'}
",
    );
    let names = |headers: &[(&str, &str)]| {
        let found = get(&rules, "/", headers, "192.0.2.1");
        found.iter().map(|it| it.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), ["not", "absent"]);
    assert_eq!(names(&[("a", "x"), ("d", "")]), [""; 0]);
    assert_eq!(names(&[("a", "yes"), ("d", "")]), [""; 0]);
    assert_eq!(
        names(&[("a", "z"), ("b", "*"), ("c", ""), ("d", "1")]),
        ["not", "star", "escaped", "there"]
    );
    assert_eq!(names(&[("a", "x"), ("b", "1"), ("d", "1")]), [""; 0]);
}

#[test]
fn key_is_built_from_its_parts() {
    let rules = rules(
        "
rules:
  - name: a
    match: {path: '/t/{tenant}/**'}
    key: [path.tenant, method, client/24, header.x-user?, query.q?]
    policy: gcra:1/1s
  - {name: needs, key: header.x-user, policy: 'gcra:1/1s'}
",
    );
    assert_eq!(
        get(&rules, "/t/a|b/x?q=%7B1", &[("x-user", "u 1")], "203.0.113.7"),
        [
            "a rule:a|a%7Cb|GET|203.0.113.0/24|u%201|%7B1 gcra:1/1s",
            "needs rule:needs|u%201 gcra:1/1s"
        ]
    );
    // A rule does not apply to a request without a part of its key.
    assert_eq!(
        get(&rules, "/t/a", &[], "203.0.113.7"),
        ["a rule:a|a|GET|203.0.113.0/24|%|% gcra:1/1s"]
    );
}

#[test]
fn state_default_is_the_name_of_the_rule() {
    let rules = rules(
        "
rules:
  - {name: a, key: client, policy: 'gcra:1/1s'}
  - {name: b, key: client, policy: 'gcra:1/1s'}
  - {name: c, state: a, key: client, policy: 'gcra:1/1s'}
",
    );
    assert_eq!(
        get(&rules, "/", &[], "192.0.2.1"),
        [
            "a rule:a|192.0.2.1 gcra:1/1s",
            "b rule:b|192.0.2.1 gcra:1/1s",
            "c rule:a|192.0.2.1 gcra:1/1s"
        ]
    );
}

#[test]
fn overrides_change_settings_and_keep_the_key() {
    let rules = rules(
        "
policies: {gold: 'gcra:100/1s'}
rules:
  - name: api
    key: header.x-user
    policy: gcra:10/1s
    overrides:
      - {match: {header.x-user: root}, unlimited: true}
      - by: header.x-plan
        values:
          gold: gold
          'test*': {policy: 'gcra:1/1s', shadow: true, cost: 3, on_error: deny}
          banned: block
          staff: unlimited
      - {match: {client: 10.0.0.0/8}, policy: 'gcra:50/1s'}
",
    );
    let with = |plan: &str, client: &str| {
        get(&rules, "/", &[("x-user", "u"), ("x-plan", plan)], client).join(" + ")
    };
    assert_eq!(with("free", "192.0.2.1"), "api rule:api|u gcra:10/1s");
    assert_eq!(with("gold", "192.0.2.1"), "api rule:api|u gcra:100/1s");
    assert_eq!(with("test7", "192.0.2.1"), "shadow api rule:api|u gcra:1/1s");
    assert_eq!(with("banned", "192.0.2.1"), "api Block");
    assert_eq!(with("staff", "10.0.0.1"), "api Unlimited");
    assert_eq!(with("free", "10.0.0.1"), "api rule:api|u gcra:50/1s");
    assert_eq!(with("gold", "10.0.0.1"), "api rule:api|u gcra:100/1s");
    assert_eq!(
        get(&rules, "/", &[("x-user", "root"), ("x-plan", "banned")], "10.0.0.1"),
        ["api Unlimited"]
    );

    let headers = [("x-user", "u"), ("x-plan", "test")];
    let request = Request::http("GET", "/", &headers);
    let found = rules.matches(&request);
    assert_eq!((found[0].cost, found[0].on_error), (3, Some(OnError::Deny)));
}

#[test]
fn levels_have_keys_in_one_cluster_slot() {
    let text = "
rules:
  - name: api
    levels:
      - {name: user, key: [header.t, header.u], policy: 'gcra:1/1s'}
      - name: tenant
        key: header.t
        policy: gcra:10/1s
        overrides: [{by: header.t, values: {big: 'gcra:20/1s', own: unlimited}}]
";
    let both = rules(text);
    let headers = [("t", "acme"), ("u", "7")];
    assert_eq!(
        get(&both, "/", &headers, "192.0.2.1"),
        ["api {rule:api|acme}:user|7 gcra:1/1s", "api {rule:api|acme}:tenant gcra:10/1s"]
    );
    let spread = rules(&text.replace("    levels", "    spread: true\n    levels"));
    assert_eq!(
        get(&spread, "/", &headers, "192.0.2.1"),
        ["api rule:api:user|acme|7 gcra:1/1s", "api rule:api:tenant|acme gcra:10/1s"]
    );
    assert_eq!(
        get(&both, "/", &[("t", "big"), ("u", "7")], "192.0.2.1")[1],
        "api {rule:api|big}:tenant gcra:20/1s"
    );
    assert_eq!(
        get(&both, "/", &[("t", "own"), ("u", "7")], "192.0.2.1"),
        ["api {rule:api|own}:user|7 gcra:1/1s"]
    );
    assert_eq!(get(&both, "/", &[("t", "acme")], "192.0.2.1"), [""; 0]);
}

#[test]
fn stop_hides_later_rules() {
    let rules = rules(
        "
rules:
  - {name: health, match: {path: /healthz}, unlimited: true}
  - {name: watched, match: {path: /watched}, block: true, shadow: true}
  - {name: banned, match: {client: 192.0.2.66}, block: true}
  - {name: login, match: {path: /login}, policy: 'gcra:1/1s', stop: true}
  - {name: all, policy: 'gcra:2/1s'}
",
    );
    assert_eq!(get(&rules, "/healthz", &[], "192.0.2.66"), ["health Unlimited"]);
    assert_eq!(get(&rules, "/", &[], "192.0.2.66"), ["banned Block"]);
    assert_eq!(get(&rules, "/login", &[], "192.0.2.1"), ["login rule:login gcra:1/1s"]);
    let watched = ["shadow watched Block", "all rule:all gcra:2/1s"];
    assert_eq!(get(&rules, "/watched", &[], "192.0.2.1"), watched);
}

#[test]
fn parse_toml_equals_yaml() {
    let text = r#"
[policies]
gold = "gcra:100/1s"

[[rules]]
name = "b"
match.path = "/b"
match.header.x-plan = ["gold", "g*"]
key = ["client"]
policy = "gold"

[[rules]]
name = "a"
cost = 2
policy = "gcra:1/1s"
"#;
    let rules = RuleSet::parse(text, Format::Toml).unwrap();
    let found = get(&rules, "/b", &[("x-plan", "gold")], "192.0.2.1");
    assert_eq!(found, ["b rule:b|192.0.2.1 gcra:100/1s", "a rule:a gcra:1/1s"]);
    assert_eq!(rules.rules()[0].line, 5);
}

#[test]
fn parse_aliases_and_merges_repeat_values() {
    let rules = rules(
        "
policies: {}
rules:
  - &base {name: a, match: &m {path: /a}, policy: 'gcra:1/1s', cost: 2}
  - {<<: *base, name: b, match: *m}
",
    );
    assert_eq!(get(&rules, "/a", &[], "192.0.2.1"), ["a rule:a gcra:1/1s", "b rule:b gcra:1/1s"]);
}

#[test]
fn check_several_files_are_one_set() {
    let sources = [
        ("rules: [{name: a, policy: gold}]", Format::Yaml),
        ("[policies]\ngold = 'gcra:7/1s'", Format::Toml),
        (
            "domain: web\ndescriptors: [{key: a, rate_limit: {unit: second, requests_per_unit: 1}}]",
            Format::Yaml,
        ),
    ]
    .map(|(text, format)| RulesSource { name: "", text, format });
    let rules = RuleSet::check(&sources).unwrap();
    assert_eq!(rules.policy("gold").unwrap().to_string(), "gcra:7/1s");
    assert_eq!(rules.policy_names(), ["gold"]);
    assert_eq!(get(&rules, "/", &[], "192.0.2.1"), ["a rule:a gcra:7/1s"]);
    assert_eq!(
        descriptors(&rules, "web", &[&[("a", "b")]]),
        [["web.a envoy:web|a=b fixed-window:1/1s:align=clock:count=all"]]
    );

    let errors = RuleSet::check(&[sources[0], sources[1], sources[1]]).unwrap_err();
    let errors: Vec<_> = errors.iter().map(|(index, error)| (*index, &*error.message)).collect();
    assert_eq!(errors, [(2, "duplicate policy `gold`: first defined in line 2 of another file")]);
}

#[test]
fn match_method_in_any_case_applies() {
    for value in ["get", "[Get, post]", "{is: get}", "{is: [get, POST]}", "{not: post}"] {
        let rules = rules(&format!(
            "rules: [{{name: a, match: {{method: {value}}}, policy: 'gcra:1/1s'}}]"
        ));
        for method in ["GET", "get"] {
            let found = rules.matches(&Request::http(method, "/", &())).len();
            assert_eq!(found, 1, "{value} {method}");
        }
    }
}

#[test]
fn parse_rule_field_without_effect_is_an_error() {
    let policy = "policy: 'gcra:1/1s'";
    let twice = |name: &str| format!("duplicate attribute `{name}` in `match`: expected it once");
    for (rule, expected) in [
        ("match: {header.X-Plan: a, header.x-plan: b}", twice("header.x-plan")),
        ("match: {header: {x-plan: a}, header.X-PLAN: {not: b}}", twice("header.x-plan")),
        ("match: {query: {q: a}, query.q: b}", twice("query.q")),
        ("overrides: {match: {header: {A: a, a: b}}, block: true}", twice("header.a")),
        (
            "overrides: {by: method, match: {}}",
            "invalid `by` beside `match`: expected one of them".to_owned(),
        ),
        (
            "overrides: {by: method}",
            "missing field `values` in an override: expected a map from values to policies"
                .to_owned(),
        ),
        ("spread: true", "invalid spread `true` without `levels`: expected both".to_owned()),
        (
            "match: {client: 10.0.0.0/+8}",
            "invalid client `10.0.0.0/+8`: expected an address or a network such as `10.0.0.0/8`"
                .to_owned(),
        ),
        (
            "key: client/+24",
            "invalid key part `client/+24`: expected at most 32 bits of IPv4 and 128 of IPv6, such as \
             `client/24/56`"
                .to_owned(),
        ),
    ] {
        let text = format!("rules:\n- {{name: a, {policy}, {rule}}}");
        let error = RuleSet::parse(&text, Format::Yaml).map(|_| ()).expect_err(rule);
        assert_eq!((error.at.line, error.message), (2, expected), "{rule}");
    }
}

#[test]
fn parse_toml_number_that_is_not_decimal_names_it() {
    for number in ["0x1F", "0o17", "0b1"] {
        let text = format!("[[rules]]\nname = 'a'\ncost = {number}\npolicy = 'gcra:1/1s'");
        let error = RuleSet::parse(&text, Format::Toml).map(|_| ()).expect_err(number);
        let expected = format!("invalid number `{number}`: expected decimal digits");
        assert_eq!((error.at.line, error.message), (3, expected));
    }
}

#[test]
fn check_config_map_duplicate_field_names_lines_of_the_manifest() {
    let map = "apiVersion: v1\nkind: ConfigMap\ndata:\n  a.yaml: |\n    rules: []\n    rules: []";
    let error = RuleSet::parse(map, Format::Yaml).map(|_| ()).unwrap_err();
    let expected = "line 6, column 5: duplicate field `rules`: first given in line 5";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn leases_are_those_of_the_rule_or_of_the_named_policy() {
    let rules = rules(
        "
policies:
  few: {policy: 'gcra:1/1s', lease: 8}
  many: gcra:9/1s
rules:
  - {name: named, policy: few}
  - {name: own, policy: few, lease: 16}
  - {name: none, policy: few, lease: 0}
  - {name: plain, policy: 'gcra:1/1s'}
  - {name: levels, levels: [{name: a, policy: many, lease: 32}, {name: b, policy: many}]}
  - {name: over, policy: many, overrides: {match: {method: GET}, policy: few, lease: 64}}
",
    );
    let matches = rules.matches(&Request::http("GET", "/", &()));
    let leases: Vec<_> = matches
        .iter()
        .flat_map(|found| &found.charges)
        .map(|charge| rules.lease_at(charge.index.unwrap()))
        .collect();
    assert_eq!(leases, [8, 16, 1, 0, 32, 0, 64]);
    assert_eq!((rules.lease("few"), rules.lease("many"), rules.lease("none")), (8, 0, 0));
    let described: Vec<_> = rules.described().collect();
    assert!(
        described[1].lines.contains(&("policy", "gcra:1/1s, in leases of up to 16".to_owned()))
    );
}
