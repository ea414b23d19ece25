//! `simulate`: several policies, charts, synthetic traffic and changes of the policy.
//!
//! `SLUICEGATE_BLESS=1 cargo test` draws the expected pictures again; review the difference.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::run::{output, run, scenarios};

/// A temporary folder of this test.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> Self {
        let name = format!("sluicegate-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn scenario(name: &str) -> String {
    scenarios().join(name).to_str().unwrap().to_owned()
}

fn assert_golden(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("SLUICEGATE_BLESS").is_some() {
        fs::write(&path, actual).unwrap();
    }
    assert_eq!(actual, fs::read_to_string(&path).unwrap_or_default(), "{name}");
}

#[test]
fn simulate_several_policies_are_compared_in_a_table() {
    let trace = scenario("boundary-burst.csv");
    let policies =
        ["--policy", "fixed-window:100/60s:align=clock", "--policy", "sliding-log:100/60s"];
    let table = output(&[&["simulate", &trace][..], &policies].concat(), "");
    assert_eq!(
        table,
        "policy                           offered  allowed           denied
fixed-window:100/1m:align=clock      200      200  100.0 %       0   0.0 %
sliding-log:100/1m                   200      100   50.0 %     100  50.0 %

most sent within                  1s   2s   3s  10s   1m
fixed-window:100/1m:align=clock  100  200  200  200  200
sliding-log:100/1m               100  100  100  100  100
"
    );
    // By standard input, which is read once.
    let piped = [&["simulate", "-"][..], &policies].concat();
    assert_eq!(output(&piped, fs::read(&trace).unwrap()), table);
}

#[test]
fn simulate_chart_is_drawn_in_the_terminal() {
    let trace = scenario("queue-200ms.csv");
    let policy = ["--policy", "leaky-queue:5/1s:capacity=20", "--policy", "gcra:5/1s:burst=20"];
    // The word after `--plot` is the trace, because it does not name a picture.
    let drawn = output(&[&["simulate"][..], &policy, &["--plot", &trace]].concat(), "");
    assert_golden("plot-queue.txt", &drawn);
    assert!(!drawn.contains('\x1b'), "no colours but on a terminal");
    let piped = [&["simulate", "-", "--plot"][..], &policy].concat();
    assert_eq!(output(&piped, fs::read(&trace).unwrap()), drawn);
}

#[test]
fn simulate_chart_is_written_to_a_file_and_a_page() {
    let folder = TempDir::new("page");
    let (svg, html) = (folder.file("a.svg"), folder.file("a.html"));
    let trace = scenario("boundary-burst.csv");
    let policy =
        ["--policy", "fixed-window:100/60s:align=clock", "--policy", "sliding-log:100/60s"];
    let to = ["--plot", &svg, "--html", &html, "--title", "Twice <the> limit"];
    output(&[&["simulate", &trace][..], &policy, &to].concat(), "");
    let (svg, html) = (fs::read_to_string(svg).unwrap(), fs::read_to_string(html).unwrap());
    assert_golden("plot-burst.svg", &svg);
    assert_golden("plot-burst.html", &html);
    for text in [&svg, &html] {
        assert_well_formed(text);
        assert!(text.contains("Twice &lt;the&gt; limit"));
        assert!(text.contains("prefers-color-scheme:dark"));
        // Nothing is fetched from anywhere.
        let places = text.matches("http").count();
        assert_eq!(
            places,
            text.matches("http://www.w3.org/2000/svg").count() + text.matches("http-equiv").count()
        );
        assert!(!text.contains("<script") && !text.contains("url("));
    }
}

#[test]
fn simulate_chart_windows_have_the_name_of_their_own_length() {
    let folder = TempDir::new("windows");
    let svg = folder.file("a.svg");
    let policy = "sliding-log:30/1m,fixed-window:1000/1h:align=clock";
    let traffic = ["--for", "2h", "--traffic", "burst:40@0s", "--traffic", "burst:9@50m"];
    output(&[&["simulate", "--policy", policy, "--plot", &svg][..], &traffic].concat(), "");
    let svg = fs::read_to_string(svg).unwrap();
    assert!(svg.contains(" in this hour"), "{svg}");
    assert!(!svg.contains(" in this minute"), "{svg}");
}

#[test]
fn simulate_chart_follows_the_key_with_the_most_requests() {
    let events = |key: &str, kind: &str| format!("0,{key},1,{kind}\n");
    let (peeks, takes) = (events("peeked", "peek").repeat(5), events("busy", "").repeat(2));
    let header = "t_us,key,cost,op\n";
    for (rows, key) in [
        (format!("{peeks}{}{takes}", events("peeked", "take")), "busy"),
        // Without requests, other events count.
        (format!("{}{peeks}", events("one", "charge")), "peeked"),
    ] {
        let arguments = ["simulate", "-", "--policy", "gcra:10/1s", "--plot"];
        let chart = output(&arguments, format!("{header}{rows}"));
        assert!(chart.contains(&format!("Line: key {key}\n")), "{chart}");
    }
}

