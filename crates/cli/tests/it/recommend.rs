//! `recommend` on logs with people and attacks.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

#[cfg(target_os = "linux")]
use sluicegate_testing::{Random, size};

#[cfg(target_os = "linux")]
use crate::run::sluicegate;
use crate::run::{output, run};

/// A round ten minutes: 2025-10-10 14:00:00 UTC.
const START: u64 = 1_760_104_800;
const MINUTE: u64 = 60_000;

/// Requests with their time in milliseconds, client and request line.
#[derive(Default)]
struct Log(Vec<(u64, String, &'static str)>);

impl Log {
    fn add(&mut self, time: u64, client: &str, request: &'static str) {
        self.0.push((time, client.to_owned(), request));
    }

    /// A person: a few visits of some pages, each with its files, and pauses to read between them.
    fn person(&mut self, random: &mut Random, client: &str, length: u64) {
        for _ in 0..random.between(1, 4) {
            let mut now = random.below(length);
            // Most visits are short, some are long.
            let pages = 1 + random.below(6) * random.below(6) / 2;
            for _ in 0..pages {
                self.add(now, client, "GET /products");
                for _ in 0..random.between(4, 25) {
                    self.add(now + random.between(50, 2500), client, "GET /img/3.jpg");
                }
                now += 3000 + random.below(15_000) + random.below(2) * random.below(90_000);
            }
        }
    }

    /// A request each `step` milliseconds, up to `jitter` later.
    fn steady(&mut self, random: &mut Random, client: &str, times: [u64; 2], step: [u64; 2]) {
        let [mut now, end] = times;
        let [step, jitter] = step;
        while now < end {
            self.add(now + random.below(jitter + 1), client, "GET /products");
            now += step;
        }
    }

    /// Many logins within a few seconds, again and again.
    fn bursts(&mut self, random: &mut Random, client: &str, times: [u64; 2], logins: u64) {
        let [mut now, end] = times;
        while now < end {
            for _ in 0..logins {
                self.add(now + random.below(10_000), client, "POST /login");
            }
            now += random.between(40_000, 80_000);
        }
    }

    /// The lines in nginx's combined format, whose times are whole seconds.
    fn text(mut self) -> String {
        self.0.sort();
        let mut text = String::new();
        for (time, client, request) in self.0 {
            let seconds = START + time / 1000;
            let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
            let time = format!("10/Oct/2025:{hour:02}:{minute:02}:{second:02} +0000");
            let rest = "HTTP/1.1\" 200 512 \"-\" \"agent\"";
            writeln!(text, "{client} - - [{time}] \"{request} {rest}").unwrap();
        }
        text
    }
}

const SCRAPERS: [&str; 3] = ["203.0.113.1", "203.0.113.2", "203.0.113.3"];
const STUFFER: &str = "203.0.113.9";

/// 900 people in two hours.
fn people(random: &mut Random) -> Log {
    let mut log = Log::default();
    for number in 0..900 {
        let client = format!("10.0.{}.{}", number / 250, number % 250);
        log.person(random, &client, 120 * MINUTE);
    }
    log
}

/// The policy in the line `recommended: POLICY`.
fn recommended(out: &str) -> &str {
    let line = out.lines().find_map(|line| line.strip_prefix("recommended: "));
    line.unwrap_or_else(|| panic!("{out}"))
}

/// The first words of the lines of the table that begins with `heading`.
fn listed<'a>(out: &'a str, heading: &str) -> BTreeSet<&'a str> {
    let lines = out.lines().skip_while(|line| !line.starts_with(heading)).skip(1);
    let rows = lines.take_while(|line| !line.is_empty());
    rows.filter_map(|line| line.split_whitespace().next()).collect()
}

/// What happens to a key.
#[derive(Default)]
struct Counts {
    requests: u64,
    denied: u64,
    /// Times of the first and the last request, in microseconds.
    times: Option<[u64; 2]>,
}

impl Counts {
    /// Milliseconds from the first to the last request.
    fn length(&self) -> u64 {
        self.times.map_or(0, |[first, last]| (last - first) / 1000)
    }
}

/// What happens to each key under `policy`.
fn denials(policy: &str, log: &str) -> BTreeMap<String, Counts> {
    let rows = output(&["simulate", "-", "--policy", policy, "--format", "csv"], log);
    let mut found: BTreeMap<String, Counts> = BTreeMap::new();
    for row in rows.lines().skip(1) {
        let fields: Vec<&str> = row.split(',').collect();
        let counts = found.entry(fields[1].to_owned()).or_default();
        let now = fields[0].parse().unwrap();
        counts.requests += 1;
        counts.denied += u64::from(fields[3] == "0");
        counts.times = Some([counts.times.map_or(now, |[first, _]| first), now]);
    }
    found
}

