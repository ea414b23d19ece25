//! Broken and hostile files.

use std::{env, fs, path::Path, process::Command, time::Instant};

use sluicegate_rules::{Descriptor, Format, RuleSet, RulesSource, Unit};

use crate::check::check_rules;

/// Number of mutations; `cargo xtask soak` sets more.
const MUTATIONS: &str = "SLUICEGATE_MUTATIONS";
/// Set in the process that measures the memory of mutated files.
const ALONE: &str = "SLUICEGATE_MUTATIONS_ALONE";

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/rules");
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// A random number generator with a fixed seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(most.max(1)).unwrap()).unwrap()
    }
}

/// Pieces with a meaning in rules files.
const PIECES: [&str; 24] = [
    "- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "*",
    "&a ",
    "*a",
    "<<: *a",
    "\n",
    "\n  ",
    "'",
    "\"",
    "|\n",
    ">-\n",
    "? ",
    "!!str ",
    "gcra:",
    "/1s",
    "4294967296",
    "---\n",
    "\u{0}",
    "#",
];

/// `seed` with a few random changes.
fn mutated(dice: &mut Dice, seed: &[u8], other: &[u8]) -> Vec<u8> {
    let mut data = seed.to_vec();
    for _ in 0..=dice.below(4) {
        let at = dice.below(data.len() + 1);
        let end = (at + dice.below(40)).min(data.len());
        match dice.below(7) {
            0 => drop(data.drain(at..end)),
            1 => data.splice(at..at, PIECES[dice.below(PIECES.len())].bytes()).for_each(drop),
            2 => {
                let copy = data[at..end].to_vec();
                let to = dice.below(data.len());
                data.splice(to..to, copy);
            }
            3 => {
                let from = dice.below(other.len());
                let piece = other[from..(from + 60).min(other.len())].to_vec();
                data.splice(at..at, piece);
            }
            4 if !data.is_empty() => {
                let at = dice.below(data.len());
                data[at] ^= u8::try_from(1 + dice.below(127)).unwrap();
            }
            5 => data.truncate(at),
            _ => {
                let piece = data[at..end].repeat(1 + dice.below(30));
                data.splice(at..end, piece);
            }
        }
    }
    data
}

#[cfg(target_os = "linux")]
fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[cfg(not(target_os = "linux"))]
fn peak_kib() -> u64 {
    0
}

/// In a process of its own, because the peak is that of all tests of a process.
#[test]
fn check_rules_mutated_file_takes_bounded_memory() {
    if env::var_os(ALONE).is_some() {
        return check_mutated_files();
    }
    let name = "hostile::check_rules_mutated_file_takes_bounded_memory";
    let mut alone = Command::new(env::current_exe().unwrap());
    let output = alone.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("mutations of rules files: no panic"), "{text}");
}

#[expect(clippy::disallowed_methods, reason = "the slowest is printed")]
fn check_mutated_files() {
    let count = env::var(MUTATIONS).map_or(3_000, |it| it.parse().unwrap());
    let corpus = corpus();
    assert!(corpus.len() >= 4);
    corpus.iter().for_each(|seed| check_rules(seed));
    let before = peak_kib();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut slowest = std::time::Duration::ZERO;
    for _ in 0..count {
        let (seed, other) = (&corpus[dice.below(corpus.len())], &corpus[dice.below(corpus.len())]);
        let data = mutated(&mut dice, seed, other);
        let start = Instant::now();
        check_rules(&data);
        slowest = slowest.max(start.elapsed());
    }
    let grown = peak_kib() - before;
    println!(
        "figure: {count} mutations of rules files: no panic, the slowest {slowest:?}, {} MiB at most",
        grown.div_ceil(1024)
    );
    assert!(grown <= 64 << 10, "{grown} KiB");
}

/// Asserts that a text is invalid, with an error that contains `expected`.
fn assert_invalid(text: &str, expected: &str) {
    let error = RuleSet::parse(text, Format::Yaml).map(|_| ()).unwrap_err();
    assert!(error.message.contains(expected), "{error}");
}

#[test]
fn parse_endless_aliases_is_an_error() {
    let mut laughs = String::from("a: &a [x, x, x, x, x, x, x, x, x, x]\n");
    let mut last = 'a';
    for name in 'b'..='z' {
        laughs += &format!("{name}: &{name} [{}]\n", vec![format!("*{last}"); 10].join(", "));
        last = name;
    }
    let before = peak_kib();
    assert_invalid(&laughs, "aliases included");
    println!(
        "figure: a billion laughs is an error, {} MiB at most",
        (peak_kib() - before).div_ceil(1024)
    );
    assert!(peak_kib() - before <= 64 << 10);
    assert_invalid("a: &a {b: *a}", "invalid alias");
}

#[test]
fn parse_too_deep_or_too_large_is_an_error() {
    assert_invalid(&"[".repeat(100_000), "");
    assert_invalid(&"- ".repeat(100_000), "");
    assert_invalid(&format!("a: {}1", "{b: ".repeat(60)), "");
    assert_invalid(&" ".repeat((16 << 20) + 1), "invalid rules file of ");
    let toml = format!("a = {}", "[".repeat(100_000));
    assert!(RuleSet::parse(&toml, Format::Toml).is_err());
    let dotted = format!("{}a = 1", "a.".repeat(100_000));
    assert!(RuleSet::parse(&dotted, Format::Toml).is_err());
}

/// A file whose aliases expand to 1.1 million values, more than half of the maximum.
fn laughs(indent: &str) -> String {
    let mut laughs = format!("{indent}a: &a [x, x, x, x, x, x, x, x, x, x]\n");
    for (name, last) in ('b'..='f').zip('a'..) {
        laughs +=
            &format!("{indent}{name}: &{name} [{}]\n", vec![format!("*{last}"); 10].join(", "));
    }
    laughs
}

