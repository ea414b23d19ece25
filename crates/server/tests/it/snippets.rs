//! The programs of `docs/clients.md` work as the page describes, in the languages that are installed: Python,
//! JavaScript and PHP, with the clients that the page names.

use std::{
    fs,
    net::SocketAddr,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use sluicegate_redis::{Options, RedisStore};
use sluicegate_testing::{Engine, Server, TempDir, eventually_within};

use crate::{
    clients::tools,
    faulty::{Fault, FaultyProxy},
    harness::{Running, free_address, root},
};

/// Upper bound on the run time of a program of the page, whatever its deadlines.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);
/// Bound on the run time of a program with deadlines of two seconds, on a busy machine too. A program that repeats
/// its command, or has no deadline, exceeds it.
const BOUND: Duration = Duration::from_secs(25);

fn page() -> String {
    fs::read_to_string(root().join("docs/clients.md")).unwrap()
}

/// The programs of a language, in order.
fn programs(language: &str) -> Vec<String> {
    let (open, page) = (format!("\n```{language}\n"), page());
    let first = |part: &str| part.split("\n```").next().unwrap().to_owned();
    page.split(&open).skip(1).map(first).collect()
}

/// `program` at another port, and with other deadlines than the 250 ms of the page.
fn adapted(program: &str, (from, to): (&str, SocketAddr), deadline: u32) -> String {
    assert!(program.contains(from), "{program}");
    let seconds = deadline.to_string();
    let milliseconds = (deadline * 1000).to_string();
    program
        .replace("0.25", &seconds)
        .replace("socketTimeout: 1000", &format!("socketTimeout: {milliseconds}0"))
        .replace("socketTimeout: 5000", &format!("socketTimeout: {milliseconds}0"))
        .replace("250", &milliseconds)
        // Last, because a port may contain the digits of a deadline.
        .replace(from, &to.port().to_string())
}

#[test]
fn adapted_port_with_the_digits_of_a_deadline_is_kept() {
    let to = SocketAddr::from(([127, 0, 0, 1], 42_507));
    assert_eq!(adapted("connect(6380, 250)", ("6380", to), 2), "connect(42507, 2000)");
}

/// `program` with one call instead of three.
fn once(program: &str) -> String {
    let once = program.replace("range(3)", "range(1)").replace("i < 3", "i < 1");
    assert_ne!(once, program);
    once
}

/// The output of a program, which must succeed within `bound`.
fn output(language: &str, program: &str, bound: Duration) -> String {
    let folder = TempDir::new();
    let file = folder.path().join("program.cjs");
    fs::write(&file, program).unwrap();
    let mut command = match language {
        "python" => Command::new(tools().join("venv/bin/python")),
        "js" => Command::new("node"),
        _ => Command::new("php"),
    };
    command.env("NODE_PATH", tools().join("node/node_modules")).arg(file);
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap_or_else(|error| {
        panic!("{language} could not be run ({error}); `cargo xtask test --all` installs it");
    });
    let killed = child.id().to_string();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually_within(bound, "the program ends", || match child.try_wait().unwrap() {
            Some(_) => Ok(()),
            None => Err(format!("it runs:\n{program}")),
        });
    }));
    if let Err(panic) = ended {
        let _ = Command::new("kill").args(["-9", &killed]).status();
        std::panic::resume_unwind(panic);
    }
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{printed}\n{errors}\n{program}", output.status);
    printed
}

/// Two are allowed, and the third waits for about half a minute.
fn assert_two_allowed(printed: &str) {
    let page = page();
    let shown = page.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let (allowed, denied) = shown.split_at(shown.find("denied").unwrap());
    assert_eq!(denied, "denied, retry in 30 s\n");
    let rest = printed.strip_prefix(allowed).unwrap_or_else(|| panic!("{printed}"));
    let seconds = rest.strip_prefix("denied, retry in ").and_then(|it| it.strip_suffix(" s\n"));
    let seconds: u32 = seconds.unwrap_or_else(|| panic!("{printed}")).parse().unwrap();
    assert!((1..=30).contains(&seconds), "{printed}");
}

/// The programs that take three times: language, and which of the language's it is.
const TAKING: [(&str, usize); 5] = [("python", 0), ("python", 1), ("js", 0), ("js", 1), ("php", 0)];

/// Runs `check` for each of them, all at the same time.
fn for_each_program(check: impl Fn(&str, &str) + Sync) {
    let check = &check;
    thread::scope(|scope| {
        for (language, index) in TAKING {
            scope.spawn(move || check(language, &programs(language)[index]));
        }
    });
}

