//! Results of rules on the long values of one request, computed once for all rules.

use std::{cell::OnceCell, ptr};

use sluicegate_headers::PathOptions;

use crate::{escape::EscapedValues, query::work};

/// Long values of one request: of all readings of its target, which must exist as long as this does, because their
/// addresses identify them.
#[derive(Default)]
pub(crate) struct LongValues {
    pub(crate) escaped: EscapedValues,
    pub(crate) loose_paths: LoosePaths,
}

impl LongValues {
    /// The shortest value that is worth it.
    pub(crate) const MIN_LENGTH: usize = 256;
}

/// Paths without the differences that rules ignore, as a list that only grows.
#[derive(Default)]
pub(crate) struct LoosePaths(OnceCell<Box<LoosePath>>);

struct LoosePath {
    path: *const str,
    options: PathOptions,
    /// `None` where there are no such differences.
    loose: Option<Box<str>>,
    next: LoosePaths,
}

impl LoosePaths {
    /// As [`PathOptions::apply`], once for each path and options.
    pub(crate) fn get<'p>(&'p self, path: &'p str, options: PathOptions) -> &'p str {
        // To strip parameters takes longest, and comes first.
        let strip = PathOptions { strip_parameters: true, ..PathOptions::default() };
        let (path, options) = match options.strip_parameters && options != strip {
            true => (self.get(path, strip), PathOptions { strip_parameters: false, ..options }),
            false => (path, options),
        };
        if options.is_strict() {
            return path;
        }
        let mut list = self;
        loop {
            let known = list.0.get_or_init(|| Box::new(LoosePath::new(path, options)));
            if ptr::eq(known.path, path) && known.options == options {
                return known.loose.as_deref().unwrap_or(path);
            }
            list = &known.next;
        }
    }
}

impl LoosePath {
    fn new(path: &str, options: PathOptions) -> Self {
        work::add(path.len());
        let loose = options.apply(path);
        let loose = (loose != path).then(|| loose.into());
        Self { path, options, loose, next: LoosePaths::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, Request, RuleSet};

    #[test]
    fn get_equals_apply() {
        let paths = ["/Login/", "/a;X/b/", "/a/..;x/B//", "/;/", "/", "/plain", "/plain"];
        let paths = paths.map(ToOwned::to_owned);
        let known = LoosePaths::default();
        for _ in 0..2 {
            for (path, bits) in paths.iter().flat_map(|path| (0..8).map(move |bits| (path, bits))) {
                let options = PathOptions {
                    ignore_case: bits & 1 > 0,
                    ignore_trailing_slash: bits & 2 > 0,
                    strip_parameters: bits & 4 > 0,
                };
                assert_eq!(known.get(path, options), options.apply(path), "{path} {options:?}");
            }
        }
    }

    /// Rules that ignore differences between paths read a path of 8 KB once for each set of options, and not once for
    /// each rule.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the slowest is printed")]
    fn hostile_path_is_read_once_for_all_rules() {
        let rule = |at: usize| {
            let slash = ["", ", trailing-slash: ignore"][at % 2];
            let key = ["path", "path.a", "header.a?"][at % 3];
            format!(
                "- {{name: r{at}, match: {{path: {{matches: '/v1/{{a}}/**', case: insensitive, parameters: \
                 strip{slash}}}}}, key: {key}, policy: 'gcra:1/1s'}}\n"
            )
        };
        let text: String = (0..16).map(rule).collect();
        let rules = RuleSet::parse(&format!("rules:\n{text}"), Format::Yaml).expect("rules");
        let odd = "//h/v1/x%2f..%2fy/.\\..\\a//b/../z%5c..%252f..%252fq/%252e";
        let (mut most, mut slowest, mut count) = (0, std::time::Duration::ZERO, 0);
        for start in ["/v1/a/", odd] {
            for piece in ["A;b/", ";/", "a/..;/b/", "/", "A"] {
                let target = format!("{start}{}", piece.repeat(8_000 / piece.len()));
                let before = work::DONE.get();
                let begun = std::time::Instant::now();
                let request = Request::http("GET", &target, &());
                count += rules.matches(&request).len();
                slowest = slowest.max(begun.elapsed());
                most = most.max(work::DONE.get() - before);
            }
        }
        println!(
            "figure: 16 rules that ignore differences between paths read and escape at most {most} bytes of a \
             path of 8 KB, in {slowest:?}"
        );
        assert!(count > 16, "rules apply");
        assert!(most <= 16 * 3 * 8_200, "{most}");
    }
}
