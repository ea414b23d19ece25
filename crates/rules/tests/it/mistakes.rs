//! Mistakes in rules files, each with its whole error: it names the value and what is expected.

use sluicegate_rules::{Format, RuleSet};

fn error(text: &str) -> String {
    RuleSet::parse(text, Format::Yaml)
        .map(|_| "no error".to_owned())
        .unwrap_or_else(|error| error.to_string())
}

#[test]
fn yaml_syntax_mistake_names_the_correction() {
    for (text, expected) in [
        (
            "rules:\n  - name: a\n    policy: @gold\n",
            "line 3, column 13: invalid value `@gold`: expected it in quotes, because YAML gives `@` at its beginning a meaning",
        ),
        (
            "rules:\n  - {name: a, policy: @gold}\n",
            "line 2, column 23: invalid value `@gold`: expected it in quotes, because YAML gives `@` at its beginning a meaning",
        ),
        (
            "rules:\n  - name: \"a\u{1b}b\"\n    policy: gcra:1/1m\n",
            "line 2, column 13: invalid character `\\u{1b}`: expected its escape in double quotes",
        ),
        (
            "rules:\n  - name: a\n    policy: \"\u{202e}gold\"\n",
            "line 3, column 13: unknown policy `\\u{202e}gold`: expected a policy such as `gcra:30/1m`",
        ),
        (
            "rules:\n  - name: \"a\\u001bb\"\n    policy: gcra:1/1m\n",
            "line 2, column 11: invalid rule name `a\\u{1b}b`: expected 1 to 64 letters, digits, `-` and `_`",
        ),
        (
            "rules:\n  - name: a\n    policy: `gcra:1/1s`\n",
            "line 3, column 13: invalid value ``gcra:1/1s``: expected it in quotes, because YAML gives ``` at its beginning a meaning",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    value: *\n",
            "line 4, column 12: invalid value `*`: expected it in quotes, because YAML gives `*` at its beginning a meaning",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    value: *.example # all\n",
            "line 4, column 12: invalid value `*.example`: expected it in quotes, because YAML gives `*` at its beginning a meaning",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    value: *foo\n",
            "line 4, column 12: invalid value `*foo`: expected it in quotes, because YAML gives `*` at its beginning a meaning",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    value: &x\n    rate_limit: {unit: day, requests_per_unit: 1}\n",
            "line 4, column 14: invalid value: expected one behind an anchor or a tag; a string that begins with `&` or `!` needs quotes",
        ),
        (
            "rules:\n  - name: a\n    match: {path: !/a}\n    policy: gcra:1/1s\n",
            "line 3, column 22: invalid value: expected one behind an anchor or a tag; a string that begins with `&` or `!` needs quotes",
        ),
        (
            "rules:\n  - name: a\n    policy: gcra: 1/1s\n",
            "line 3, column 13: invalid value `gcra: 1/1s`: expected no space after `:`, or quotes around the value",
        ),
        ("rules\n  - name: a\n", "line 1, column 6: missing `:` after `rules`"),
        (
            "rules:\n  - name a\n    policy: gcra:1/1s\n",
            "line 2, column 11: missing `:` after `name a`",
        ),
        (
            "rules:\n  - name: a\n    policy gcra:1/1s\n    key: client\n",
            "line 3, column 5: missing `:` after the name of a field in `policy gcra:1/1s`",
        ),
        (
            "rules:\n- name:a\n",
            "line 2, column 3: invalid rule: expected a map with a space after `:`, found `name:a`",
        ),
        (
            "rules:\n  - name: a\n\tpolicy: gcra:1/1s\n",
            "line 3, column 1: invalid indentation: expected spaces, found a tab",
        ),
        (
            "rules:\n\t- name: a\n",
            "line 2, column 1: invalid indentation: expected spaces, found a tab",
        ),
        (
            "rules:\n  - name: a\n   policy: gcra:1/1s\n",
            "line 3, column 4: invalid indentation: expected that of a line above",
        ),
        (
            "rules:\n- name: a\n  policy: gcra:1/1s\n - name: b\n",
            "line 4, column 2: invalid indentation: expected that of a line above",
        ),
        (
            "rules:\n- {name: a\n  policy: gcra:1/1s}\n",
            "line 3, column 9: missing `}` of a map: expected it, or a comma, before this",
        ),
        (
            "rules: [{name: a}\n  {name: b}]\n",
            "line 2, column 3: missing `]` of a list: expected it, or a comma, before this",
        ),
        (
            "rules:\n  - name: a\n      policy: gcra:1/1s\n",
            "line 3, column 13: invalid indentation: expected that of a line above",
        ),
        (
            "domain: d\ndescriptors:\n  - key: \"a\n    value: b\n",
            "line 4, column 5: missing closing quote: expected it before this line",
        ),
        (
            "domain: d\ndescriptors:\n  - key: \"a\" b\n",
            "line 3, column 14: invalid text after a closing quote: expected the end of the value",
        ),
    ] {
        assert_eq!(error(text), expected, "{text}");
    }
}

