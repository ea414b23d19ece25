//! The model answers as real servers do, byte for byte, and its keys have the same state.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};

use sluicegate_core::{Entry, PreparedPolicy, Timestamp};
use sluicegate_redis::script::{Plan as ScriptPlan, TEST_PREFIX};
use sluicegate_testing::{Engine, Server, size};

use super::{Brand, Policies, RedisModel, script::calendar_names, session::Session};
use crate::{
    check::Checks,
    event_log::{EventLog, Output},
    plan::{PolicyPlan, Request, World as _},
    random::Random,
    shared::{Action, Shared},
    time::{HostClock, VirtualTime},
};

/// The script that tries whether the server accepts writes.
const PROBE: &str = include_str!("../../../redis/lua/probe.lua");
/// Commands that are sent at once.
const BATCH: usize = 100;

/// A server and the model, which get the same commands.
struct Both {
    stream: TcpStream,
    model: Arc<RedisModel>,
    session: Session,
    /// Commands to be sent, and what the model replied to each.
    commands: Vec<Vec<Vec<u8>>>,
    replies: Vec<Vec<u8>>,
    sent: u64,
}

impl Both {
    fn start(server: &Server, brand: Brand, policies: Policies) -> Self {
        let time = VirtualTime::start();
        let log = Arc::new(EventLog::new(&time, Output::Nothing));
        let checks = Arc::new(Checks::new(&time, 1, 0, 15, std::iter::empty()));
        let clock = HostClock::new(&time, &Random::new(0, "server"));
        let model = RedisModel::new(brand, clock, Arc::new(policies), log, checks);
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The reply names the version: it is read to its end, which is known by the one to the PING.
        stream.write_all(b"HELLO 3\r\nPING\r\n").unwrap();
        let mut read = Vec::new();
        while !read.ends_with(b"+PONG\r\n") {
            let mut bytes = [0; 4096];
            let count = stream.read(&mut bytes).unwrap();
            read.extend_from_slice(&bytes[..count]);
        }
        let session = model.new_session((0, 0));
        Self { stream, model, session, commands: Vec::new(), replies: Vec::new(), sent: 0 }
    }

    fn send(&mut self, command: &[&[u8]]) {
        let mut reply = Vec::new();
        self.model.run(&self.session, command, &mut reply);
        self.commands.push(command.iter().map(|it| it.to_vec()).collect());
        self.replies.push(reply);
        if self.commands.len() == BATCH {
            self.compare();
        }
    }