/// What `gcra:N/1m`, `gcra:N/1m:burst=B` or `gcra:N/1h` lets pass in that many milliseconds at most.
fn passes(policy: &str, length: u64) -> u64 {
    let (limit, rest) = policy.strip_prefix("gcra:").unwrap().split_once('/').unwrap();
    let (period, burst) = rest.split_once(":burst=").unwrap_or((rest, limit));
    let [limit, burst]: [u64; 2] = [limit, burst].map(|it| it.parse().unwrap());
    let minutes = if period == "1h" { 60 } else { 1 };
    burst + (limit * length).div_ceil(minutes * MINUTE)
}

/// Adds an attack to `people`, and checks the recommendation by the identity of every key.
fn check(attack: impl Fn(&mut Random, &mut Log)) {
    for seed in 1..=3 {
        let mut random = Random(seed);
        let mut log = people(&mut random);
        attack(&mut random, &mut log);
        let log = log.text();
        let out = output(&["recommend", "-"], &log);
        let attackers: BTreeSet<&str> = SCRAPERS.into_iter().chain([STUFFER]).collect();
        assert_eq!(listed(&out, "looks like an attack"), attackers, "{out}");

        let policy = recommended(&out);
        let (mut beyond, mut denied, mut requests) = (0, 0, 0);
        let mut others = Counts::default();
        let mut denied_keys = Vec::new();
        for (key, counts) in denials(policy, &log) {
            if attackers.contains(&*key) {
                let over = counts.requests.saturating_sub(passes(policy, counts.length()));
                assert!(counts.denied * 100 >= over * 95, "{key} under {policy}");
                assert!(over > 0, "{key} stays within {policy}");
                (beyond, denied) = (beyond + over, denied + counts.denied);
                requests += counts.requests;
            } else {
                others.requests += counts.requests;
                others.denied += counts.denied;
                denied_keys.extend((counts.denied > 0).then_some(key));
            }
        }
        println!(
            "figure: seed {seed}: {policy} denies {denied} of the {requests} requests of the attack, {beyond} beyond it, \
             and {} of {} others",
            others.denied, others.requests
        );
        assert!(denied * 100 >= beyond * 95 && denied * 100 >= requests * 40, "{policy}");
        assert!(others.denied * 1000 <= others.requests, "{policy}");
        // One of 900 would be more than 0.1 %.
        assert_eq!(denied_keys, [""; 0], "{policy}");
    }
}

#[test]
fn recommend_even_scrapers_and_bursts_of_logins_are_denied() {
    check(|random, log| {
        for (client, step) in SCRAPERS.into_iter().zip([500, 1000, 2000]) {
            log.steady(random, client, [30 * MINUTE, 90 * MINUTE], [step, 0]);
        }
        log.bursts(random, STUFFER, [30 * MINUTE, 90 * MINUTE], 300);
    });
}

#[test]
fn recommend_scrapers_with_random_delays_are_denied() {
    check(|random, log| {
        for client in SCRAPERS {
            log.steady(random, client, [30 * MINUTE, 90 * MINUTE], [1500, 1400]);
        }
        log.steady(random, STUFFER, [40 * MINUTE, 60 * MINUTE], [200, 0]);
    });
}

#[test]
fn recommend_short_and_fast_attack_is_denied() {
    check(|random, log| {
        for client in SCRAPERS {
            log.steady(random, client, [70 * MINUTE, 76 * MINUTE], [100, 90]);
        }
        log.bursts(random, STUFFER, [10 * MINUTE, 40 * MINUTE], 800);
    });
}

#[test]
fn recommend_slow_scrapers_are_denied() {
    check(|random, log| {
        for client in SCRAPERS {
            log.steady(random, client, [0, 120 * MINUTE], [2500, 500]);
        }
        log.steady(random, STUFFER, [0, 120 * MINUTE], [2000, 0]);
    });
}

#[test]
fn recommend_without_attack_denies_no_key() {
    let log = people(&mut Random(7)).text();
    let out = output(&["recommend", "-"], &log);
    assert!(out.contains("\nkeys that look like people: 900, like machines: 0, "), "{out}");
    assert!(out.contains("\nNo key looks like an attack. "), "{out}");
    assert!(!out.contains("looks like an attack  "), "{out}");
    let denied = denials(recommended(&out), &log);
    assert!(denied.values().all(|counts| counts.denied == 0), "{out}");
}

