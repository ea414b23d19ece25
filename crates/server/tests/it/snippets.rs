//! The programs of `docs/clients.md` do what the page says, where their languages are here: those in
//! Python and JavaScript, with the clients that they name.

use std::{fs, process::Command};

use sluicegate_redis::{Options, RedisStore};
use sluicegate_testing::{Engine, Folder, Server};

use crate::{
    clients::{run, tools},
    harness::{Running, root},
};

/// What stands there, and what a busy machine needs in its place.
const PATIENT: [(&str, &str); 2] = [
    ("socket_timeout=0.25", "socket_timeout=60"),
    ("commandTimeout: 250", "commandTimeout: 60000"),
];

fn page() -> String {
    fs::read_to_string(root().join("docs/clients.md")).unwrap()
}

/// The programs of a language, in order.
fn programs(language: &str) -> Vec<String> {
    let (open, page) = (format!("\n```{language}\n"), page());
    let begin = |part: &str| part.split("\n```").next().unwrap().to_owned();
    page.split(&open).skip(1).map(begin).collect()
}

/// Runs a program as a file of its own; what it says.
fn said(command: &mut Command, program: &str, (port, here): (&str, u16)) -> String {
    let folder = Folder::new();
    let file = folder.path().join("program.cjs");
    assert!(program.contains(port), "{program}");
    let program = program.replace(port, &here.to_string());
    let program = PATIENT.iter().fold(program, |text, (from, to)| text.replace(from, to));
    fs::write(&file, program).unwrap();
    run(command.arg(file), "")
}

/// Twice it goes, and then it waits for about half a minute.
fn check(said: &str) {
    let page = page();
    let told = page.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let (go, wait) = told.split_at(told.find("wait").unwrap());
    assert_eq!((said.lines().count(), told.lines().count()), (3, 3), "{said}");
    assert_eq!(wait, "wait 30 s\n");
    assert!(said.starts_with(&format!("{go}wait ")), "{said}");
}

fn python() -> Command {
    Command::new(tools().join("venv/bin/python"))
}

#[test]
fn the_programs_in_python() {
    let programs = programs("python");
    let [ours, function] = &*programs else { panic!("{} programs", programs.len()) };
    let server = Running::new();
    check(&said(&mut python(), ours, ("6380", server.address.port())));

    let redis = Server::start(Engine::Redis70);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = RedisStore::new(&redis.url(), Options::default()).unwrap();
        store.install().await.unwrap();
    });
    check(&said(&mut python(), function, ("6379", redis.port())));
}

#[test]
fn the_programs_in_javascript() {
    let programs = programs("js");
    assert_eq!(programs.len(), 2, "ioredis and node-redis");
    for program in programs {
        let server = Running::new();
        let mut node = Command::new("node");
        node.env("NODE_PATH", tools().join("node/node_modules"));
        check(&said(&mut node, &program, ("6380", server.address.port())));
    }
}
