//! A recommendation in tables and sentences.

use std::{ffi::OsString, io::Write, path::Path, time::Duration};

use sluicegate_plot::Table;
use sluicegate_simulator::{
    ATTACK_REQUESTS, Attacker, DeniedKey, EVEN_GAPS, EVEN_SHARE, Evidence, LONG, LONG_PAUSE,
    LONG_PER_HOUR, MAX_BUSY_KEYS, MIN_KEYS, MIN_LENGTH, Named, Outcome, PAUSE, Recommendation,
    VOLUME_FACTOR,
};

use crate::{
    format::moment,
    percent::percent,
    table::{duration_text, key_cell, write_table},
};

/// Maximum length of a line of text.
const MAX_LINE: usize = 100;
/// One key of this number that looks like an attack is more than usual.
const MANY_ATTACKERS: u64 = 20;
/// A log of less than this may lack the busiest hours.
const DAY: Duration = Duration::from_secs(86_400);

/// Everything but the last lines; text is at most that many columns wide.
pub(super) fn print(
    found: &Recommendation,
    columns: usize,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    for line in summary(found) {
        writeln!(out, "{}", wrapped(&line, "", columns))?;
    }
    writeln!(out)?;
    write_table(&candidates(found), out)?;
    if let Some(table) = denied_keys(found) {
        writeln!(out)?;
        write_table(&table, out)?;
    }
    if !found.heaviest.is_empty() {
        writeln!(out)?;
        write_table(&attackers(found), out)?;
        let listed = u64::try_from(found.heaviest.len()).unwrap_or(u64::MAX);
        if found.attackers > listed {
            writeln!(out, "({} more)", found.attackers - listed)?;
        }
    }
    writeln!(out, "\n{}", rule(found, columns))?;
    for note in notes(found) {
        writeln!(out, "{}", wrapped(&format!("Note: {note}."), "", columns))?;
    }
    Ok(())
}

/// The named candidate, why, and how to try it.
pub(super) fn print_named(
    found: &Recommendation,
    columns: usize,
    arguments: impl Iterator<Item = OsString>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let Some((named, (_, why))) = found.named().zip(found.named) else {
        writeln!(out, "\n{}", wrapped(&no_recommendation(found), "", columns))?;
        return Ok(());
    };
    let but = if why == Named::SparesAttack { ", which does not stop the attack" } else { "" };
    writeln!(out)?;
    for text in [format!("recommended: {}{but}", named.policy), reasons(found, named, why)] {
        writeln!(out, "{}", wrapped(&text, "", columns))?;
    }
    writeln!(out, "Try it: {}", simulate_command(&named.policy.to_string(), arguments))?;
    Ok(())
}

fn no_recommendation(found: &Recommendation) -> String {
    if found.length() < MIN_LENGTH {
        return format!(
            "No recommendation: the traffic lasts {}; expected at least {}, because candidates count requests per \
             minute.",
            duration_text(found.length()),
            duration_text(MIN_LENGTH)
        );
    }
    "No recommendation: no candidate is harmless. Use another --key.".to_owned()
}

fn summary(found: &Recommendation) -> Vec<String> {
    let (first, last) = found.times.unwrap_or_default();
    let requests = plural(found.requests, "request");
    let length = found.length();
    let until = match length < Duration::from_micros(last - first) {
        true => {
            let pause = duration_text(LONG_PAUSE);
            format!(" to {}, without pauses of {pause} or more", moment(last))
        }
        false => String::new(),
    };
    let mut lines = vec![format!(
        "{requests} of {} in {}, from {}{until}",
        keys(found.keys(), "key", found),
        duration_text(length),
        moment(first)
    )];
    lines.push(format!(
        "keys that look like people: {}, like machines: {}, of these like an attack: {}",
        found.people, found.machines, found.attackers
    ));
    let p = found.busiest;
    let of = if found.people > 0 { "keys that look like people" } else { "all keys" };
    let window = duration_text(LONG);
    lines.push(format!(
        "requests in the busiest {window} of {of}: p50 {}, p90 {}, p99 {}",
        p.p50, p.p90, p.p99
    ));
    if found.others > 0 {
        lines.push(format!("other events: {} (only take and hold are requests)", found.others));
    }
    lines
}