#[test]
fn clients_page_programs_that_take_print_what_the_page_shows() {
    for_each_program(|language, program| {
        let server = Running::new();
        let program = adapted(program, ("6380", server.address), 60);
        assert_two_allowed(&output(language, &program, RUN_TIMEOUT));
    });
}

#[test]
fn clients_page_programs_without_a_server_print_unavailable() {
    let address = free_address();
    for_each_program(|language, program| {
        let program = adapted(program, ("6380", address), 2);
        let printed = output(language, &program, BOUND);
        assert_eq!(printed, "unavailable, allowed\n".repeat(3), "{program}");
        let denying = program.replace("UNAVAILABLE = true", "UNAVAILABLE = false");
        let denying = denying.replace("UNAVAILABLE = True", "UNAVAILABLE = False");
        assert_ne!(denying, program);
        let printed = output(language, &once(&denying), BOUND);
        assert_eq!(printed, "unavailable, denied\n", "{program}");
    });
}

#[test]
fn clients_page_programs_charge_once_if_the_reply_is_lost() {
    for_each_program(|language, program| {
        for fault in [Fault::Hold, Fault::Cut, Fault::Mute] {
            let server = Running::new();
            let proxy = FaultyProxy::start(server.address, fault);
            let program = once(&adapted(program, ("6380", proxy.address), 2));
            let printed = output(language, &program, BOUND);
            proxy.drain();
            let left = server.connect().integers("SG.PEEK user7 gcra:2/60s")[2];
            let calls = server.info_value("cmdstat_sg.take");
            println!("figure: {language}, {fault:?}: {calls} takes, {} of 2 charged", 2 - left);
            let charged = format!("{fault:?}: {calls} takes, {} of 2 charged\n{program}", 2 - left);
            assert_eq!(printed, "unavailable, allowed\n", "{charged}");
            let calls_expected = if fault == Fault::Mute { 0..=1 } else { 1..=1 };
            assert!(calls_expected.contains(&calls), "{charged}");
            assert_eq!(u64::try_from(2 - left).unwrap(), calls, "{charged}");
        }
    });
}

#[test]
fn clients_page_waiting_program_waits_longer_than_the_server() {
    let program = &programs("python")[2];
    let server = Running::new();
    let ordinary = adapted(program, ("6380", server.address), 60);
    assert_eq!(output("python", &ordinary, RUN_TIMEOUT), "sent\n".repeat(3));
    // A denial comes from the server, before the client loses its patience.
    let denied = ordinary.replace("\"provider\", \"leaky-queue:5/1s\"", "\"other\", \"gcra:1/1h\"");
    assert_ne!(denied, ordinary);
    assert_eq!(output("python", &denied, RUN_TIMEOUT), "sent\ndenied\ndenied\n");
    assert_eq!(server.info_value("cmdstat_sg.wait"), 6);

    let server = Running::new();
    let proxy = FaultyProxy::start(server.address, Fault::Hold);
    let lost = once(&adapted(program, ("6380", proxy.address), 2));
    let lost = lost.replace("TIMEOUT = 30", "TIMEOUT = 1").replace("TIMEOUT + 5", "TIMEOUT + 1");
    assert_eq!(output("python", &lost, BOUND), "denied\n");
    proxy.drain();
    assert_eq!(server.info_value("cmdstat_sg.wait"), 1);
}

#[test]
fn clients_page_settling_program_charges_the_difference() {
    let server = Running::new();
    let program = adapted(&programs("python")[3], ("6380", server.address), 60);
    assert_eq!(output("python", &program, RUN_TIMEOUT), "7000 left\n");
    let program = program.replace("actual=3000", "actual=500").replace("team7", "team8");
    assert_eq!(output("python", &program, RUN_TIMEOUT), "9500 left\n");
}

#[test]
fn clients_page_function_program_prints_what_the_page_shows() {
    let redis = Server::start(Engine::Redis70);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = RedisStore::new(&redis.url(), Options::default()).unwrap();
        store.install().await.unwrap();
    });
    let programs = programs("python");
    let address = SocketAddr::from(([127, 0, 0, 1], redis.port()));
    let program = adapted(&programs[4], ("6379", address), 60);
    assert_two_allowed(&output("python", &program, RUN_TIMEOUT));
    assert_eq!(programs.len(), 5);
}
