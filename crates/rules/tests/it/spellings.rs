//! Spellings of one path: none escapes a rule, and none reaches the exemption of another path.

use sluicegate_rules::{Format, Request, RuleSet, Treatment};

use crate::{get, rules};

/// Spellings that nginx, Go, Python, Node or IIS deliver as `/login`.
const LOGIN: [&str; 39] = [
    "/login",
    "/login#x",
    "/login#",
    "/login?next=1",
    "/login#?next=1",
    "/%2flogin",
    "/%6Cogin",
    "/x%2f..%2flogin",
    "/x/..%2flogin",
    "/%2e/login",
    "/./login",
    "/x/../login",
    "/x/%2e%2e/login",
    "/../login",
    "//login",
    "///login",
    "//h/login",
    "http://h/login",
    "HTTP://h:80/login",
    "http://u@h/login?x",
    "http:/login",
    "http:login",
    "\\login",
    "/\\login",
    "/\\h/login",
    "/x\\..\\login",
    "/x%5c..%5clogin",
    "http:\\\\h\\login",
    "/%256cogin",
    "/x%252f..%252flogin",
    "/lo\tgin",
    "/lo\ngin",
    " /login",
    "/login%00",
    "/login%3fx",
    "/x//../../login",
    "/login/.",
    "/login/x/..",
    "/x#/../login",
];

