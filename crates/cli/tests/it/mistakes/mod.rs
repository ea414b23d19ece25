//! Mistakes of users, and the messages that correct them: each names the wrong value and the expected one.

mod client;
mod recommend;
mod serve;
mod simulate;

use crate::run::run;

/// Runs a line of words; it must fail with this message, which leaks nothing.
fn check(line: &str, input: &str, expected: &str) {
    let words: Vec<&str> = line.split_whitespace().map(|word| word.trim_matches('\'')).collect();
    let words: Vec<&str> =
        words.iter().map(|word| if *word == "EMPTY" { "" } else { word }).collect();
    let ended = run(&words, input);
    assert_eq!(ended.code, Some(2), "{line}: {} {}", ended.out, ended.err);
    check_message(line, &ended.err, expected);
}

fn check_message(line: &str, message: &str, expected: &str) {
    assert!(message.starts_with(&format!("error: {expected}")), "{line}\n{message}");
    for leak in [
        "os error",
        "invalid digit",
        "invalid socket",
        "\\'",
        "would do",
        "..=",
        "For more information",
    ] {
        assert!(!message.contains(leak), "{line} leaks `{leak}`: {message}");
    }
}