/// A few people behind one address look like a person; many never pause, and look like an attack. Then the key is listed.
#[test]
fn recommend_shared_address_looks_like_an_attack_if_it_never_pauses() {
    for (number, expected) in [(40, None), (600, Some("198.51.100.7"))] {
        let mut random = Random(3);
        let mut log = people(&mut random);
        for _ in 0..number {
            log.person(&mut random, "198.51.100.7", 120 * MINUTE);
        }
        let log = log.text();
        let out = output(&["recommend", "-"], &log);
        assert_eq!(listed(&out, "looks like an attack").into_iter().next(), expected, "{out}");
        let denied = denials(recommended(&out), &log);
        let denied: Vec<&str> =
            denied.iter().filter(|(_, it)| it.denied > 0).map(|(key, _)| &**key).collect();
        assert_eq!(denied, expected.into_iter().collect::<Vec<_>>(), "{out}");
    }
}

/// A limit that denies a few requests of an attack is not named as if it stopped it.
#[test]
fn recommend_attack_as_slow_as_people_is_not_stopped() {
    for seed in 1..=3 {
        let mut random = Random(seed);
        let mut log = people(&mut random);
        log.steady(&mut random, STUFFER, [30 * MINUTE, 66 * MINUTE], [2200, 2000]);
        let out = output(&["recommend", "-"], log.text());
        assert_eq!(listed(&out, "looks like an attack"), BTreeSet::from([STUFFER]), "{out}");
        let text = out.replace('\n', " ");
        let policy = recommended(&out).strip_suffix(", which does not stop the attack");
        let policy = policy.unwrap_or_else(|| panic!("{out}"));
        assert!(!policy.contains("/1h"), "{out}");
        for part in [
            "No harmless candidate denies a quarter of the attack's 982 requests: gcra:600/1h denies the most, 2",
            "It is the lowest harmless limit of the form gcra:N/1m, and denies requests of 0 of the 900 other keys. ",
            "To stop the attack, block its keys, or look for a --key ",
        ] {
            assert!(text.contains(part), "{part}: {out}");
        }
    }
}

/// The people of a log are there for minutes, while pages poll for an hour. A person who stays may not be denied.
#[test]
fn recommend_limit_per_hour_admits_an_hour_at_the_pace_of_people() {
    let mut random = Random(1);
    let mut log = Log::default();
    for number in 0..400 {
        let client = format!("10.0.{}.{}", number / 250, number % 250);
        let mut now = random.below(150 * MINUTE);
        for _ in 0..random.between(2, 12) {
            (0..random.between(2, 7)).for_each(|_| log.add(now, &client, "GET /products"));
            now += random.between(3000, 50_000);
        }
    }
    for client in SCRAPERS {
        log.steady(&mut random, client, [30 * MINUTE, 90 * MINUTE], [5000, 0]);
    }
    let out = output(&["recommend", "-"], log.text());
    let text = out.replace('\n', " ");
    let number = |from: &str| -> u64 {
        let rest = text.split_once(from).unwrap().1;
        rest[..rest.find([' ', ',']).unwrap()].parse().unwrap()
    };
    let pace = 6 * number(", p90 ");
    let policy = recommended(&out);
    assert!(policy.contains("/1h"), "{out}");
    let mut stays = Log::default();
    stays.steady(&mut random, "10.0.0.1", [0, 60 * MINUTE], [60 * MINUTE / pace, 0]);
    assert_eq!(denials(policy, &stays.text())["10.0.0.1"].denied, 0, "{out}");
    assert_eq!(number("and admits at least "), pace);
}

