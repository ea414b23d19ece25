//! Query parameters.

use std::{borrow::Cow, cell::OnceCell};

use ahash::AHashMap;
use sluicegate_headers::unescaped;

/// A query, parsed when a rule first needs one of its parameters, and only once: a client chooses their number, and
/// rules look up many names in each reading of the target.
pub(crate) struct Query<'r> {
    text: Cow<'r, str>,
    parameters: OnceCell<Parameters>,
}

/// Values by name, both decoded; those of one name in the order of the query.
type Parameters = AHashMap<Vec<u8>, Vec<Vec<u8>>>;

impl<'r> Query<'r> {
    pub(crate) const fn new(text: Cow<'r, str>) -> Self {
        Self { text, parameters: OnceCell::new() }
    }

    /// The query as sent.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The first value of the parameter `name`, decoded.
    pub(crate) fn value(&self, name: &str) -> Option<&[u8]> {
        self.values(name).next()
    }

    /// Whether the parameter `name` has different values.
    pub(crate) fn is_ambiguous(&self, name: &str) -> bool {
        let mut values = self.values(name);
        values.next().is_some_and(|first| values.any(|value| value != first))
    }

    fn values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        let values = self.parameters.get_or_init(|| parameters(&self.text)).get(name.as_bytes());
        values.into_iter().flatten().map(|value| &**value).inspect(|_| work::add(1))
    }
}

fn parameters(query: &str) -> Parameters {
    work::add(query.len());
    let mut all = Parameters::new();
    let mut add = |name: Vec<u8>, value| {
        // A rule cannot have an empty parameter name.
        if !name.is_empty() {
            all.entry(name).or_default().push(decoded(value));
        }
    };
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        add(decoded(name), value);
        // A rule may spell the name of the parameter as clients do.
        if name.contains(['%', '+']) {
            add(name.into(), value);
        }
    }
    all
}

/// A part of a query, decoded: `+` is a blank, `%` escapes are bytes.
fn decoded(text: &str) -> Vec<u8> {
    let decoded = unescaped(text.as_bytes()).map(|byte| match byte {
        (b'+', false) => b' ',
        (byte, _) => byte,
    });
    decoded.collect()
}

/// Counts bytes parsed or escaped and parameters compared, in tests.
pub(crate) mod work {
    #[cfg(test)]
    thread_local!(pub(crate) static DONE: std::cell::Cell<usize> = const { std::cell::Cell::new(0) });

    #[cfg(test)]
    pub(crate) fn add(work: usize) {
        DONE.set(DONE.get() + work);
    }

    #[cfg(not(test))]
    pub(crate) const fn add(_: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, Request, RuleSet};

    fn values(query: &str, name: &str) -> Vec<String> {
        let query = Query::new(query.into());
        query.values(name).map(|it| String::from_utf8_lossy(it).into_owned()).collect()
    }

    #[test]
    fn values_are_decoded_in_query_order() {
        for (query, name, expected) in [
            ("a=1&b=2&a=3", "a", &["1", "3"][..]),
            ("%61=1&a=2&%6=3", "a", &["1", "2"]),
            ("x=a+b%20c%2", "x", &["a b c%2"]),
            ("x=%&x=%zz&x=%%41", "x", &["%", "%zz", "%A"]),
            ("x&x=&x==", "x", &["", "", "="]),
            ("a+b=1&a%20b=2&a%2bb=3", "a b", &["1", "2"]),
            // The name as the client spells it.
            ("a+b=1&a%20b=2&a%2bb=3", "a+b", &["1", "3"]),
            ("100%=1&%3100%25=2", "100%", &["1", "1", "2"]),
            ("&&=1&", "a", &[]),
            ("", "a", &[]),
        ] {
            assert_eq!(values(query, name), expected, "{query} {name}");
        }
    }

    /// Rules that use 17 parameters read a query of 30 KB once, and not once for each of them and each
    /// reading of the path.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the slowest is printed")]
    fn hostile_query_is_parsed_once() {
        let own = |at: usize| {
            format!(
                "- {{name: r{at}, match: {{path: '/v1/**', query.p{at}: [a, b]}}, policy: 'gcra:1/1s'}}\n"
            )
        };
        let shared = |at: usize| format!("- {{name: s{at}, key: query.q, policy: 'gcra:1/1s'}}\n");
        let text: String = (0..16).map(|at| own(at) + &shared(at)).collect();
        let rules = RuleSet::parse(&format!("rules:\n{text}"), Format::Yaml).expect("rules");
        let odd = "//h/v1/x%2f..%2fy/.\\..\\a//b/../z%5c..%252f..%252fq/%252e";
        let unique = (0..6000).map(|at| format!("{at:x}&")).collect::<String>();
        let long = format!("q={}", "|".repeat(29_000));
        let (mut most, mut slowest) = (0, std::time::Duration::ZERO);
        for path in ["/v1/a", odd] {
            for (piece, hash) in [
                ("%", ""),
                ("%&", ""),
                ("%a&", ""),
                ("x&", ""),
                ("&", ""),
                ("&", "#"),
                ("%7030=&", ""),
                ("p0=a&", ""),
                ("p0=a&", "#"),
                ("p%30=%61&", "#"),
                (&*unique, "#"),
                (&*long, "#"),
            ] {
                let query = piece.repeat(30_000 / piece.len());
                let target = format!("{path}?{query}{hash}");
                let before = work::DONE.get();
                let start = std::time::Instant::now();
                let request = Request::http("GET", &target, &());
                assert_eq!(rules.ambiguous(&request), None);
                let _ = rules.matches(&request);
                slowest = slowest.max(start.elapsed());
                most = most.max(work::DONE.get() - before);
            }
        }
        println!(
            "figure: 32 rules scan and escape at most {most} bytes of a query of 30 KB, in {slowest:?}"
        );
        assert!(most <= 120_000, "{most}");
    }
}