#[test]
fn check_values_of_all_files_are_bounded_together() {
    let one = laughs("");
    let map = format!(
        "apiVersion: v1\nkind: ConfigMap\ndata:\n  a.yaml: |\n{0}  b.yaml: |\n{0}",
        laughs("    ")
    );
    let source = |text| RulesSource { name: "a.yaml", text, format: Format::Yaml };
    for (sources, expected) in [
        (vec![source(&one)], &[][..]),
        (vec![source(&one), source(&one)], &[(1, 6)]),
        (vec![source(&map)], &[(0, 17)]),
    ] {
        let errors = RuleSet::check(&sources).map(|_| ()).unwrap_err();
        let too_many = errors.iter().filter(|(_, error)| {
            error.message
                == "too many values: expected at most 2097152 in all files, aliases included"
        });
        let found: Vec<_> = too_many.map(|(source, error)| (*source, error.at.line)).collect();
        assert_eq!(found, expected);
    }
}

/// A search for each unknown name would take time that grows with their number times the number of policies.
#[test]
fn check_many_unknown_policies_only_the_first_are_compared_with_the_known() {
    let mut text = String::from("policies: {gold: 'gcra:1/1s'}\nrules:\n");
    for index in 0..100 {
        text += &format!("- {{name: r{index}, policy: glod}}\n");
    }
    let source = RulesSource { name: "a.yaml", text: &text, format: Format::Yaml };
    let errors = RuleSet::check(&[source]).map(|_| ()).unwrap_err();
    let texts: Vec<_> = errors.iter().map(|(_, error)| &*error.message).collect();
    let expected = [
        vec!["unknown policy `glod`: did you mean `gold`?"; 10],
        vec![
            "unknown policy `glod`: expected the name of a policy, or one such as `gcra:30/1m`";
            90
        ],
    ];
    assert_eq!(texts, expected.concat());
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the time is printed")]
fn parse_many_wildcard_descriptors_and_many_files_are_found() {
    let mut descriptors = String::from("domain: d\ndescriptors:\n");
    let mut files = String::from("apiVersion: v1\nkind: ConfigMap\ndata:\n");
    for index in 0..20_000 {
        descriptors += &format!(
            "- {{key: a, value: '{index}-*', rate_limit: {{unit: day, requests_per_unit: {index}}}}}\n"
        );
        files += &format!("  {index}.yaml: 'policies: {{p{index}: \"gcra:1/1s\"}}'\n");
    }
    let parse = |text: &str| {
        let start = Instant::now();
        let rules = RuleSet::parse(text, Format::Yaml).unwrap();
        println!("figure: 20000 wildcard descriptors or files, {:?}", start.elapsed());
        rules
    };
    let rules = parse(&descriptors);
    assert_eq!(rules.rules().len(), 20_001, "with that of the domain");
    for index in [0, 1, 7, 10_000, 19_999] {
        let value = format!("{index}-x");
        let found =
            rules.descriptors("d", &[Descriptor { entries: &[("a", &value)], limit: None }]);
        let [found] = &found[0][..] else { panic!("{value}: {found:?}") };
        let rate = found.wire.and_then(|wire| wire.rate);
        let name = format!("d.a_{index}-*");
        assert_eq!((found.rule.name(), rate), (&*name, Some((index, Unit::Day))));
    }
    let none = rules.descriptors("d", &[Descriptor { entries: &[("a", "20000-x")], limit: None }]);
    assert!(none[0].is_empty(), "{none:?}");
    let rules = parse(&files);
    assert_eq!(rules.policy_names().len(), 20_000);
    for name in ["p0", "p1", "p10000", "p19999"] {
        assert_eq!(rules.policy(name).map(ToString::to_string).as_deref(), Some("gcra:1/1s"));
    }
    descriptors += "- {key: a, value: '7-*'}\n";
    assert_invalid(&descriptors, "duplicate descriptor `d.a_7-*`: first defined in line ");
    // In another file of the domain as well.
    let source = |text| RulesSource { name: "", text, format: Format::Yaml };
    let again = "domain: d\ndescriptors: [{key: a, value: '8-*'}, {key: a*}, {key: a*}, {key: a*}]";
    let errors = RuleSet::check(&[source(&descriptors), source(again)]).map(|_| ()).unwrap_err();
    let found: Vec<_> = errors
        .iter()
        .filter_map(|(_, error)| error.message.split_once(": first defined in "))
        .collect();
    let found: Vec<_> = found.iter().map(|(before, _)| *before).collect();
    let duplicate = |path: &str| format!("duplicate descriptor `{path}`");
    assert_eq!(found, ["d.a_7-*", "d.a_8-*", "d.a*", "d.a*"].map(duplicate));
}

/// Otherwise readers would copy a long string once for each alias, and the keys of a descriptor once for each below it.
#[test]
fn parse_long_strings_that_repeat_are_bounded() {
    let long = "x".repeat(1 << 20);
    let aliases = vec!["*a"; 200].join(", ");
    let text = format!(
        "rules: [{{name: a, match: {{query.q: &a '*{long}*', header.x: [{aliases}]}}, block: true}}]"
    );
    assert_invalid(&text, "too many values: ");
    let below = (0..70).map(|index| format!("{{key: k{index}, rate_limit: {{unit: day}}}}"));
    let below = below.collect::<Vec<_>>().join(", ");
    let text = format!("domain: d\ndescriptors: [{{key: {long}, descriptors: [{below}]}}]");
    assert_invalid(
        &text,
        "invalid descriptors: expected at most 67108864 bytes in the paths of all, found ",
    );
}
