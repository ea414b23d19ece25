//! The time to find the rules of a request, among 10 and among 10 000.
//!
//! Rounds take turns, so that disturbances of the machine affect both alike; a figure is the median of the rounds.
//! Bars: 10 000 rules take at most twice the time of 10, and under 1 us.

use std::{hint::black_box, net::Ipv4Addr, time::Instant};

use sluicegate_rules::{Descriptor, Format, Request, RuleSet};

/// Rules of one kind, and requests that each is for one of them.
struct Case {
    name: &'static str,
    rule: fn(usize) -> String,
    evaluate: fn(&RuleSet, &SampleRequest<'_>) -> usize,
}

/// A request, as slices of one text, as a server has them.
struct SampleRequest<'t> {
    target: &'t str,
    tenant: &'t str,
    client: Ipv4Addr,
}

const CASES: [Case; 6] = [
    Case {
        name: "an exact path each",
        rule: |index| format!("match: {{path: /p/{index}}}, key: client"),
        evaluate: http,
    },
    Case {
        name: "a pattern of paths each",
        rule: |index| format!("match: {{path: '/p/{index}/**'}}, key: client"),
        evaluate: http,
    },
    Case {
        name: "a value of a header each",
        rule: |index| format!("match: {{path: '/p/**', header.x-tenant: t{index}.}}, key: client"),
        evaluate: http,
    },
    Case {
        name: "a prefix of a header each",
        rule: |index| {
            format!("match: {{path: '/p/**', header.x-tenant: 't{index}.*'}}, key: client")
        },
        evaluate: http,
    },
    Case {
        name: "a network each",
        rule: |index| {
            let network = Ipv4Addr::from_bits(network(index));
            format!("match: {{client: {network}/24}}, key: client")
        },
        evaluate: http,
    },
    Case {
        name: "a value of an Envoy descriptor each",
        rule: |index| format!("match: {{descriptor.tenant: t{index}.}}, key: descriptor.tenant"),
        evaluate: |rules, sample| {
            let entries = [("tenant", sample.tenant), ("path", sample.target)];
            let found = rules.descriptors("web", &[Descriptor { entries: &entries, limit: None }]);
            found[0].len()
        },
    },
];

/// Networks all over 10.0.0.0/8, so that their texts are as long if there are few.
fn network(index: usize) -> u32 {
    (10 << 24) + (u32::try_from(index * 6_007 % 65_536).expect("16 bits") << 8)
}

fn http(rules: &RuleSet, sample: &SampleRequest<'_>) -> usize {
    let headers = [("host", "example.com"), ("accept", "*/*"), ("x-tenant", sample.tenant)];
    let request = Request::http("GET", sample.target, &headers).from(sample.client.into());
    rules.matches(&request).len()
}

fn main() {
    // `cargo test --benches` runs it once and briefly, to see that it works.
    let brief = !std::env::args().any(|argument| argument == "--bench");
    let (many, rounds, requests) = if brief { (100, 1, 100) } else { (10_000, 31, 20_000) };
    println!(
        "finding the rules of a request: median of {rounds} rounds of {requests}, taking turns\n"
    );
    println!(
        "{:<36} {:>10} {:>12} {:>6}  bar",
        "rules with",
        "10 rules",
        format!("{many} rules"),
        "ratio"
    );
    for case in CASES {
        let texts = [10, many].map(|count| (count, texts(count, requests)));
        let sets =
            texts.each_ref().map(|(count, text)| (set(&case, *count), sample_requests(text)));
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for ((rules, sample), times) in sets.iter().zip(&mut times) {
                times.push(round(&case, rules, sample));
            }
        }
        let [few, much] = times.map(|mut times| {
            times.sort_unstable_by(f64::total_cmp);
            times[times.len() / 2]
        });
        let ratio = much / few;
        let verdict = if ratio <= 2.0 && much < 1000.0 { "ok" } else { "BELOW" };
        println!(
            "{:<36} {few:>7.0} ns {much:>9.0} ns {ratio:>6.2}  <= 2, < 1000 ns  {verdict}",
            case.name
        );
    }
    reading(many);
}

fn set(case: &Case, count: usize) -> RuleSet {
    RuleSet::parse(&text(case, count), Format::Yaml).expect("rules")
}

fn text(case: &Case, count: usize) -> String {
    let mut text = String::from("policies: {few: 'gcra:10/1s'}\nrules:\n");
    for index in 0..count {
        let rule = (case.rule)(index);
        text += &format!("- {{name: r{index}, {rule}, policy: few}}\n");
    }
    text
}

/// Requests for all of the rules, one per line, in an order that neither a cache nor a branch predictor foresees:
/// with ten rules in turn, it would predict the whole path of a request.
fn texts(count: usize, requests: usize) -> String {
    let mut text = String::new();
    for number in 0..requests {
        let index = stirred(number) % count;
        let deeper = if number % 2 == 0 { "" } else { "/x" };
        text += &format!("/p/{index}{deeper} t{index}. {}\n", network(index) + 7);
    }
    text
}

fn sample_requests(text: &str) -> Vec<SampleRequest<'_>> {
    fn read(line: &str) -> Option<SampleRequest<'_>> {
        let mut words = line.split(' ');
        let (target, tenant) = (words.next()?, words.next()?);
        let client = Ipv4Addr::from_bits(words.next()?.parse().ok()?);
        Some(SampleRequest { target, tenant, client })
    }
    text.lines().map(|line| read(line).expect("three words")).collect()
}

/// The number after a few rounds of SplitMix64 (Steele et al. 2014).
fn stirred(number: usize) -> usize {
    let mut bits = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    usize::try_from(bits >> 32).expect("32 bits")
}

/// Nanoseconds a request.
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn round(case: &Case, rules: &RuleSet, sample: &[SampleRequest<'_>]) -> f64 {
    let start = Instant::now();
    let mut found = 0;
    for sample in sample {
        found += (case.evaluate)(black_box(rules), black_box(sample));
    }
    let took = start.elapsed();
    assert!(2 * found >= sample.len(), "half of them are for a rule: {found}");
    took.as_secs_f64() * 1e9 / sample.len() as f64
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn reading(count: usize) {
    let text = text(&CASES[1], count);
    let start = Instant::now();
    let rules = RuleSet::parse(&text, Format::Yaml).expect("rules");
    let took = start.elapsed();
    println!(
        "\nreading {} rules, {} KiB of YAML: {took:.0?}",
        rules.rules().len(),
        text.len() >> 10
    );
}
