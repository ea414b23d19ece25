//! `rules check` and `rules test`, and a server that reads its rules again.

use std::{fs, path::PathBuf};

use sluicegate_testing::eventually_true;

use crate::run::{output, run, sluicegate};

/// A file of rules, until dropped.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sluicegate-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        Self(path)
    }

    fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Replaces the content at once, so that no reader finds a part of it.
    fn replace(&self, text: &str) {
        let new = self.0.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(&new, &self.0).unwrap();
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn rules_output_is_printable() {
    let text = "rules:\n  - name: a\n    match: {header.h: \"v\\e[31m\"}\n    policy: gcra:1/1m\n\
                tests:\n  - name: \"t\\e[31m\"\n    request: {headers: {h: x}}\n    rules: []\n";
    let file = File::new("printable.yaml", text);
    for (command, expected) in [("check", "v\\u{1b}[31m"), ("test", "t\\u{1b}[31m")] {
        let ended = run(&["rules", command, file.name()], "");
        assert!(ended.out.contains(expected), "{}{}", ended.out, ended.err);
        assert!(!ended.out.contains('\u{1b}'), "{}", ended.out);
    }
}

const RULES: &str = "\
policies: {gold: 'gcra:100/1s'}
rules:
  - {name: health, match: {path: /healthz}, unlimited: true}
  - name: api
    match: {path: [/v1/**, /v2/**], header.x-plan: {not: banned}}
    key: [client, header.x-user?]
    policy: gcra:10/1s
    cost: header.x-tokens
    overrides: [{by: header.x-plan, values: {gold: gold}}]
tests:
  - {name: ten pass, request: {path: /v1/a, client: 192.0.2.1}, steps: [{times: 10, expect: allow}, {expect: deny}]}
";

#[test]
fn rules_check_explains_rules_in_words() {
    let file = File::new("words.yaml", RULES);
    let words = output(&["rules", "check", file.name()], "");
    let expected = "\
2 rules, 1 named policy: gold, 1 test

health (line 3)
  applies    where path is /healthz
  does       allows, without counting
  then       later rules are skipped

api (line 4)
  applies    where path is one of /v1/**, /v2/** and header.x-plan is not banned
  warning    any client gets a new limit with each value of header.x-user; if your proxy always sets or removes it, list it under `trusted_headers`
  key        rule:api|<client>|<header.x-user?>
  skipped    for requests without client
  policy     gcra:10/1s
  with       cost from header.x-tokens (at least 1; 1 if it is missing or not a number)
  override   where header.x-plan is gold: gcra:100/1s

gcra:10/1s
  at once    10 units after idling
";
    assert!(words.starts_with(expected), "{words}");
    assert!(words.contains("\ngcra:100/1s\n  at once    100 units after idling\n"), "{words}");
}

#[test]
fn rules_check_of_envoyproxy_names_domain_keys_and_values() {
    let text = "\
domain: web
descriptors:
  - key: plan
    value: free
    descriptors:
      - {key: user, rate_limit: {unit: day, requests_per_unit: 3}}
";
    let file = File::new("envoyproxy.yaml", text);
    let words = output(&["rules", "check", file.name()], "");
    let applies = "  applies    to descriptors of the domain `web` with `plan` = `free`, `user`\n";
    assert!(words.contains(applies), "{words}");
}

#[test]
fn rules_check_warns_about_one_count_and_a_cost_above_the_burst() {
    let text = "\
rules:
  - {name: a, key: [], policy: 'gcra:10/1s'}
  - {name: b, key: client, policy: 'gcra:10/1s', cost: 11}
  - {name: c, key: client, policy: 'gcra:10/1s:borrow', cost: 11}
  - {name: d, policy: 'gcra:10/1s', cost: 10}
";
    let file = File::new("counts.yaml", text);
    let words = output(&["rules", "check", file.name()], "");
    let warnings: Vec<_> = words.lines().filter(|line| line.starts_with("  warning ")).collect();
    assert_eq!(
        warnings,
        [
            "  warning    `key: []` counts all requests together; remove the field if this is meant",
            "  warning    all requests are denied: each costs 11, and the policy admits at most 10 at once",
        ]
    );
}

#[test]
fn rules_test_without_a_rule_for_the_request_warns() {
    let text = "\
rules:
  - {name: a, key: client, policy: 'gcra:1/1s'}
  - {name: b, match: {path: /b}, key: [client, header.x-user], policy: 'gcra:1/1s'}
tests:
  - name: no client
    request: {path: /x}
    steps: [{times: 2, expect: allow}, {request: {path: /b}, expect: allow}]
  - {name: meant, request: {path: /x}, rules: [], expect: allow}
  - {name: applies, request: {path: /x, client: 192.0.2.1}, expect: allow}
";
    let file = File::new("unmatched.yaml", text);
    let words = output(&["rules", "test", file.name()], "");
    assert_eq!(
        words,
        "\
ok   no client (line 5)
       warning: line 5: no rule applies to this request (rule a needs client)
       warning: line 7: no rule applies to this request (rule a needs client, rule b needs client and header.x-user)
ok   meant (line 8)
ok   applies (line 9)
3 of 3 tests pass
"
    );
}

#[test]
fn rules_check_invalid_file_names_line_and_column() {
    let file = File::new("wrong.yaml", &RULES.replace("gcra:10/1s", "gcra:10/0s"));
    let ended = run(&["rules", "check", file.name()], "");
    assert_eq!((ended.code, &*ended.out), (Some(2), ""));
    let expected = format!(
        "error: {}: line 7, column 21: invalid period `0s`: expected 1ms to 366d\n7 |     policy: gcra:10/0s\n  |                     ^\n",
        file.name()
    );
    assert_eq!(ended.err, expected);
    let any = ["serve", "--listen", "127.0.0.1:0", "--http", "off", "--grpc", "off"];
    let ended = run(&[&any[..], &["--rules", file.name()]].concat(), "");
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.contains("line 7, column 21: invalid period `0s`"), "{}", ended.err);
    assert_eq!(run(&["rules", "check", "/no/such/file"], "").code, Some(2));
}

#[test]
fn rules_test_runs_all_examples() {
    let file = File::new("holds.yaml", RULES);
    let actual = output(&["rules", "test", file.name()], "");
    assert_eq!(actual, "ok   ten pass (line 11)\n1 of 1 tests pass\n");
    let file = File::new("broken.yaml", &RULES.replace("times: 10", "times: 11"));
    let ended = run(&["rules", "test", file.name()], "");
    let expected = "\
FAIL ten pass (line 11)
       step 1 (line 11), request 11: expected allow, found deny by api
0 of 1 tests pass
";
    assert_eq!((ended.code, &*ended.out), (Some(1), expected));
}

#[test]
fn rules_check_prints_path_options_and_warns_where_they_are_missing() {
    let text = "\
rules:
  - name: login
    match: {path: {is: /login, case: insensitive, trailing-slash: ignore, parameters: strip}}
    policy: gcra:5/1m
  - {name: reset, match: {path: /password/reset}, policy: 'gcra:5/1m'}
";
    let file = File::new("warned.yaml", text);
    let words = output(&["rules", "check", file.name()], "");
    let expected = "\
2 rules, 0 named policies, 0 tests

login (line 2)
  applies    where path is /login (in any case, with or without a slash at the end, with or without ;parameters)
  key        rule:login
  policy     gcra:5/1m

reset (line 5)
  applies    where path is /password/reset
  warning    paths with upper case, a slash at the end, ;parameters escape this rule, if the application accepts them; add `case: insensitive`, `trailing-slash: ignore`, `parameters: strip` to `path`
  key        rule:reset
  policy     gcra:5/1m
";
    assert!(words.starts_with(expected), "{words}");
}

#[test]
fn rules_check_reports_all_mistakes_of_all_files_of_a_folder() {
    let folder = std::env::temp_dir().join(format!("sluicegate-{}-mistakes", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(
        folder.join("a.yaml"),
        "rules:\n- {name: a, policy: 'gcra:1/60'}\n- {name: b, block: true}\n",
    )
    .unwrap();
    fs::write(folder.join("b.toml"), "[[rules]]\nname = 'b'\nblock = true\n").unwrap();
    let shown = folder.display();
    let ended = run(&["rules", "check", folder.to_str().unwrap()], "");
    assert_eq!((ended.code, &*ended.out), (Some(2), ""));
    let expected = format!(
        "error: {shown}/a.yaml: line 2, column 29: invalid period `60`: expected a duration such as `60s`\n\
         2 | - {{name: a, policy: 'gcra:1/60'}}\n  |                             ^\n\n\
         error: {shown}/b.toml: line 1, column 1: duplicate rule `b`: first defined in line 3 of \
         {shown}/a.yaml\n1 | [[rules]]\n  | ^\n\n2 errors\n"
    );
    assert_eq!(ended.err, expected);

    fs::write(folder.join("a.yaml"), "rules: [{name: a, block: true}]\n").unwrap();
    let words = output(&["rules", "check", folder.to_str().unwrap()], "");
    assert!(words.starts_with("2 rules, 0 named policies, 0 tests\n"), "{words}");
    assert!(words.contains(&format!("\nb ({shown}/b.toml, line 1)\n")), "{words}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn rules_test_without_tests_warns_or_fails() {
    let file = File::new("untested.yaml", "rules: [{name: a, block: true}]\n");
    let ended = run(&["rules", "test", file.name()], "");
    assert_eq!((ended.code, &*ended.out), (Some(0), "0 of 0 tests pass\n"));
    let warning = format!("warning: no tests in {}: write some under `tests`\n", file.name());
    assert_eq!(ended.err, warning);
    let ended = run(&["rules", "test", "--require-tests", file.name()], "");
    assert_eq!(ended.code, Some(2));
    let expected =
        format!("error: no tests in {}: expected at least one under `tests`\n", file.name());
    assert_eq!(ended.err, expected);
    let file = File::new("tested.yaml", RULES);
    assert_eq!(run(&["rules", "test", "--require-tests", file.name()], "").code, Some(0));
}

/// A signal that comes while the rules are read for the first time does not end the server.
#[cfg(unix)]
#[test]
fn reload_signal_before_the_start_reloads_rules() {
    use std::{
        io::{BufRead, BufReader},
        process::{Command, Stdio},
    };

    // Reading a pipe blocks until another process writes to it: the server must start before that.
    let pipe = File::new("pipe.yaml", "");
    fs::remove_file(&pipe.0).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe.0).status().unwrap().success());
    let mut server = sluicegate()
        .args(["serve", "--listen", "127.0.0.1:0", "--http", "off", "--grpc", "off", "--rules"])
        .arg(&pipe.0)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut writer = fs::OpenOptions::new().write(true).open(&pipe.0).unwrap();
    let id = server.id().to_string();
    assert!(Command::new("kill").args(["-HUP", &id]).status().unwrap().success());
    std::io::Write::write_all(&mut writer, b"policies: {plan: 'fixed-window:5/1d'}\n").unwrap();
    drop(writer);
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on "), "{line:?}");
    // It reads them once more.
    drop(fs::OpenOptions::new().write(true).open(&pipe.0).unwrap());
    server.kill().unwrap();
    server.wait().unwrap();
}

/// The signal would otherwise end the process, with the state that it has not saved yet.
#[cfg(unix)]
#[test]
fn reload_signal_without_rules_is_ignored() {
    use crate::server::Server;

    let server = Server::start(&[]);
    let take = ["take", "k", "fixed-window:5/1d", "--server", &server.address];
    for left in [4, 3, 2] {
        server.signal("-HUP");
        assert!(output(&take, "").starts_with(&format!("allowed; {left} of 5 remaining")));
    }
    let log = server.stop("-TERM");
    assert!(log.contains("SIGHUP is ignored: there are no rules files to reload"), "{log}");
}

/// A signal forces a reload, even if no watched file has changed.
#[cfg(unix)]
#[test]
fn reload_signal_reloads_rules() {
    use crate::{server::Server, why::get};

    let rules = |limit: u32| format!("policies: {{plan: 'fixed-window:{limit}/1d'}}\n");
    let file = File::new("signal.yaml", &rules(5));
    let server = Server::start(&["--rules", file.name()]);
    let take = ["take", "k", "@plan", "--server", &server.address];
    assert!(output(&take, "").starts_with("allowed; 4 of 5 remaining"));
    file.replace(&rules(7));
    server.signal("-HUP");
    let mut actual = String::new();
    for _ in 0..2_000 {
        actual = output(&["peek", "k", "@plan", "--server", &server.address], "");
        if actual.contains("of 7") {
            break;
        }
    }
    assert!(actual.starts_with("allowed; 6 of 7 remaining"), "{actual}");
    file.replace("policies: [");
    server.signal("-HUP");
    let failed = "sluicegate_rules_reloads_total{outcome=\"failed\"} 1";
    eventually_true("the invalid rules are read", || get(&server, "/metrics").contains(failed));
    assert!(output(&take, "").contains("of 7 remaining"));
    let ended = run(&["take", "k", "@none", "--server", &server.address], "");
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.contains("unknown policy `@none`"), "{}", ended.err);
    let log = server.stop("-TERM");
    assert!(log.contains("rules reloaded"), "{log}");
    // An event is one line, even if the excerpt of the file has several.
    let stamped = |line: &&str| line.contains(" INFO ") || line.contains(" ERROR ");
    assert!(log.lines().all(|line| stamped(&line)), "{log}");
    let invalid = format!("invalid rules, keeping the previous ones: {}: line 1", file.name());
    assert_eq!(log.matches(&invalid).count(), 1, "{log}");
}
