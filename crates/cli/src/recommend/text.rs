//! A recommendation in tables and sentences.

use std::{ffi::OsString, io::Write, path::Path, time::Duration};

use sluicegate_plot::Table;
use sluicegate_simulator::{
    ATTACK_REQUESTS, Attacker, DeniedKey, EVEN_GAPS, EVEN_SHARE, Evidence, LONG, MAX_BUSY_KEYS,
    MIN_KEYS, MIN_LENGTH, Named, Outcome, PAUSE, Recommendation, VOLUME_FACTOR,
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

/// Everything but the last lines.
pub(super) fn print(found: &Recommendation, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "{}\n", summary(found))?;
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
    writeln!(out, "\n{}", rule(found))?;
    for note in notes(found) {
        writeln!(out, "{}", wrapped(&format!("Note: {note}."), ""))?;
    }
    Ok(())
}

/// The named candidate, why, and how to try it.
pub(super) fn print_named(
    found: &Recommendation,
    arguments: impl Iterator<Item = OsString>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let Some((named, (_, why))) = found.named().zip(found.named) else {
        writeln!(out, "\n{}", wrapped(&no_recommendation(found), ""))?;
        return Ok(());
    };
    writeln!(out, "\nrecommended: {}", named.policy)?;
    writeln!(out, "{}", wrapped(&reasons(found, named, why), ""))?;
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
    let other = match found.attackers {
        0 => "",
        _ => " that do not look like an attack",
    };
    let others = keys(others(found), other, found);
    format!(
        "No recommendation: each candidate denies more than 0.1 % of the {others}. Use another --key."
    )
}

fn summary(found: &Recommendation) -> String {
    let (first, _) = found.times.unwrap_or_default();
    let requests = plural(found.requests, "request");
    let length = duration_text(found.length());
    let mut text = format!(
        "{requests} of {} in {length}, from {}",
        keys(found.keys(), "", found),
        moment(first)
    );
    text += &format!(
        "\nkeys that look like people: {}, like machines: {}, of these like an attack: {}",
        found.people, found.machines, found.attackers
    );
    let p = found.busiest;
    let of = if found.people > 0 { "keys that look like people" } else { "all keys" };
    let window = duration_text(LONG);
    text += &format!(
        "\nrequests in the busiest {window} of {of}: p50 {}, p90 {}, p99 {}",
        p.p50, p.p90, p.p99
    );
    if found.others > 0 {
        text += &format!("\nother events: {} (only take and hold are requests)", found.others);
    }
    text
}

fn candidates(found: &Recommendation) -> Table {
    let has_attack = found.attackers > 0;
    let mut heading = vec!["denied by", "keys", "", "people", "machines", "requests", ""];
    if has_attack {
        heading.extend(["of an attack", ""]);
    }
    let row = |outcome: &Outcome| {
        let mut row = vec![
            outcome.policy.to_string(),
            outcome.keys.to_string(),
            percent(outcome.keys, found.keys()),
            outcome.people.to_string(),
            outcome.machines.to_string(),
            outcome.requests.to_string(),
            percent(outcome.requests, found.requests.max(outcome.requests)),
        ];
        if has_attack {
            row.push(outcome.attack_requests.to_string());
            row.push(percent(outcome.attack_requests, found.attack_requests));
        }
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
fn rule(found: &Recommendation) -> String {
    let (window, pause) = (duration_text(LONG), duration_text(PAUSE));
    let (volume, attack) = (found.volume, found.attack);
    let machine = [
        format!("no pause: it sends for {window} without a pause of {pause}"),
        format!(
            "even pace: of at least {EVEN_GAPS} gaps of 2s or more between its requests, {EVEN_SHARE} % are as long as the one \
             before"
        ),
        format!(
            "volume: its busiest {window} have {volume} requests or more, which is {VOLUME_FACTOR} times the p90 of all \
             keys, and at least {ATTACK_REQUESTS}"
        ),
    ];
    let attack = match found.people {
        0 => "No key looks like a person; a machine looks like an attack by its volume alone."
            .to_owned(),
        _ => format!(
            "A machine looks like an attack if its busiest {window} have {attack} requests or more, which is more \
             than those of 99 % of people, and at least {ATTACK_REQUESTS}."
        ),
    };
    let machine = machine.map(|it| format!("  {}\n", wrapped(&it, "    "))).concat();
    let people = "All other keys look like people.";
    let last = wrapped(&format!("{people} {attack}"), "");
    format!("Rule of thumb: a key looks like a machine by one of\n{machine}{last}")
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
    if found.attackers * MANY_ATTACKERS > found.keys() && found.keys() >= MIN_KEYS {
        notes.push(format!(
            "{} of the keys look like an attack: these may be customers, pages that load something every few seconds, \
             or addresses that many people share",
            percent(found.attackers, found.keys())
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
    let other = match found.attackers {
        0 => "",
        _ => " that do not look like an attack",
    };
    let mut bound = format!(
        "It denies requests of {} of the {}; the bound is 0.1 %.",
        named.other_keys(),
        keys(others(found), other, found)
    );
    if let Some(lower) = found.next_lower() {
        bound +=
            &format!(" The next lower limit, {}, denies {}.", lower.policy, lower.other_keys());
    }
    match why {
        Named::DeniesAttack => format!(
            "{bound} Of the attack, it denies {} of {}, {}. It is the most generous candidate within the bound that \
             denies at least 90 % of what the strictest of them denies of the attack.",
            named.attack_requests,
            plural(found.attack_requests, "request"),
            percent(named.attack_requests, found.attack_requests),
        ),
        Named::NoAttack => {
            format!(
                "Nothing looks like an attack. {bound} It is the lowest limit per minute within the bound."
            )
        }
        Named::SparesAttack => format!(
            "No candidate within the bound denies a request of the attack. {bound} It is the lowest limit per minute \
             within the bound."
        ),
    }
}

/// `text` in lines of at most [`MAX_LINE`] characters; `indent` is in front of each but the first.
fn wrapped(text: &str, indent: &str) -> String {
    let mut out = String::new();
    let mut length = 0;
    // A percentage is not split.
    for word in text.replace(" %", "\u{a0}%").split(' ') {
        let added = word.chars().count() + 1;
        if length > 0 && length + added > MAX_LINE {
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
fn keys(count: u64, what: &str, found: &Recommendation) -> String {
    let about = if found.one_of > 1 { "about " } else { "" };
    format!("{about}{}{what}", plural(count, "key"))
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
    use super::*;

    #[test]
    fn wrapped_lines_are_short_and_keep_percentages() {
        let text = format!("{} 12.5 % {}", "a".repeat(95), "b ".repeat(60));
        let lines: Vec<String> = wrapped(&text, "  ").lines().map(str::to_owned).collect();
        assert!(lines.iter().all(|line| line.chars().count() <= MAX_LINE), "{lines:?}");
        assert!(lines[1].starts_with("  12.5 % b b"), "{lines:?}");
        assert_eq!(wrapped("one word", ""), "one word");
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
