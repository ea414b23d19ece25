//! A connection to the server: commands in, replies out.

use std::sync::Arc;

use sha1::{Digest as _, Sha1};
use sluicegate_redis::script::TEST_PREFIX;
use sluicegate_resp::{Arguments, Parser, Version, Writer};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, sleep_until},
};

use super::{
    script::ScriptReply,
    server::{Brand, RedisModel},
};
use crate::network::Stream;

/// Serves a connection of `process`, until it ends.
pub(crate) async fn serve(server: Arc<RedisModel>, process: usize, mut stream: Stream) {
    let start = server.state.lock().start;
    let (mut unread, mut parser) = (Vec::new(), Parser::default());
    loop {
        let (mut out, mut received) = (Vec::new(), std::mem::take(&mut unread));
        let mut rest = &mut received[..];
        let mut arguments = Arguments::new();
        while let Ok(true) = parser.parse(&mut rest, &mut arguments) {
            // A paused server runs nothing; what has arrived is run when it continues.
            loop {
                let until = server.state.lock().paused_until;
                if Instant::now() >= until {
                    break;
                }
                sleep_until(until).await;
            }
            if server.state.lock().start != start || !server.is_up() {
                return stream.reset();
            }
            server.run(process, &arguments, &mut out);
        }
        unread = rest.to_vec();
        if stream.write_all(&out).await.is_err() {
            return;
        }
        if !matches!(stream.read_buf(&mut unread).await, Ok(1..)) {
            return;
        }
    }
}

impl RedisModel {
    /// Runs a command, and writes its reply.
    pub(super) fn run(&self, process: usize, arguments: &[&[u8]], out: &mut Vec<u8>) {
        let mut writer = Writer::new(out, Version::Resp3);
        let Some((&name, rest)) = arguments.split_first() else { return };
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
            (b"EVAL", [text, rest @ ..]) => {
                let sha1 = format!("{:x}", Sha1::digest(text));
                self.state.lock().scripts.insert(sha1);
                self.run_script(process, rest, &mut writer);
            }
            (b"EVALSHA", [sha1, rest @ ..]) => {
                if self.state.lock().scripts.contains(&*String::from_utf8_lossy(sha1)) {
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
    fn run_script(&self, process: usize, arguments: &[&[u8]], writer: &mut Writer<'_>) {
        let [b"1", key, arguments @ ..] = arguments else {
            return writer.error("ERR the model knows scripts with one key only");
        };
        if arguments.is_empty() {
            // A probe, which tries to write.
            match self.state.lock().refusal() {
                Some(refusal) => writer.error(refusal.text()),
                None => writer.null(),
            }
            return;
        }
        let call = match self.policies.call(arguments) {
            Ok(call) => call,
            Err(error) => {
                self.checks.violation(format_args!("arguments of a script: {error:#}"));
                return writer.error("ERR invalid arguments");
            }
        };
        if call.at.is_some() && !key.starts_with(TEST_PREFIX) {
            // Clocks of processes differ.
            self.checks.violation(format_args!("exactness: a process sets the time of a decision"));
        }
        match self.decide(process, key, call) {
            Ok(ScriptReply::Debt(debt)) => writer.integer(debt.cast_signed()),
            Ok(ScriptReply::Decision(decision)) => writer.integers(&decision.to_integers()),
            Ok(ScriptReply::Calendars(now, names)) => {
                writer.array(1 + names.len());
                writer.integer(now.as_micros().cast_signed());
                names.into_iter().for_each(|name| writer.bulk(name));
            }
            Err(error) => writer.error(error),
        }
    }
}
