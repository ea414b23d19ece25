//! A connection to a server, and what its commands do.

use sha1::{Digest as _, Sha1};
use sluicegate_core::Timestamp;
use sluicegate_redis::script::TEST_PREFIX;
use sluicegate_resp::{Version, Writer};

use super::{
    script::ScriptReply,
    server::{Brand, RedisModel},
};

/// A connection of a process.
#[derive(Debug)]
pub(super) struct Session {
    /// The index of the process, and its number among all.
    pub(super) process: (usize, u64),
    /// Its number among all connections of the server.
    pub(super) number: u64,
    /// Whether the next command may be on a key that the server only gets.
    pub(super) is_asking: bool,
}

impl RedisModel {
    /// The state of a new connection.
    pub(super) fn new_session(&self, process: (usize, u64)) -> Session {
        let mut state = self.state.lock();
        state.sessions += 1;
        Session { process, number: state.sessions, is_asking: false }
    }

    /// Runs a command, and writes its reply.
    pub(super) fn run(&self, session: &Session, arguments: &[&[u8]], out: &mut Vec<u8>) {
        let mut writer = Writer::new(out, Version::Resp3);
        let process = session.process;
        let Some((&name, rest)) = arguments.split_first() else { return };
        if name != b"HELLO" && self.is_busy() {
            return writer.error(self.brand.busy());
        }
        match (name, rest) {
            (b"HELLO", _) => {
                writer.map(2);
                writer.bulk("server");
                writer.bulk("redis");
                writer.bulk("proto");
                writer.integer(3);
            }
            (b"SCRIPT", [b"FLUSH"]) => {
                self.flush_scripts();
                writer.simple("OK");
            }
            (b"CLIENT", _) => writer.simple("OK"),
            (b"PING", _) => writer.simple("PONG"),
            // The server has no module.
            (b"COMMAND", _) => {
                writer.array(1);
                writer.null();
            }
            (b"TIME", _) => {
                let now = self.clock.now().as_micros();
                writer.array(2);
                writer.bulk((now / 1_000_000).to_string());
                writer.bulk((now % 1_000_000).to_string());
            }
            (b"GET", [key]) => match self.value(key) {
                Some(bytes) => writer.bulk(bytes),
                None => writer.null(),
            },
            (b"EVAL", [text, rest @ ..]) => {
                let sha1 = format!("{:x}", Sha1::digest(text));
                self.state.lock().scripts.insert(sha1);
                self.begin_script(session.number);
                self.run_script(process, rest, &mut writer);
            }
            (b"EVALSHA", [sha1, rest @ ..]) => {
                if self.state.lock().scripts.contains(&*String::from_utf8_lossy(sha1)) {
                    self.begin_script(session.number);
                    self.run_script(process, rest, &mut writer);
                } else {
                    writer.error(match self.brand {
                        Brand::Redis => "NOSCRIPT No matching script. Please use EVAL.",
                        Brand::Valkey => "NOSCRIPT No matching script.",
                    });
                }
            }
            _ => {
                let name = String::from_utf8_lossy(name);
                self.checks.violation(format_args!("the model does not know the command {name}"));
                writer.error(format!("ERR unknown command '{name}'"));
            }
        }
    }

    /// Runs a script with its number of keys, keys and arguments.
    fn run_script(&self, process: (usize, u64), arguments: &[&[u8]], writer: &mut Writer<'_>) {
        match arguments {
            // A probe of a node of a cluster, which has no key.
            [b"0", _] => return writer.null(),
            // A probe, which tries to write.
            [b"1", _] => {
                return match self.state.lock().refusal() {
                    Some(refusal) => writer.error(refusal.text()),
                    None => writer.null(),
                };
            }
            _ => {}
        }
        let call = match self.policies.call(arguments) {
            Ok(call) => call,
            Err(error) => {
                self.checks.violation(format_args!("arguments of a script: {error:#}"));
                return writer.error("ERR invalid arguments");
            }
        };
        if call.at.is_some() && !call.keys.iter().all(|it| it.0.starts_with(TEST_PREFIX)) {
            // Clocks of processes differ.
            self.checks.violation(format_args!("exactness: a process sets the time of a decision"));
        }
        match self.decide(process, &call) {
            Ok(ScriptReply::Debt(debt)) => writer.integer(debt.cast_signed()),
            Ok(ScriptReply::Decisions(each)) => {
                let integers: Vec<_> = each.iter().flat_map(|it| it.to_integers()).collect();
                writer.array(integers.len());
                integers.into_iter().for_each(|it| writer.integer(it));
            }
            Ok(ScriptReply::Calendars(now, names)) => write_calendars(writer, now, names),
            Err(error) => writer.error(error),
        }
    }
}

/// Asks for calendars.
fn write_calendars(writer: &mut Writer<'_>, now: Timestamp, names: Vec<Vec<u8>>) {
    writer.array(1 + names.len());
    writer.integer(now.as_micros().cast_signed());
    names.into_iter().for_each(|name| writer.bulk(name));
}