#[test]
fn recommend_one_wrong_time_changes_nothing_else() {
    let mut random = Random(1);
    let mut log = Log::default();
    for number in 0..300 {
        log.person(&mut random, &format!("10.0.{}.{}", number / 250, number % 250), 20 * MINUTE);
    }
    let log = log.text();
    let out = output(&["recommend", "-"], &log);
    let (first, rest) = out.split_once('\n').unwrap();
    let (_, length) = first.split_once(" in ").unwrap();
    let (length, _) = length.split_once(',').unwrap();
    let line = |time| format!("10.0.0.1 - - [{time}] \"GET / HTTP/1.1\" 200 512 \"-\" \"agent\"\n");
    let (past, future) = (line("01/Jan/1999:00:00:00 +0000"), line("31/Dec/2099:00:00:00 +0000"));
    let (start, end) = log.split_at(log.len() / 2);
    let (middle, end) = end.split_once('\n').unwrap();
    for log in [format!("{start}{middle}\n{future}{end}"), format!("{past}{log}")] {
        let wrong = output(&["recommend", "-"], log);
        let (text, found) = wrong.split_once("\nkeys that").unwrap();
        assert_eq!(format!("keys that{found}"), rest, "{wrong}");
        assert!(text.contains(&format!(" requests of 300 keys in {length}, from ")), "{wrong}");
        assert!(text.replace('\n', " ").ends_with(" UTC, without pauses of 1h or more"), "{wrong}");
    }
}

/// Clients of an API are all machines: one is an attack if it sends ten times as much as the others.
#[test]
fn recommend_machines_are_compared_with_each_other() {
    let mut random = Random(1);
    let mut log = Log::default();
    for number in 0..60 {
        let client = format!("10.1.0.{number}");
        log.steady(&mut random, &client, [0, 60 * MINUTE], [5000 + 100 * number, 0]);
    }
    let quiet = output(&["recommend", "-"], Log(log.0.clone()).text());
    assert!(quiet.contains(
        "\nkeys that look like people: 0, like machines: 60, of these like an attack: 0\n"
    ));
    assert!(quiet.contains("\nNo key looks like an attack. "), "{quiet}");
    log.steady(&mut random, STUFFER, [0, 60 * MINUTE], [50, 0]);
    let log = log.text();
    let out = output(&["recommend", "-"], &log);
    assert!(
        out.contains("like people: 0, like machines: 61, of these like an attack: 1\n"),
        "{out}"
    );
    assert_eq!(listed(&out, "looks like an attack"), BTreeSet::from([STUFFER]));
    let denied = denials(recommended(&out), &log);
    assert!(denied.iter().all(|(key, counts)| (counts.denied > 0) == (key == STUFFER)), "{out}");
}

#[test]
fn recommend_says_what_is_missing() {
    // Of 60 clients, one after the other; the times are in milliseconds.
    let log = |clients: u64, step: u64| {
        let line = |at: u64| (at * step, format!("10.0.0.{}", at % clients), "GET /");
        Log((0..300).map(line).collect()).text()
    };
    for (log, parts) in [
        (
            log(60, 5),
            &[
                " volume: its busiest 10m have 100 requests or more (the least that counts; 10 times the ",
                " 10m have 100 requests or more (the least that counts; 99 % of people send fewer). ",
                "300 requests of 60 keys in 1s, from 2025-10-10 14:00:00 UTC\n",
                "Note: the traffic lasts 1s, less than the 10m that the rule looks at; a log of a day ",
                "No recommendation: the traffic lasts 1s; expected at least 1m, because candidates count ",
            ][..],
        ),
        (
            log(1, 5000),
            &[
                "Note: all requests have one key; use another --key to compare keys. ",
                "like people: 0, like machines: 1, of these like an attack: 0\n",
                "and denies requests of 0 of the 1 key. ",
            ],
        ),
        (log(5, 500), &[" 10m have 600 requests or more (10 times the p90 of all keys) "]),
        (log(5, 3000), &["Note: there are 5 keys: with fewer than 50, one more can change "]),
    ] {
        let out = output(&["recommend", "-"], &log);
        let text = out.replace('\n', " ");
        for part in parts {
            assert!(text.contains(&part.replace('\n', " ")), "{part}: {out}");
        }
    }
}

#[test]
fn recommend_many_keys_like_an_attack_are_doubted() {
    let traffic = ["--traffic", "poisson:50/s", "--keys", "zipf:100", "--for", "30m"];
    let out = output(&[&["recommend"][..], &traffic].concat(), "").replace('\n', " ");
    assert!(out.contains(" % of the keys look like an attack: these may be customers, "), "{out}");
    let mut log = people(&mut Random(1));
    log.steady(&mut Random(1), STUFFER, [0, 60 * MINUTE], [200, 0]);
    let out = output(&["recommend", "-"], Log(log.0.clone()).text());
    assert!(!out.contains("these may be customers"), "{out}");
    // A monitor, without the flood.
    log.0.retain(|(_, client, _)| client != STUFFER);
    log.steady(&mut Random(1), SCRAPERS[0], [0, 60 * MINUTE], [2000, 0]);
    let out = output(&["recommend", "-"], log.text()).replace('\n', " ");
    let doubt =
        "no key listed as an attack looks like a machine by its volume: these may be customers, ";
    assert!(out.contains(doubt), "{out}");
}