const RULES: &str = "
rules:
  - {name: health, match: {path: [/health, /static/**]}, unlimited: true}
  - {name: login, match: {path: /login}, key: client, policy: 'fixed-window:2/1h', stop: true}
  - {name: rest, match: {path: {not: [/free, '/free/**']}}, key: client, policy: 'gcra:9/1s'}
  - {name: each, key: path, policy: 'gcra:9/1s'}
";

#[test]
fn path_any_spelling_is_under_the_rule() {
    let rules = rules(RULES);
    for target in LOGIN {
        let found = get(&rules, target, &[], "192.0.2.1");
        let login = "login rule:login|192.0.2.1 fixed-window:2/1h";
        assert_eq!(found.iter().filter(|it| *it == login).count(), 1, "{target}: {found:?}");
    }
}

#[test]
fn path_as_key_every_spelling_charges_the_key_of_the_path() {
    let rules = rules("rules: [{name: each, key: path, policy: 'gcra:9/1s'}]");
    for target in LOGIN {
        let found = get(&rules, target, &[], "192.0.2.1");
        let login = "each rule:each|/login gcra:9/1s".to_owned();
        assert!(found.contains(&login), "{target}: {found:?}");
        assert!(found.len() <= 12, "{target}: {found:?}");
    }
    // A spelling that all servers read alike has no other key.
    for target in ["/./login", "//login", "/%6cogin", "/x/../login", "http://h/login"] {
        let found = get(&rules, target, &[], "192.0.2.1");
        let others = found.iter().filter(|it| !it.contains("|/login "));
        // `//login` is the root of a host for Node's `new URL`.
        let others: Vec<_> = others.filter(|it| !it.contains("|/ ")).collect();
        assert!(others.is_empty(), "{target}: {found:?}");
    }
}

#[test]
fn exemption_spelling_of_another_path_does_not_reach_it() {
    let rules = rules(RULES);
    for target in ["/health", "/health?x", "/static/a", "/static/a/%62", "http://h/health"] {
        assert_eq!(get(&rules, target, &[], "192.0.2.1"), ["health Unlimited"], "{target}");
    }
    for target in ["/free", "/free/x"] {
        let found = get(&rules, target, &[], "192.0.2.1");
        assert!(!found.iter().any(|it| it.starts_with("rest ")), "{target}: {found:?}");
    }
    // Some server reads each of these as another path.
    for target in [
        "/static/..%2flogin",
        "/static/..%5clogin",
        "/static\\..\\login",
        "/static/%252e%252e/login",
        "/health#/../login",
        "/static/#/../../login",
        "//health",
        "//static/a",
        "/x/../health",
        "/health%2f..%2fother",
        "/hea\tlth",
        "/free#/../x",
        "/free/..%2fx",
        "//free",
    ] {
        let matches = rules.matches(&Request::http("GET", target, &()).from([192, 0, 2, 1].into()));
        let limited = matches.iter().any(|it| it.treatment == Treatment::Limit);
        let by_rest = matches.iter().any(|it| ["rest", "login"].contains(&it.rule.name()));
        assert!(limited && by_rest, "{target}: {matches:?}");
    }
}

#[test]
fn method_any_case_is_the_method() {
    let rules =
        rules("rules: [{name: a, match: {method: post}, key: method, policy: 'gcra:9/1s'}]");
    for method in ["POST", "post", "Post"] {
        let found = rules.matches(&Request::http(method, "/", &()));
        assert_eq!(found[0].charges[0].key, b"rule:a|POST", "{method}");
    }
}

#[test]
fn path_strict_distinguishes_case_slash_and_parameters() {
    let text = |options: &str| {
        format!(
            "rules: [{{name: login, match: {{path: {{matches: [/login, '/u/{{id}}/*.Json']{options}}}}}, \
             key: [client, path], policy: 'fixed-window:2/1h'}}]"
        )
    };
    let distinct = ["/LOGIN", "/login/", "/login;x", "/login;jsessionid=1/", "/x/..;/login"];
    let loose = ", case: insensitive, trailing-slash: ignore, parameters: strip";
    let (strict, loose) = (rules(&text("")), rules(&text(loose)));
    let key = "login rule:login|192.0.2.1|/login fixed-window:2/1h";
    for target in distinct {
        assert_eq!(get(&strict, target, &[], "192.0.2.1"), [""; 0], "{target}");
        assert_eq!(get(&loose, target, &[], "192.0.2.1"), [key], "{target}");
    }
    for (option, covered) in [
        (", case: insensitive", &distinct[..1]),
        (", trailing-slash: ignore", &distinct[1..2]),
        (", parameters: strip", &distinct[2..3]),
        (", case: sensitive, trailing-slash: strict, parameters: keep", &[]),
    ] {
        let rules = rules(&text(option));
        for target in &distinct[..3] {
            let found = get(&rules, target, &[], "192.0.2.1");
            assert_eq!(found.len(), usize::from(covered.contains(target)), "{option} {target}");
        }
    }
    for rules in [&strict, &loose] {
        assert_eq!(get(rules, "/login", &[], "192.0.2.1"), [key]);
        assert_eq!(get(rules, "/LOGINS", &[], "192.0.2.1"), [""; 0]);
    }
    assert_eq!(get(&strict, "/u/7/a.json", &[], "192.0.2.1"), [""; 0]);
    assert_eq!(get(&loose, "/U/7/A.JSON;x/", &[], "192.0.2.1").len(), 1);
}

#[test]
fn path_options_hold_for_captures_exact_values_and_negations() {
    let rules = rules(
        "
rules:
  - name: user
    match: {path: {matches: '/people/{id}', case: insensitive, trailing-slash: ignore}}
    key: path.id
    policy: gcra:9/1s
  - name: star
    match: {path: {is: '/a*', case: insensitive}}
    policy: gcra:9/1s
  - name: rest
    match: {path: {not: /Free, case: insensitive, trailing-slash: ignore}}
    policy: gcra:9/1s
",
    );
    let names = |target: &str| get(&rules, target, &[], "192.0.2.1");
    assert_eq!(names("/People/Bob/")[0], "user rule:user|bob gcra:9/1s");
    assert_eq!(names("/A*")[0], "star rule:star gcra:9/1s");
    assert_eq!(names("/ab"), ["rest rule:rest gcra:9/1s"]);
    assert_eq!(names("/FREE/"), [""; 0]);
}

#[test]
fn path_with_parameters_in_any_place_is_under_the_rule_that_strips_them() {
    let rules = rules(
        "
rules:
  - {name: login, match: {path: {is: /login, case: insensitive, trailing-slash: ignore, parameters: strip}},
     key: [client, path], policy: 'gcra:9/1s'}
  - {name: strict, match: {path: [/login, /login/]}, key: client, policy: 'gcra:9/1s'}
",
    );
    for target in [
        "/login/a%3b/..;",
        "/login/%3b/..;",
        "/login/%3bx/..;",
        "/login/%3b/%2e%2e;",
        "/LOGIN;/%3b/..;",
        "/login%2f%3b/..;",
        "/login/;/..;",
        "/login%5c%3b\\..;",
        "/x/;..%2f../login",
        "/x/..%2flogin;%2f..",
        "http://h/login/%3b/..;?a=b",
    ] {
        let found = get(&rules, target, &[], "192.0.2.1");
        let login = "login rule:login|192.0.2.1|/login gcra:9/1s";
        assert!(found.contains(&login.to_owned()), "{target}: {found:?}");
        assert!(
            !found.iter().any(|it| it.starts_with("login ") && it != login),
            "{target}: {found:?}"
        );
    }
}

/// The time for a hostile head of 32 KiB is about proportional to its length.
#[test]
fn path_long_and_hostile_has_few_matches() {
    let rules = rules(
        "
rules:
  - {name: a, match: {path: '/**/edit/**/x'}, key: path, policy: 'gcra:9/1s'}
  - {name: b, match: {path: {matches: '/**/e*t/**/*x*y*', case: insensitive, parameters: strip}}, policy: 'gcra:9/1s'}
  - {name: c, match: {path: {not: '/**/edit/edit/**/x'}}, policy: 'gcra:9/1s'}
",
    );
    for piece in [
        "/edit",
        "/EDIT;a",
        "%2fedit",
        "/edit\\..",
        "//edit/..//",
        "/%252e%252e/edit",
        "#/edit",
        "/x;\\%2f..%3b%5c%252f//.",
        "/x",
    ] {
        let target = format!("/{}", piece.repeat(32_768 / piece.len()));
        assert!(rules.matches(&Request::http("GET", &target, &())).len() <= 150, "{piece}");
    }
}

#[test]
fn path_options_invalid_are_errors() {
    for (path, expected) in [
        ("{is: /a, case: no}", "invalid case `no`: expected `sensitive` or `insensitive`"),
        (
            "{is: /a, slash: ignore}",
            "unknown field `slash` in a path: expected `is`, `matches`, `not`, `present`, ",
        ),
        ("{case: insensitive}", "invalid path: expected one of `is: PATH`"),
        ("{is: /a, matches: /a}", "invalid path: expected one of `is: PATH`"),
        ("{is: login}", "invalid path `login`: expected one that begins with `/`"),
        ("{is: //a}", "invalid path `//a`: expected `/a`, as servers read it"),
        (
            "{matches: '/a;b', parameters: strip}",
            "invalid path `/a;b` with `parameters: strip`: expected one without `;`",
        ),
    ] {
        let text = format!("rules: [{{name: a, match: {{path: {path}}}, block: true}}]");
        let error = RuleSet::parse(&text, Format::Yaml).map(|_| ()).unwrap_err();
        assert!(error.message.starts_with(expected), "{path}: {error}");
    }
    let toml = "
[[rules]]
name = 'a'
match.path = {is = '/Login', case = 'insensitive', trailing-slash = 'ignore', parameters = 'strip'}
block = true
";
    let rules = RuleSet::parse(toml, Format::Toml).unwrap();
    assert_eq!(get(&rules, "/login;x/", &[], "192.0.2.1"), ["a Block"]);
}

#[test]
fn described_security_rule_with_strict_path_has_a_warning() {
    let warnings = |rule: &str| {
        let rules = rules(&format!("rules: [{{name: a, policy: 'gcra:1/1s', {rule}}}]"));
        let described: Vec<_> = rules.described().collect();
        let lines = described[0].lines.iter().filter(|(label, _)| *label == "warning");
        lines.map(|(_, text)| text.clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        warnings("match: {path: /v1/login}"),
        [
            "paths with upper case, a slash at the end, ;parameters escape this rule, if the application \
          accepts them; add `case: insensitive`, `trailing-slash: ignore`, `parameters: strip` to \
          `path`"
        ]
    );
    let partly =
        warnings("match: {path: {is: /oauth/Token, case: insensitive, parameters: strip}}");
    assert_eq!(
        partly,
        ["paths with a slash at the end escape this rule, if the application accepts them; \
          add `trailing-slash: ignore` to `path`"]
    );
    let all = "case: insensitive, trailing-slash: ignore, parameters: strip";
    for quiet in [
        &format!("match: {{path: {{is: /password, {all}}}}}"),
        "match: {path: /health}",
        "match: {path: {not: /login}}",
        "match: {header.x-login: a}",
        "match: {header.x-plan: a}, overrides: {match: {client: 10.0.0.0/8}, unlimited: true}",
        "key: [client, path]",
    ] {
        assert_eq!(warnings(quiet), [""; 0], "{quiet}");
    }
}

#[test]
fn described_rule_that_trusts_headers_of_clients_has_warnings() {
    let warnings = |head: &str, rule: &str| {
        let rules = rules(&format!("{head}\nrules: [{{name: a, {rule}}}]"));
        let described: Vec<_> = rules.described().collect();
        let lines = described[0].lines.iter().filter(|(label, _)| *label == "warning");
        lines.map(|(_, text)| text.clone()).collect::<Vec<_>>()
    };
    let by_plan = "policy: 'gcra:1/1s', key: client, \
                   overrides: {by: header.x-plan, values: {internal: unlimited}}";
    let trust = "; if your proxy always sets or removes it, list it under `trusted_headers`";
    let unlimited = format!("any client can send header.x-plan and is then unlimited{trust}");
    assert_eq!(warnings("", by_plan).concat(), unlimited);
    assert_eq!(warnings("trusted_headers: [X-Plan]", by_plan), [""; 0]);
    assert_eq!(warnings("", "match: {path: /a, header.x-plan: b}, unlimited: true"), [unlimited]);
    let by_address = "match: {client: 10.0.0.0/8, header.x-plan: b}, unlimited: true";
    assert_eq!(warnings("", by_address), [""; 0]);
    let each = "any client gets a new limit with each value of";
    assert_eq!(
        warnings("", "policy: 'gcra:1/1s', key: header.x-customer"),
        [format!("{each} header.x-customer, and is not limited by this rule without it{trust}")]
    );
    assert_eq!(
        warnings("", "policy: 'gcra:1/1s', key: [client, query.user?]"),
        [format!("{each} query.user")]
    );
}