fn candidates(found: &Recommendation) -> Table {
    let has_attack = found.attackers > 0;
    let mut heading = vec!["denied by", "keys", "people", "machines", "requests"];
    if has_attack {
        heading.extend(["of attack", ""]);
    }
    heading.push("harmless");
    let row = |outcome: &Outcome| {
        let mut row = vec![
            outcome.policy.to_string(),
            outcome.keys.to_string(),
            outcome.people.to_string(),
            outcome.machines.to_string(),
            outcome.requests.to_string(),
        ];
        if has_attack {
            row.push(outcome.attack_requests.to_string());
            row.push(percent(outcome.attack_requests, found.attack_requests));
        }
        row.push(if outcome.is_harmless { "yes" } else { "no" }.to_owned());
        row
    };
    table("Candidates", &heading, found.outcomes.iter().map(row))
}

/// The heaviest and the lightest key that each candidate denies.
fn denied_keys(found: &Recommendation) -> Option<Table> {
    let cells =
        |key: &DeniedKey| [key_cell(&key.key), format!("{} of {}", key.denied, key.requests)];
    let row = |outcome: &Outcome| {
        let (heaviest, lightest) = (outcome.heaviest.as_ref()?, outcome.lightest.as_ref()?);
        let name = outcome.policy.to_string();
        Some([name].into_iter().chain(cells(heaviest)).chain(cells(lightest)).collect())
    };
    let rows: Vec<Vec<String>> = found.outcomes.iter().filter_map(row).collect();
    let heading = ["denied by", "heaviest key", "requests", "lightest key", "requests"];
    (!rows.is_empty()).then(|| table("Denied keys", &heading, rows.into_iter()))
}

fn attackers(found: &Recommendation) -> Table {
    let busiest = format!("busiest {}", duration_text(LONG));
    let mut heading = vec!["looks like an attack", "requests", &busiest];
    if found.named.is_some() {
        heading.extend(["denied", ""]);
    }
    heading.push("evidence");
    let row = |attacker: &Attacker| {
        let mut row = vec![
            key_cell(&attacker.key),
            attacker.requests.to_string(),
            attacker.busiest.to_string(),
        ];
        if found.named.is_some() {
            row.extend([attacker.denied.to_string(), percent(attacker.denied, attacker.requests)]);
        }
        row.push(evidence(attacker.evidence));
        row
    };
    table("Keys that look like an attack", &heading, found.heaviest.iter().map(row))
}

fn evidence(evidence: Evidence) -> String {
    let all = [
        (evidence.no_pause, "no pause"),
        (evidence.even_pace, "even pace"),
        (evidence.volume, "volume"),
    ];
    let found: Vec<&str> = all.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
    found.join(", ")
}

/// The rule of thumb, with the numbers of this log.
fn rule(found: &Recommendation, columns: usize) -> String {
    let (window, pause) = (duration_text(LONG), duration_text(PAUSE));
    let (volume, attack) = (found.volume, found.attack);
    // Each bound is the greater of two numbers: of this log, and the least of all logs.
    let of_volume = match volume > ATTACK_REQUESTS {
        true => format!("{VOLUME_FACTOR} times the p90 of all keys"),
        false => {
            format!("the least that counts; {VOLUME_FACTOR} times the p90 of all keys is not more")
        }
    };
    let of_attack = match attack > ATTACK_REQUESTS {
        true => "more than those of 99 % of people",
        false => "the least that counts; 99 % of people send fewer",
    };
    let machine = [
        format!("no pause: it sends for {window} without a pause of {pause}"),
        format!(
            "even pace: of at least {EVEN_GAPS} gaps of 2s or more between its requests, {EVEN_SHARE} % are as long as the one \
             before"
        ),
        format!("volume: its busiest {window} have {volume} requests or more ({of_volume})"),
    ];
    let attack = match found.people {
        0 => "No key looks like a person; a machine looks like an attack by its volume alone."
            .to_owned(),
        _ => format!(
            "A machine looks like an attack if its busiest {window} have {attack} requests or more ({of_attack})."
        ),
    };
    let harmless = format!(
        "A candidate is harmless if it denies requests of at most 0.1 % of the keys that do not look like an attack, and \
         admits at least {} requests in an hour, which is {LONG_PER_HOUR} times the p90 above.",
        found.pace
    );
    let machine = machine.map(|it| wrapped(&format!("  {it}"), "    ", columns) + "\n").concat();
    let first = wrapped("Rule of thumb: a key looks like a machine by one of", "", columns);
    let people = "All other keys look like people.";
    let last = wrapped(&format!("{people} {attack} {harmless}"), "", columns);
    format!("{first}\n{machine}{last}")
}