#[test]
fn value_mistake_names_the_correction() {
    let rule = |fields: &str| format!("rules:\n- {{name: a, policy: 'gcra:1/1s', {fields}}}\n");
    let descriptor = |fields: &str| format!("domain: d\ndescriptors:\n- {{key: a, {fields}}}\n");
    for (text, expected) in [
        (
            rule("match: {path: ^/login$}"),
            "invalid path `^/login$`: expected a path with wildcards such as `/login/*`, not a regular expression",
        ),
        (rule("cost: '2'"), "invalid cost `2`: expected it without quotes"),
        (
            descriptor("rate_limit: {unit: day, requests_per_unit: '10'}"),
            "invalid requests_per_unit `10`: expected it without quotes",
        ),
        (
            descriptor("rate_limit: {unit: day, requests_per_unit: ten}"),
            "invalid requests_per_unit `ten`: expected a whole number from 0 to 4294967295",
        ),
        (descriptor("shadow_mode: 'yes'"), "invalid shadow_mode `yes`: expected it without quotes"),
        (
            descriptor("rate_limit: {unit: day, requests_per_unit: 1, shadow_mode: true}"),
            "unknown field `shadow_mode` in rate_limit: expected it beside `rate_limit`",
        ),
        (
            descriptor("name: x"),
            "unknown field `name` in a descriptor: expected it in `rate_limit`",
        ),
        (
            descriptor("requests_per_unit: 1"),
            "unknown field `requests_per_unit` in a descriptor: expected it in `rate_limit`",
        ),
        (
            "domain: d\ndescriptors:\n- key: a\n- key: a\n".to_owned(),
            "duplicate descriptor `d.a`: first defined in line 3",
        ),
        (
            "domain: d\ndescriptors:\n- {key: a, value: x*}\n- {key: a, value: x*}\n".to_owned(),
            "duplicate descriptor `d.a_x*`: first defined in line 3",
        ),
        (
            "rules: []\n---\nrules: []\n".to_owned(),
            "invalid second document: expected one document in a file",
        ),
        (
            "apiVersion: apps/v1\nkind: Deployment\n---\napiVersion: v1\nkind: ConfigMap\ndata: {}\n"
                .to_owned(),
            "invalid second document: expected one document in a file; keep only the ConfigMap, which begins in line 4",
        ),
    ] {
        let error = error(&text);
        let (place, message) = error.split_once(": ").unwrap();
        assert!(place.starts_with("line ") && message == expected, "{text}\n{error}");
    }
}

#[test]
fn empty_document_beside_the_rules_is_ignored() {
    for text in ["rules: []\n---\n", "---\nrules: []\n---\n# end\n", "---\n---\nrules: []\n...\n"] {
        assert!(RuleSet::parse(text, Format::Yaml).is_ok(), "{text}");
    }
}
