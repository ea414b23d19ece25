//! Checks of any bytes as a rules file. The fuzz target runs them, and so do tests.

use sluicegate_rules::{Descriptor, Format, Request, RuleSet};

/// Any bytes as a rules file are an error with a position, or rules that match requests without a panic.
///
/// # Panics
/// If that does not hold.
pub(crate) fn check_rules(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for format in [Format::Yaml, Format::Toml] {
        match RuleSet::parse(text, format) {
            Ok(rules) => exercise(&rules),
            Err(error) => {
                assert!(!error.message.is_empty());
                // A lone carriage return ends a line in YAML.
                let ends = text.bytes().filter(|byte| matches!(byte, b'\n' | b'\r')).count();
                assert!(error.at.line <= ends + 1, "{error}");
            }
        }
    }
}

/// Matches requests that most rules use attributes of.
fn exercise(rules: &RuleSet) {
    let headers = [("x-plan", "gold"), ("x-tenant", "acme"), ("x-user", "7"), ("x-tokens", "3")];
    for target in [
        "/",
        "/login",
        "/v1/items/7?page=2&mode=fast",
        "/users/7/orders",
        "//a/../%zz",
        "/LOGIN;x/",
        "http://h/x%2f..\\..%2flogin#?page=1&page=2",
    ] {
        let request = Request::http("POST", target, &headers).from([203, 0, 113, 7].into());
        let _ = rules.ambiguous(&request);
        let _ = rules.matches(&request);
    }
    let entries = [("plan", "gold"), ("user", "bob"), ("path", "/files/a")];
    let descriptors = [1, 2, 3].map(|count| Descriptor { entries: &entries[..count], limit: None });
    for domain in ["web", "", "mongo"] {
        let _ = rules.descriptors(domain, &descriptors);
    }
    for example in rules.examples() {
        if example.requests() <= 100 {
            let _ = rules.run_example(example);
        }
    }
}