/// What the numbers cannot show.
fn notes(found: &Recommendation) -> Vec<String> {
    let length = found.length();
    let mut notes = Vec::new();
    if found.one_of > 1 {
        notes.push(format!(
            "there are more than {MAX_BUSY_KEYS} keys: numbers of keys, and of their denied requests, are estimates from \
             one key in {} and from the busiest keys",
            found.one_of
        ));
    }
    if found.keys() == 1 {
        notes.push("all requests have one key; use another --key to compare keys".to_owned());
    } else if found.keys() < MIN_KEYS {
        notes.push(format!(
            "there are {} keys: with fewer than {MIN_KEYS}, one more can change the recommendation",
            found.keys()
        ));
    }
    let are_many = found.attackers * MANY_ATTACKERS > found.keys() && found.keys() >= MIN_KEYS;
    let have_volume = found.heaviest.iter().any(|it| it.evidence.volume);
    if found.attackers > 0 && (are_many || !have_volume) {
        let fact = match are_many {
            true => format!(
                "{} of the keys look like an attack",
                percent(found.attackers, found.keys())
            ),
            false => "no key listed as an attack looks like a machine by its volume".to_owned(),
        };
        notes.push(format!(
            "{fact}: these may be customers, monitors, pages that load something every few seconds, or addresses that \
             many people share"
        ));
    }
    if length < DAY {
        let less = match length < LONG {
            true => format!(", less than the {} that the rule looks at", duration_text(LONG)),
            false => String::new(),
        };
        notes.push(format!(
            "the traffic lasts {}{less}; a log of a day or a week has the busiest hours, too",
            duration_text(length)
        ));
    }
    notes
}

fn reasons(found: &Recommendation, named: &Outcome, why: Named) -> String {
    let noun = if found.attackers > 0 { "other key" } else { "key" };
    let denies =
        format!("requests of {} of the {}", named.other_keys(), keys(others(found), noun, found));
    let family = named.family();
    let lower = found.next_lower().map_or_else(String::new, |lower| {
        let few = if lower.hour < found.pace { ", and admits too few in an hour" } else { "" };
        let (policy, keys) = (&lower.policy, lower.other_keys());
        format!(
            " The next lower limit of the form {family}, {policy}, denies requests of {keys}{few}."
        )
    });
    let total = plural(found.attack_requests, "request");
    let strictest = found.strictest().map_or_else(String::new, |it| {
        let share = percent(it.attack_requests, found.attack_requests);
        format!("{} denies the most, {}, {share}", it.policy, it.attack_requests)
    });
    let of_keys = match found.attackers {
        0 | 1 => String::new(),
        all => format!(", of {} of its {all} keys", named.attackers),
    };
    match why {
        Named::DeniesAttack => format!(
            "It denies {} of the attack's {total}, {}{of_keys}, and {denies}. Of the harmless candidates, {strictest}; \
             of those that deny at least 90 % as many, the recommended one admits the most in ten minutes.{lower}",
            named.attack_requests,
            percent(named.attack_requests, found.attack_requests),
        ),
        Named::NoAttack => format!(
            "No key looks like an attack. It is the lowest harmless limit of the form {family}, and denies {denies}.{lower}"
        ),
        Named::SparesAttack => format!(
            "No harmless candidate denies a quarter of the attack's {total}{}. It is the lowest harmless limit of the form \
             {family}, and denies {denies}.{lower} To stop the attack, block its keys, or look for a --key that sets it apart, such as \
             '{{ip}} {{path}}'. To see what a lower limit denies, try it as a shadow rule, and ask `sluicegate why`.",
            if strictest.is_empty() { strictest } else { format!(": {strictest}") }
        ),
    }
}