    /// Sends what has been collected, and compares the replies.
    fn compare(&mut self) {
        let mut bytes = Vec::new();
        for command in &self.commands {
            write!(bytes, "*{}\r\n", command.len()).unwrap();
            for argument in command {
                write!(bytes, "${}\r\n", argument.len()).unwrap();
                bytes.extend_from_slice(argument);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        self.stream.write_all(&bytes).unwrap();
        for (command, expected) in self.commands.drain(..).zip(self.replies.drain(..)) {
            let reads_state = command[0] == b"GET";
            let mut found = if reads_state {
                read_bulk(&mut self.stream)
            } else {
                let mut reply = vec![0; expected.len()];
                self.stream.read_exact(&mut reply).unwrap();
                reply
            };
            // Scripts may write a log with fields that are wider than necessary.
            let is_same_state =
                || reads_state && state(&found).is_some_and(|it| state(&expected) == Some(it));
            if found != expected && !is_same_state() {
                let mut rest = vec![0; 500];
                let count = self.stream.read(&mut rest).unwrap_or_default();
                found.extend_from_slice(&rest[..count]);
                let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
                let words: Vec<_> =
                    command.iter().map(|it| shown(&it[..it.len().min(80)])).collect();
                panic!("{words:?}\n  server: {}\n  model: {}", shown(&found), shown(&expected));
            }
            self.sent += 1;
        }
    }
}

/// Reads a bulk string, or the null.
fn read_bulk(stream: &mut TcpStream) -> Vec<u8> {
    let mut reply = Vec::new();
    while !reply.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        reply.extend(byte);
    }
    let length = str::from_utf8(&reply[1..reply.len() - 2]).ok().and_then(|it| it.parse().ok());
    if let Some(length) = length.filter(|_| reply[0] == b'$') {
        let (head, length): (_, usize) = (reply.len(), length);
        reply.resize(head + length + 2, 0);
        stream.read_exact(&mut reply[head..]).unwrap();
    }
    reply
}

/// The state in the reply to a `GET`, if there is one.
fn state(reply: &[u8]) -> Option<Entry> {
    let head = reply.iter().position(|it| *it == b'\n')?;
    Entry::decode(reply.get(head + 1..reply.len().checked_sub(2)?)?).ok()
}

/// One hour, longer than any run.
const HOUR: Duration = Duration::from_hours(1);

/// Sends the same requests of plans, by scripts that are known and unknown, to the server and the model. In two plans of
/// three, both have no memory or accept no writes from the middle on.
fn model_answers_as(engine: Engine, brand: Brand) {
    let server = Server::start(engine);
    let wanted = size("SLUICEGATE_MODEL_COMMANDS", 20_000);
    let (mut sent, mut seed) = (0, 0);
    while sent < wanted {
        let plan = Shared::generate(seed, &Random::new(seed, "plan"));
        seed += 1;
        let policies: Vec<Vec<_>> = plan
            .keys
            .iter()
            .map(|key| key.0.iter().map(|it: &PolicyPlan| it.prepare().unwrap()).collect())
            .collect();
        let scripts: Vec<Vec<_>> = policies
            .iter()
            .map(|key| key.iter().map(|it: &PreparedPolicy| ScriptPlan::new(it.policy())).collect())
            .collect();
        let mut known = Policies::default();
        policies.iter().flatten().for_each(|it| known.add(it.policy()).unwrap());
        let mut both = Both::start(&server, brand, known);
        let random = Random::new(seed, "compared");
        both.send(&[b"SCRIPT", b"FLUSH"]);
        both.send(&[b"PING"]);
        both.send(&[b"COMMAND", b"INFO", b"SG.TAKE"]);
        both.send(&[b"EVAL", PROBE.as_bytes(), b"1", b"sg:test:probe"]);
        let mut used = vec![0; policies.len()];
        let mut number = 0;
        for (index, step) in plan.steps.iter().enumerate() {
            if index == plan.steps.len() / 2 {
                both.compare();
                match seed % 3 {
                    0 => {
                        server.query::<()>("CONFIG SET maxmemory 1");
                        both.model.exhaust_memory(HOUR);
                    }
                    1 => {
                        server.query::<()>("REPLICAOF 127.0.0.1 1");
                        both.model.refuse_writes(HOUR);
                    }
                    _ => {}
                }
                both.send(&[b"EVAL", PROBE.as_bytes(), b"1", b"sg:test:probe"]);
            }
            match &step.action {
                Action::UsePolicy { key, policy } => used[*key] = *policy,
                Action::Request(requests) => {
                    for &(key, request) in requests {
                        // The model asks for calendars whether it needs them or not.
                        let has_calendar =
                            |it: &PreparedPolicy| !calendar_names(it.policy()).is_empty();
                        if policies[key].len() > 1 && policies[key].iter().any(has_calendar) {
                            continue;
                        }
                        number += 1;
                        let script = &scripts[key][used[key]];
                        // Clocks are set back, too.
                        let back = if random.chance(1) { random.below(5_000_000) } else { 0 };
                        let micros = 1_700_000_000_000_000 + step.at * 1000 + number % 1000 - back;
                        let now = Timestamp::saturating_from_micros(micros);
                        let name = [TEST_PREFIX, format!("{seed}-{key}").as_bytes()].concat();
                        request_one(&mut both, script, request, &name, now);
                    }
                }
                _ => {}
            }
        }
        both.compare();
        server.query::<()>("CONFIG SET maxmemory 0");
        server.query::<()>("REPLICAOF NO ONE");
        assert_eq!(both.model.checks.take_violation(), None, "seed {seed}");
        sent += both.sent;
    }
    println!("figure: {sent} commands to {engine:?} and to the model, 0 answers differ");
}

fn request_one(
    both: &mut Both,
    script: &ScriptPlan,
    request: Request,
    name: &[u8],
    now: Timestamp,
) {
    let id = request.hold_id();
    let arguments = script.arguments(request.operation(&id), now, Some(now), &[]);
    let Ok(arguments) = arguments else { return };
    let (sha1, text) = (script.script().sha1(), script.script().text());
    let is_known = both.model.state.lock().scripts.contains(sha1);
    let call = |both: &mut Both, head: [&[u8]; 2]| {
        let mut command = vec![head[0], head[1], b"1", name];
        command.extend(arguments.iter());
        both.send(&command);
    };
    call(both, [b"EVALSHA", sha1.as_bytes()]);
    if !is_known {
        call(both, [b"EVAL", text.as_bytes()]);
    }
    both.send(&[b"GET", name]);
}

#[test]
fn model_answers_as_redis_7_0() {
    model_answers_as(Engine::Redis70, Brand::Redis);
}

#[test]
fn model_answers_as_valkey_9_1() {
    model_answers_as(Engine::Valkey91, Brand::Valkey);
}