#[test]
fn recommend_late_lines_are_reported() {
    let log = people(&mut Random(1)).text();
    let first: String = log.lines().take(3).map(|line| format!("{line}\n")).collect();
    let ended = run(&["recommend", "-"], format!("{log}{first}"));
    assert_eq!(ended.code, Some(0));
    assert!(
        ended.err.starts_with("warning: 3 lines were too late to be sorted, and moved by "),
        "{}",
        ended.err
    );
    assert_eq!(recommended(&ended.out), recommended(&output(&["recommend", "-"], &log)));
}

#[test]
fn recommend_without_harmless_candidate_is_no_recommendation() {
    let mut trace = "t_us,key,cost\n".to_owned();
    for at in 0..100 {
        writeln!(trace, "{},all,4000000000", at * 1_000_000).unwrap();
    }
    let out = output(&["recommend", "-"], &trace);
    let expected = "\nNo recommendation: no candidate is harmless. Use another --key.\n";
    assert!(out.ends_with(expected), "{out}");
}

#[test]
fn recommend_trace_is_decided_by_cost_and_other_operations_are_counted() {
    let mut trace = "t_us,key,cost,op\n".to_owned();
    for at in 0..200 {
        writeln!(trace, "{},user,30,take\n{0},user,1,peek", at * 1_000_000).unwrap();
    }
    let out = output(&["recommend", "-"], &trace);
    assert!(out.contains("\nother events: 200 (only take and hold are requests)\n"), "{out}");
    // 30 units each second are 1800 a minute.
    assert_eq!(recommended(&out), "gcra:2000/1m", "{out}");
}

#[test]
fn recommend_last_line_replays_the_same_input() {
    let folder = sluicegate_testing::TempDir::new();
    let (log, chart) = (folder.path().join("a log"), folder.path().join("chart.svg"));
    std::fs::write(&log, people(&mut Random(1)).text()).unwrap();
    let (log, chart) = (log.to_str().unwrap(), chart.to_str().unwrap());
    let out = output(&["recommend", "--plot", chart, "--key", "{ip} {path}", log], "");
    let policy = recommended(&out);
    let expected =
        format!("Try it: sluicegate simulate --policy {policy} --key '{{ip}} {{path}}' '{log}'\n");
    assert!(out.ends_with(&expected), "{out}");
    let command = out.lines().last().unwrap().strip_prefix("Try it: sluicegate").unwrap();
    let command = format!("{} {command}", env!("CARGO_BIN_EXE_sluicegate"));
    let ended = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let table = String::from_utf8(ended.stdout).unwrap();
    assert!(table.contains(&format!("\n{policy} ")), "{table}");
    let svg = std::fs::read_to_string(chart).unwrap();
    for part in ["like people", "(recommended)", "role=\"img\"", ">1000<"] {
        assert!(svg.contains(part), "{part}");
    }
}

/// Peak memory in KiB of a command that reads two lines of each of `keys` keys from its standard input.
#[cfg(target_os = "linux")]
fn peak(arguments: &[&str], keys: u64) -> u64 {
    use std::{io::Write, process::Stdio};

    let mut command = sluicegate();
    let mut child =
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for key in 0..keys {
        let [a, b, c] = [key >> 16, key >> 8 & 255, key & 255];
        let seconds = key * 7200 / keys;
        let (hour, minute, second) = (14 + seconds / 3600, seconds / 60 % 60, seconds % 60);
        let line = format!(
            "10.{a}.{b}.{c} - - [10/Oct/2025:{hour}:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 5\n"
        );
        input.write_all(line.repeat(2).as_bytes()).unwrap();
    }
    // All but the last block has been read.
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    drop(input);
    assert!(child.wait().unwrap().success());
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The number of keys does not matter: 65 536 are followed, each with its state under every candidate.
#[cfg(target_os = "linux")]
#[test]
fn recommend_memory_is_bounded_for_any_number_of_keys() {
    let keys = size("SLUICEGATE_RECOMMEND_KEYS", 200_000);
    let recommend = peak(&["recommend", "-"], keys);
    let simulate = peak(&["simulate", "-", "--policy", "gcra:600/1h"], keys);
    println!("figure: {keys} keys: recommend takes {recommend} KiB, simulate {simulate} KiB");
    assert!(recommend < 96 << 10, "{recommend} KiB");
}
