//! The steps that a page gives the reader, in order.
//!
//! - A block that follows a line that ends in ``Save as `NAME`:`` is a file.
//! - A block that follows a line that ends in ``This is `PATH`:`` is a file of the repository.
//! - A block in `console` has commands after `$ `, each followed by its output.
//! - A block in `sh` has programs that run until they are stopped, one per line. A comment at the end of a line names
//!   the ports on which the program listens.
//! - In output, a line of `...` matches any lines; `<!-- numbers vary -->` before a block permits other numbers, and
//!   `<!-- order varies -->` another order of its lines.
//!
//! Other blocks are for reading.

/// One thing to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Write { name: String, text: String },
    Compare { path: String, text: String },
    Run { command: String, printed: String, varies: Varies },
    Start { command: String, ports: Vec<u16> },
}

/// The permitted differences of two outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Varies {
    pub(super) numbers: bool,
    pub(super) order: bool,
}

pub(super) fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = page.lines();
    // The last lines that are not empty: prose, and perhaps a comment.
    let mut before = String::new();
    let mut varies = Varies::default();
    while let Some(line) = lines.next() {
        if line.trim().is_empty() {
            continue;
        }
        let Some(language) = line.strip_prefix("```") else {
            match line {
                "<!-- numbers vary -->" => varies.numbers = true,
                "<!-- order varies -->" => varies.order = true,
                _ => line.clone_into(&mut before),
            }
            continue;
        };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if let Some(name) = quoted(&before, "Save as ") {
            steps.push(Step::Write { name, text: block.join("\n") + "\n" });
        } else if let Some(path) = quoted(&before, "This is ") {
            steps.push(Step::Compare { path, text: block.join("\n") + "\n" });
        } else if language == "console" {
            steps.extend(commands(&block, varies));
        } else if language == "sh" {
            steps.extend(joined(&block).iter().map(|line| started(line)));
        }
        varies = Varies::default();
        before.clear();
    }
    steps
}

/// The name in backticks at the end of `line`, after `words` and before a colon.
fn quoted(line: &str, words: &str) -> Option<String> {
    let (_, name) = line.strip_suffix("`:")?.rsplit_once(&format!("{words}`"))?;
    (!name.contains('`')).then(|| name.to_owned())
}

/// The lines of a block, those that end in a backslash with the next.
fn joined(block: &[&str]) -> Vec<String> {
    let text = block.join("\n").replace("\\\n", "");
    text.lines().map(str::to_owned).collect()
}

fn commands(block: &[&str], varies: Varies) -> Vec<Step> {
    let mut steps = Vec::new();
    for line in joined(block) {
        if let Some(command) = line.strip_prefix("$ ") {
            let command = command.to_owned();
            steps.push(Step::Run { command, printed: String::new(), varies });
        } else if let Some(Step::Run { printed, .. }) = steps.last_mut() {
            printed.push_str(&line);
            printed.push('\n');
        }
    }
    steps
}

fn started(line: &str) -> Step {
    let (command, comment) = line.split_once(" # ").unwrap_or((line, ""));
    let numbers = comment.split(|it: char| !it.is_ascii_digit());
    let ports = numbers.filter_map(|number| number.parse().ok()).collect();
    Step::Start { command: command.trim().to_owned(), ports }
}

/// Whether the output of a command equals that on the page.
pub(super) fn agree(shown: &str, printed: &str, varies: Varies) -> bool {
    let prepare = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(|line| line.trim_end().to_owned()).collect();
        if varies.numbers {
            lines = lines.iter().map(|line| without_numbers(line)).collect();
        }
        if varies.order {
            lines.sort();
        }
        lines
    };
    lines_agree(&prepare(shown), &prepare(printed))
}

fn lines_agree(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first.trim() == "..." => {
            (0..=printed.len()).any(|skipped| lines_agree(rest, &printed[skipped..]))
        }
        Some((first, rest)) => printed
            .split_first()
            .is_some_and(|(line, more)| line == first && lines_agree(rest, more)),
    }
}

/// `line` with `#` for each number, and one space for several: columns move with the widths of numbers.
fn without_numbers(line: &str) -> String {
    let mut plain = String::new();
    for part in line.split_whitespace() {
        let mut number = false;
        for it in part.chars() {
            let digit = it.is_ascii_digit() || (number && it == '.');
            if !digit {
                plain.push(it);
            } else if !number {
                plain.push('#');
            }
            number = digit;
        }
        plain.push(' ');
    }
    plain
}

#[test]
fn walkthrough_page_becomes_steps() {
    let page = "Save as `a.yaml`:\n\n```yaml\nx: 1\n```\n\nThen:\n\n```sh\nserve -x \\\n  -y   # ports 1 and 22\n\
                ```\n<!-- numbers vary -->\n```console\n$ a\nb 7\n$ c\n```\n```text\nnot this\n```\n";
    let varies = Varies { numbers: true, order: false };
    assert_eq!(
        steps(page),
        [
            Step::Write { name: "a.yaml".into(), text: "x: 1\n".into() },
            Step::Start { command: "serve -x   -y".into(), ports: vec![1, 22] },
            Step::Run { command: "a".into(), printed: "b 7\n".into(), varies },
            Step::Run { command: "c".into(), printed: String::new(), varies },
        ]
    );
}

#[test]
fn walkthrough_outputs_agree_or_not() {
    let exact = Varies::default();
    let numbers = Varies { numbers: true, order: false };
    assert!(agree("a 1\n", "a 1\n", exact) && !agree("a 1\n", "a 2\n", exact));
    assert!(agree("a 1.5 s\n", "a 22  s\n", numbers) && !agree("a 1\n", "b 1\n", numbers));
    assert!(agree("a\n...\nz\n", "a\nb\nc\nz\n", exact) && !agree("a\n...\nz\n", "a\nb\n", exact));
    assert!(!agree("", "a\n", exact) && !agree("a\n", "", exact));
    assert!(agree("a\nb\n", "b\na\n", Varies { numbers: false, order: true }));
}