/// Every element that is opened is closed, in order.
fn assert_well_formed(text: &str) {
    let mut open = Vec::new();
    for tag in text.split('<').skip(1) {
        let tag = tag.split('>').next().unwrap();
        let name = tag.split([' ', '/']).find(|it| !it.is_empty()).unwrap();
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') && !["meta", "!doctype"].contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn simulate_changed_rule_applies_from_its_time_on() {
    let rows = "t_us,key,cost\n0,k,2\n29999999,k,1\n30000000,k,3\n30000001,k,1\n";
    let csv = ["simulate", "-", "--format", "csv", "--policy", "sliding-log:2/1m"];
    let change = ["--change", "30s=sliding-log:5/1m"];
    let changed = output(&[&csv[..], &change].concat(), rows);
    let allowed: Vec<&str> =
        changed.lines().skip(1).map(|row| row.split(',').nth(3).unwrap()).collect();
    assert_eq!(allowed, ["1", "0", "1", "0"]);

    // It is about the policy before it.
    let table = output(
        &[
            "simulate",
            "--traffic",
            "burst:9@0s",
            "--traffic",
            "burst:9@10s",
            "--policy",
            "sliding-log:4/1m",
            "--policy",
            "sliding-log:3/1m",
            "--change",
            "5s=sliding-log:6/1m",
        ],
        "",
    );
    assert!(table.contains("\nsliding-log:4/1m       18        4"), "{table}");
    assert!(table.contains("\nsliding-log:3/1m       18        6"), "{table}");
    assert!(table.ends_with("\nsliding-log:3/1m\n  after 5s: sliding-log:6/1m\n"), "{table}");
}

#[test]
fn simulate_synthetic_traffic_equal_seeds_are_equal() {
    let rows = |seed: &str| {
        output(
            &[
                "simulate",
                "--traffic",
                "poisson:50/s",
                "--traffic",
                "burst:20@500ms",
                "--keys",
                "zipf:10",
                "--for",
                "1s",
                "--seed",
                seed,
                "--format",
                "csv",
                "--policy",
                "gcra:5/1s",
            ],
            "",
        )
    };
    assert_eq!(rows("7"), rows("7"));
    assert_ne!(rows("7"), rows("8"));
    assert_eq!(rows("7").matches("\n1700000040500000,").count(), 20);
}

#[test]
fn simulate_conflicting_options_are_an_error() {
    let trace = scenario("queue-200ms.csv");
    for (arguments, actual) in [
        (
            &["--plot", "a.png", &trace][..],
            "invalid --plot `a.png`: expected a file that ends in `.svg`",
        ),
        (&["--plot", "--format", "csv", &trace], "invalid --plot: expected a file such as"),
        (
            &["--policy", "gcra:1/1s", "--policy", "gcra:2/1s", "--format", "csv", &trace],
            "invalid --format `csv`: expected one --policy, not several",
        ),
        (&["--change", "1s=gcra:1/0s", &trace], "invalid --change `1s=gcra:1/0s`: "),
        (&["--traffic", "rain:5/s"], "invalid --traffic `rain:5/s`: expected traffic such as"),
        (&[], "missing FILE: expected a trace, an access log, `-` or --traffic"),
        (
            &["--store", "resp://127.0.0.1:1", "--change", "1s=gcra:1/1s", &trace],
            "invalid --store: expected `memory`",
        ),
    ] {
        let ended = run(&[&["simulate"], arguments].concat(), "");
        assert_eq!(ended.code, Some(2), "{arguments:?}");
        assert!(ended.err.contains(actual), "{}", ended.err);
    }
}

/// A text of a drawing: left and right end, baseline, content.
type Label = (f64, f64, f64, String);

/// The texts of a drawing as wide as they are on a narrow screen, about.
fn labels(svg: &str) -> Vec<Label> {
    let texts = svg.split("<text ").skip(1);
    let label = |text: &str| {
        let (head, rest) = text.split_once('>').unwrap();
        let label = rest.split('<').next().unwrap().to_owned();
        let attribute = |name: &str| {
            let start = head.find(&format!("{name}=\"")).map(|at| at + name.len() + 2)?;
            Some(head[start..].split('"').next().unwrap().to_owned())
        };
        let number = |name: &str| attribute(name).and_then(|it| it.parse::<f64>().ok());
        let class = attribute("class").unwrap_or_default();
        let character = if ["title", "rule"].contains(&&*class) { 11.5 } else { 9.3 };
        let width = character * f64::from(u32::try_from(label.chars().count()).unwrap());
        let (x, y) = (number(" x")?, number(" y")?);
        let left = match &*attribute("text-anchor")? {
            "start" => x,
            "middle" => x - width / 2.0,
            _ => x - width,
        };
        // Every other tick is left out there.
        (!class.contains("odd")).then_some((left, left + width, y, label))
    };
    texts.filter_map(label).collect()
}

#[test]
fn figures_of_the_documentation_have_no_labels_that_overlap() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/figures");
    let mut seen = 0;
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|it| it != "svg") {
            continue;
        }
        let labels = labels(&fs::read_to_string(&path).unwrap());
        assert!(labels.len() > 10, "{}", path.display());
        for (index, one) in labels.iter().enumerate() {
            assert!(one.0 >= 0.0 && one.1 <= 720.0, "{}: {one:?} is cut", path.display());
            for other in &labels[index + 1..] {
                let beside = one.1 <= other.0 || other.1 <= one.0;
                let apart = (one.2 - other.2).abs() >= 17.0;
                assert!(beside || apart, "{}: {one:?}, {other:?}", path.display());
            }
        }
        seen += 1;
    }
    assert!(seen >= 15, "{seen}");
}