/// `text` in lines of at most `columns` characters where words allow it; `indent` is in front of each but the first.
fn wrapped(text: &str, indent: &str, columns: usize) -> String {
    let width = columns.min(MAX_LINE);
    let mut out = String::new();
    let mut length = 0;
    // A percentage is not split.
    for word in text.replace(" %", "\u{a0}%").split(' ') {
        let added = word.chars().count() + 1;
        // The last space of a line is not printed.
        if length > indent.len() && length + added > width + 1 {
            out += "\n";
            out += indent;
            length = indent.len();
        } else if length > 0 {
            out += " ";
        }
        out += word;
        length += added;
    }
    out.replace('\u{a0}', " ")
}

/// Number of keys that do not look like an attack.
const fn others(found: &Recommendation) -> u64 {
    found.keys() - found.attackers
}

/// `12 keys`, or `about 12000 keys` if they are estimated.
fn keys(count: u64, noun: &str, found: &Recommendation) -> String {
    let about = if found.one_of > 1 { "about " } else { "" };
    format!("{about}{}", plural(count, noun))
}

fn plural(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn table(caption: &str, heading: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Table {
    Table {
        caption: caption.to_owned(),
        heading: heading.iter().map(|it| (*it).to_owned()).collect(),
        rows: rows.collect(),
    }
}

/// The command that replays the same input under `policy`, for a shell; `arguments` are those of this command.
fn simulate_command(policy: &str, arguments: impl Iterator<Item = OsString>) -> String {
    let mut command = format!("sluicegate simulate --policy {policy}");
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        let argument = argument.to_string_lossy();
        if argument == "--plot" {
            arguments.next_if(|file| Path::new(file).extension().is_some_and(|it| it == "svg"));
        } else if !argument.starts_with("--plot=") {
            command += " ";
            command += &quoted(&argument);
        }
    }
    command
}

/// A word of a shell, quoted if it has a character of meaning.
fn quoted(word: &str) -> String {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "-_./:=@%+,".contains(it);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_testing::Random;

    use super::*;

    #[test]
    fn wrapped_lines_are_short_and_keep_percentages() {
        let text = format!("{} 12.5 % {}", "a".repeat(95), "b ".repeat(60));
        let lines = |columns| -> Vec<String> {
            wrapped(&text, "  ", columns).lines().map(str::to_owned).collect()
        };
        let wide = lines(1000);
        assert!(wide.iter().all(|line| line.chars().count() <= MAX_LINE), "{wide:?}");
        assert!(wide[1].starts_with("  12.5 % b b"), "{wide:?}");
        let narrow = lines(20);
        assert!(narrow[1..].iter().all(|line| line.chars().count() <= 20), "{narrow:?}");
        assert_eq!(narrow[1], "  12.5 % b b b b b b", "{narrow:?}");
        assert_eq!(wrapped("one word", "", 100), "one word");
        assert_eq!(wrapped("one word", "", 0), "one\nword");
    }

    /// Random traffic of people with pauses, and sometimes of machines and attacks.
    fn random_traffic(random: &mut Random) -> Recommendation {
        let length = random.between(1, 200) * 60;
        let mut rows: Vec<(u64, String)> = Vec::new();
        let mut add = |at: u64, name: &str, key: u64| rows.push((at, format!("{name}{key}")));
        let size = random.between(1, 12);
        for key in 0..random.between(1, 90) {
            let mut now = random.below(length);
            for _ in 0..random.between(1, 10) {
                (0..random.between(1, 2 * size)).for_each(|_| add(now, "person", key));
                now += random.between(3, 90);
            }
        }
        for key in 0..random.below(6) {
            let step = random.between(1, 60);
            (0..length / step).for_each(|at| add(at * step, "machine", key));
        }
        for key in 0..random.below(3) {
            let (from, rate) = (random.below(length), random.between(1, 6));
            for at in from..from + random.between(60, 900) {
                (0..rate).for_each(|_| add(at, "attack", key));
            }
        }
        rows.sort();
        let mut trace = "t_us,key,cost\n".to_owned();
        for (at, key) in rows {
            trace += &format!("{},{key},1\n", at * 1_000_000);
        }
        let mut reader = sluicegate_simulator::TraceReader::new(trace.as_bytes()).unwrap();
        let mut survey = sluicegate_simulator::Survey::new();
        loop {
            let batch = reader.next_batch().unwrap();
            if batch.is_empty() {
                return Recommendation::new(&survey);
            }
            batch.events().for_each(|event| survey.add(&event));
        }
    }

    /// A row of the printed table of candidates.
    struct Row {
        policy: String,
        family: String,
        limit: u64,
        keys: u64,
        ten_minutes: u64,
        of_attack: u64,
        is_harmless: bool,
    }

    impl Row {
        fn new(line: &str) -> Self {
            let cells: Vec<&str> = line.split_whitespace().collect();
            let numbers: Vec<u64> = cells.iter().filter_map(|it| it.parse().ok()).collect();
            assert_eq!(numbers[0], numbers[1] + numbers[2], "{line}");
            let (limit, period) = cells[0]["gcra:".len()..].split_once('/').unwrap();
            let (limit, is_hour) = (limit.parse::<u64>().unwrap(), period == "1h");
            let (burst, family) = match period.split_once("burst=") {
                Some((_, burst)) => (burst.parse().unwrap(), "gcra:N/1m:burst=5N".to_owned()),
                None => (limit, format!("gcra:N/{period}")),
            };
            Self {
                policy: cells[0].to_owned(),
                family,
                limit,
                keys: numbers[0],
                ten_minutes: burst + if is_hour { limit.div_ceil(6) } else { 10 * limit },
                of_attack: numbers.get(4).copied().unwrap_or(0),
                is_harmless: cells.last() == Some(&"yes"),
            }
        }
    }

    /// What is between the first `from` in `text` and the next `to`.
    fn between<'a>(text: &'a str, from: &str, to: &str) -> Option<&'a str> {
        text.split_once(from)?.1.split_once(to).map(|(it, _)| it)
    }

    /// The sentences of a recommendation, checked against its printed table; the first of them.
    fn check(text: &str) -> &'static str {
        let table = text.lines().skip_while(|line| !line.starts_with("denied by ")).skip(1);
        let rows: Vec<Row> = table.take_while(|line| !line.is_empty()).map(Row::new).collect();
        let text = text.replace('\n', " ");
        let number = |from, to| between(&text, from, to).map(|it| it.parse::<u64>().unwrap());
        let count = |from| between(&text, from, " ").unwrap().trim_end_matches(',').parse::<u64>();
        let [people, machines] =
            ["look like people: ", " like machines: "].map(|it| count(it).unwrap());
        let attackers = number("of these like an attack: ", " ").unwrap();
        let Some((_, last)) = text.split_once(" recommended: ") else { return "none" };
        let named = last.split([' ', ',']).next().unwrap();
        let named = rows.iter().find(|it| it.policy == named).unwrap();
        assert!(named.is_harmless, "{text}");
        let denied = last.split_once("requests of ").unwrap().1;
        let all = between(denied, " of the ", " key").unwrap().trim_end_matches(" other");
        assert_eq!(all, (people + machines - attackers).to_string(), "{text}");

        let same = || rows.iter().filter(|it| it.family == named.family);
        let lower = same().filter(|it| it.limit < named.limit).max_by_key(|it| it.limit);
        let next = format!(" The next lower limit of the form {}, ", named.family);
        assert_eq!(between(last, &next, ", denies"), lower.map(|it| &*it.policy), "{text}");
        let is_lowest = || {
            assert!(last.contains("lowest harmless limit of the form gcra:N/1m, and"), "{text}");
            named.family == "gcra:N/1m" && lower.is_none_or(|it| !it.is_harmless)
        };
        let harmless = || rows.iter().filter(|it| it.is_harmless);
        let most = harmless().map(|it| it.of_attack).max().unwrap();
        if last.contains("No key looks like an attack. ") {
            assert!(attackers == 0 && is_lowest(), "{text}");
            return "no attack";
        }
        assert!(attackers > 0, "{text}");
        let total = number(" of the attack's ", " requests")
            .or_else(|| number("a quarter of the attack's ", " requests"))
            .unwrap();
        let strictest = last.split_once(" denies the most, ").map(|(before, after)| {
            let policy = before.rsplit(' ').next().unwrap().to_owned();
            (policy, after.split(',').next().unwrap().parse::<u64>().unwrap())
        });
        if let Some((policy, denied)) = &strictest {
            assert_eq!(*denied, most, "{text}");
            assert!(harmless().any(|it| it.policy == *policy && it.of_attack == most), "{text}");
        }
        assert_eq!(strictest.is_some(), most > 0, "{text}");
        if last.contains(", which does not stop the attack ") {
            assert!(last.contains("No harmless candidate denies a quarter of "), "{text}");
            assert!(most * 4 < total && is_lowest(), "{text}");
            return "not stopped";
        }
        assert_eq!(number(" It denies ", " of the attack's "), Some(named.of_attack), "{text}");
        let of_keys =
            between(last, " %, of ", " of its ").map_or(1, |it| it.parse::<u64>().unwrap());
        let of_others = denied.split(' ').next().unwrap().parse::<u64>().unwrap();
        assert_eq!(of_keys + of_others, named.keys, "{text}");
        assert!(most * 4 >= total && named.of_attack * 10 >= most * 9, "{text}");
        let mut enough = harmless().filter(|it| it.of_attack * 10 >= most * 9);
        assert!(enough.all(|it| it.ten_minutes <= named.ten_minutes), "{text}");
        "stopped"
    }

    #[test]
    fn print_sentences_are_true_of_the_table() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 150..300 {
            let mut random = Random(seed);
            let found = random_traffic(&mut random);
            let columns = random.between(30, 120).try_into().unwrap();
            let mut out = Vec::new();
            print(&found, columns, &mut out).unwrap();
            print_named(&found, columns, ["-".into()].into_iter(), &mut out).unwrap();
            let out = String::from_utf8(out).unwrap();
            let text = out[out.find("Rule of thumb").unwrap()..].lines();
            let mut text = text.filter(|line| !line.starts_with("Try it: "));
            assert_eq!(text.find(|line| line.chars().count() > columns), None);
            seen.insert(check(&out));
        }
        assert_eq!(
            seen.into_iter().collect::<Vec<_>>(),
            ["no attack", "none", "not stopped", "stopped"]
        );
    }

    #[test]
    fn simulate_command_has_the_options_of_the_input() {
        for (arguments, expected) in [
            (vec!["a.log"], " a.log"),
            (vec!["--plot", "a.log"], " a.log"),
            (vec!["--plot", "a.svg", "a.log"], " a.log"),
            (vec!["--plot=a.svg", "--key", "{ip} {path}", "-"], " --key '{ip} {path}' -"),
            (vec!["it's.log"], r" 'it'\''s.log'"),
        ] {
            let arguments = arguments.into_iter().map(OsString::from);
            let command = simulate_command("gcra:60/1m", arguments);
            assert_eq!(command, format!("sluicegate simulate --policy gcra:60/1m{expected}"));
        }
    }
}
