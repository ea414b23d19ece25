//! Clients of RESP: every command, in pipelines of all lengths.

use std::sync::atomic::{AtomicBool, Ordering};

use sluicegate_resp::Value;

use super::ProtocolCounts;
use crate::harness::{Random, Running};

impl ProtocolCounts {
    /// Counts the reply to `line`.
    fn note(&mut self, line: &str, reply: &Value) {
        self.requests += 1;
        match reply {
            Value::Error(_) => self.errors += 1,
            Value::Array(elements) if line.starts_with("SG.MTAKE") => {
                self.more += elements.len() as u64 - 1;
                elements.iter().for_each(|element| self.decided(is_allowed(element, 1)));
            }
            Value::Array(_) if line.starts_with("CL.") => self.decided(is_allowed(reply, 0)),
            Value::Array(_) => self.decided(is_allowed(reply, 1)),
            _ => self.other += 1,
        }
    }
}

fn is_allowed(decision: &Value, allowed: i64) -> bool {
    let Value::Array(integers) = decision else { panic!("no decision: {decision:?}") };
    integers[0] == Value::Integer(allowed)
}

/// A command of any kind. Policies change from `round` to `round`, under keys that live on.
fn line(random: &mut Random, round: u64) -> String {
    let key = random.below(1_000);
    let policy = match random.below(7) {
        0 => "gcra:100/1s:burst=10".to_owned(),
        1 => format!("gcra:{}/1m", 1 + round % 10_000),
        2 => format!("sliding-log:{}/10s", 1 + round % 50),
        3 => "fixed-window:20/1s".to_owned(),
        4 => format!("sliding-counter:{}/1m,gcra:5/1s", 1 + round % 100),
        5 => "token-bucket:50/1s:borrow".to_owned(),
        _ => "leaky-queue:100/1s:capacity=20".to_owned(),
    };
    match random.below(14) {
        0..5 => format!("SG.TAKE k{key} {policy}"),
        5 => format!("SG.PEEK k{key} {policy}"),
        6 => format!("SG.CHARGE k{key} {policy} COST 2"),
        7 => format!("SG.REFUND k{key} {policy} COST 3"),
        8 => format!("SG.MTAKE 3 k{key} {policy} 1 a{key} {policy} 2 b{key} gcra:9/1m 1"),
        9 => format!("CL.THROTTLE t{key} 15 30 60"),
        10 => format!("SG.RESERVE r{key} gcra:10/1s MAXWAIT 100000"),
        11 => format!("SG.WAIT w{key} gcra:10/1s TIMEOUT 0"),
        12 => format!("SG.RESET k{key}"),
        _ => match random.below(4) {
            0 => "PING".to_owned(),
            1 => format!("SG.TAKE k{key} gcra:0/1s"),
            2 => format!("SG.TAKE k{key} {policy} COST x"),
            _ => format!("EXISTS k{key}"),
        },
    }
}

/// One client until `stop`: pipelines of all lengths, now and then on a new connection.
pub(super) fn client(server: &Running, seed: u64, stop: &AtomicBool) -> ProtocolCounts {
    let mut seen = ProtocolCounts::default();
    let mut random = Random(seed);
    let mut peer = server.connect();
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if random.below(500) == 0 {
            peer = server.connect();
        }
        let lines: Vec<_> =
            (0..=random.below(100)).map(|_| line(&mut random, round / 20)).collect();
        peer.send(lines.join("\r\n") + "\r\n");
        for line in &lines {
            seen.note(line, &peer.read_reply());
        }
    }
    seen
}
