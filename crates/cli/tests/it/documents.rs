//! The commands in the documentation do what the documentation says: each block that begins with
//! `$ sluicegate` is run, and its output and charts must equal the page's.
//!
//! `cargo xtask figures` writes both again; review the difference.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::run::sluicegate;

const DOCUMENTS: [&str; 7] = [
    "README.md",
    "docs/algorithms.md",
    "docs/choosing.md",
    "docs/coming-from.md",
    "docs/denials.md",
    "docs/simulate.md",
    "docs/token-budgets.md",
];
const FIGURES: &str = "docs/figures/";
/// Figures that no command draws: the test `platform::grafana` does.
const OTHERS: [&str; 1] = ["grafana.svg"];

/// A command in a document.
struct Block {
    words: Vec<String>,
    /// The range of its output in the document.
    output: std::ops::Range<usize>,
}

#[test]
fn documents_commands_print_and_draw_the_same() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let bless = std::env::var_os("SLUICEGATE_BLESS").is_some();
    let folder = std::env::temp_dir().join(format!("sluicegate-figures-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let mut drawn = Vec::new();
    for document in DOCUMENTS {
        let path = root.join(document);
        let text = fs::read_to_string(&path).unwrap();
        let blocks = blocks(&text);
        assert!(!blocks.is_empty(), "{document} has no command");
        let (mut actual, mut at) = (String::new(), 0);
        for Block { words, output } in blocks {
            let printed = run(&root, &folder, &words);
            if !bless {
                let stands = &text[output.clone()];
                assert_eq!(stands, printed, "{document}: {words:?}; `cargo xtask figures`");
            }
            actual += &text[at..output.start];
            actual += &printed;
            at = output.end;
            for figure in words.iter().filter_map(|word| word.strip_prefix(FIGURES)) {
                let stands = root.join(FIGURES).join(figure);
                let drawing = fs::read_to_string(folder.join(figure)).unwrap();
                if bless {
                    fs::write(&stands, &drawing).unwrap();
                }
                let same = fs::read_to_string(&stands).unwrap_or_default() == drawing;
                assert!(same, "{FIGURES}{figure} has changed; `cargo xtask figures`");
                assert!(text.contains(&format!("](figures/{figure})")), "{figure} is not shown");
                drawn.push(figure.to_owned());
            }
        }
        if bless {
            fs::write(&path, actual + &text[at..]).unwrap();
        }
    }
    fs::remove_dir_all(&folder).unwrap();
    drawn.sort();
    let mut there: Vec<String> = fs::read_dir(root.join(FIGURES))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".svg") && !OTHERS.contains(&name.as_str()))
        .collect();
    there.sort();
    assert_eq!(drawn, there, "each figure is drawn by one command");
}

/// The output of the command; pictures go to `folder`.
fn run(root: &Path, folder: &Path, words: &[String]) -> String {
    let mut command = sluicegate();
    command.current_dir(root);
    for word in words {
        match word.strip_prefix(FIGURES) {
            Some(figure) => command.arg(folder.join(figure)),
            None => command.arg(word),
        };
    }
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.is_empty(), "{words:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// The blocks of a document that begin with `$ sluicegate`.
fn blocks(text: &str) -> Vec<Block> {
    const OPEN: &str = "```console\n$ sluicegate ";
    let mut blocks = Vec::new();
    let mut at = 0;
    while let Some(found) = text[at..].find(OPEN) {
        let command = at + found + OPEN.len();
        // A line that ends in a backslash goes on in the next.
        let mut end = command;
        loop {
            let line = text[end..].find('\n').unwrap();
            end += line + 1;
            if !text[..end - 1].ends_with('\\') {
                break;
            }
        }
        let close = end + text[end..].find("```").unwrap();
        let words = words(&text[command..end].replace("\\\n", " "));
        blocks.push(Block { words, output: end..close });
        at = close + 3;
    }
    blocks
}

/// Words as a shell splits them; single quotes keep spaces.
fn words(command: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for (index, part) in command.split('\'').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}
