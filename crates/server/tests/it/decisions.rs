//! Decisions of the server equal those of the core.

use std::time::Duration;

use sluicegate_core::{Entry, Operation, Policy, Timestamp, apply};
use sluicegate_resp::Value;

use crate::harness::{Running, integers};

/// A small generator of numbers, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A command, and the same operation for the core.
fn command(
    numbers: &mut Numbers,
    policy: &str,
    key: &str,
    now: u64,
) -> (String, Operation<'static>) {
    let cost = u32::try_from(numbers.below(5)).unwrap();
    let (name, extra, operation) = match numbers.below(9) {
        0..=4 => ("SG.TAKE", String::new(), Operation::Take(cost)),
        5 => ("sg.peek", String::new(), Operation::Peek(cost)),
        6 => ("SG.CHARGE", String::new(), Operation::Charge(cost)),
        7 => ("SG.REFUND", String::new(), Operation::Refund(cost)),
        _ => {
            let micros = numbers.below(3_000_000);
            let max_wait = Duration::from_micros(micros);
            ("SG.RESERVE", format!(" MAXWAIT {micros}"), Operation::Reserve { cost, max_wait })
        }
    };
    (format!("{name} {key} {policy} AT {now} COST {cost}{extra}"), operation)
}

#[test]
fn traces_over_resp_agree_with_the_core() {
    let policies = [
        "gcra:3/1s",
        "token-bucket:10/1s:burst=4:refill=interval",
        "leaky-queue:5/1s:capacity=6",
        "fixed-window:5/2s:align=clock,gcra:7/3s",
        "sliding-log:4/1s:count=all:keep=5s",
        "sliding-counter:6/1s",
        "leaky-bucket:2/1s:borrow:capacity=3",
    ];
    let server = Running::with_test_clock();
    let mut peer = server.connect();
    let mut numbers = Numbers(7);
    for (index, text) in policies.iter().enumerate() {
        // Half of the keys change their rule as they go.
        let texts = [*text, policies[(index + 1) % policies.len()]];
        for changing in [false, true] {
            let key = format!("key{index}{changing}");
            let (mut entry, mut now) = (None::<Entry>, 1_700_000_000_000_000);
            let (mut lines, mut expected) = (Vec::new(), Vec::new());
            for _ in 0..400 {
                now += numbers.below(400_000);
                let text = texts[usize::from(changing && numbers.below(9) == 0)];
                let (line, operation) = command(&mut numbers, text, &key, now);
                let policy: Policy = text.parse().unwrap();
                let at = Timestamp::from_micros(now).unwrap();
                let decision = apply(&policy, &mut entry, at, operation);
                expected.push(decision.map(|decision| decision.to_integers().to_vec()).ok());
                lines.push(line);
            }
            lines.iter().for_each(|line| peer.send_command(line));
            for (line, expected) in lines.iter().zip(expected) {
                match (peer.read_reply(), expected) {
                    (received, Some(expected)) => {
                        assert_eq!(integers(&received), expected, "{line}")
                    }
                    (Value::Error(text), None) => {
                        assert!(text.starts_with(b"ERR reserve"), "{line}")
                    }
                    (other, None) => panic!("{line}: {other:?}"),
                }
            }
        }
    }
}

#[test]
fn arguments_at_the_bounds_are_accepted() {
    let server = Running::with_test_clock();
    let mut peer = server.connect();
    let never = |limit: i64| vec![0, limit, limit, -1, 0, 0, 0];
    for time in ["0", "2251799813685248", "4503599627370496"] {
        let key = format!("k{time}");
        let command =
            |rest: &str| format!("{} AT {time}", rest.replacen(' ', &format!(" {key} "), 1));
        assert_eq!(peer.integers(&command("SG.TAKE gcra:5/1s COST 4294967295")), never(5));
        assert_eq!(peer.integers(&command("SG.TAKE fixed-window:5/1s"))[..3], [1, 5, 4]);
        assert_eq!(peer.call(&format!("SG.RESET {key} AT {time}")), Value::Integer(1));
        let whole = "gcra:4294967295/366d COST 4294967295";
        assert_eq!(
            peer.integers(&command(&format!("SG.TAKE {whole}")))[..3],
            [1, 4_294_967_295, 0]
        );
        assert_eq!(peer.integers(&command(&format!("SG.TAKE {whole}")))[0], 0);
    }
}

#[test]
fn charge_repeated_at_maximum_cost_saturates() {
    let server = Running::with_test_clock();
    let mut peer = server.connect();
    for policy in [
        "gcra:1/1s",
        "token-bucket:1/1s:refill=interval",
        "fixed-window:1/1s",
        "sliding-log:1/1s",
        "sliding-counter:1/1s",
        "gcra:1/366d",
    ] {
        let line = format!("SG.CHARGE {policy} {policy} COST 4294967295 AT 1000000");
        let mut last = Vec::new();
        for _ in 0..300 {
            last = peer.integers(&line);
        }
        assert_eq!(last[..3], [1, 1, 0], "{policy}");
        assert!(last[4] <= 1 << 50, "{policy}: {last:?}");
        assert_eq!(
            peer.integers(&format!("SG.TAKE {policy} {policy} AT 1000000"))[0],
            0,
            "{policy}"
        );
    }
}

/// Its window is that of `SG.TAKE` under the same policy.
#[test]
fn increx_counts_in_a_fixed_window() {
    let server = Running::new();
    let mut peer = server.connect();
    assert_eq!(peer.integers("INCREX user7 BYINT 2 UBOUND 3 EX 3600 ENX"), [2, 2]);
    assert_eq!(peer.integers("INCREX user7 BYINT 2 UBOUND 3 EX 3600 ENX"), [2, 0]);
    assert_eq!(peer.integers("SG.TAKE user7 fixed-window:3/1h")[..3], [1, 3, 0]);
    assert_eq!(peer.integers("increx user7 ubound 3 px 3600000"), [3, 0]);
    assert!(peer.error("INCREX user7 BYFLOAT 1 UBOUND 3 EX 9").contains("expected BYINT, UBOUND"));
}

#[test]
fn cl_throttle_rounds_to_seconds() {
    let server = Running::new();
    let mut peer = server.connect();
    assert_eq!(peer.integers("CL.THROTTLE user123 15 30 60"), [0, 16, 15, -1, 2]);
    assert_eq!(peer.integers("cl.throttle user123 15 30 60 0"), [0, 16, 15, -1, 2]);
    assert_eq!(peer.integers("CL.THROTTLE user123 15 30 60 17"), [1, 16, 15, -1, 2]);
    assert_eq!(peer.integers("CL.THROTTLE day 0 1 86400"), [0, 1, 0, -1, 86_400]);
    assert_eq!(peer.integers("CL.THROTTLE day 0 1 86400"), [1, 1, 0, 86_400, 86_400]);
    assert_eq!(
        peer.error("CL.THROTTLE user123 -1 30 60"),
        "ERR invalid max_burst `-1`: expected a whole number from 0 to 4294967294"
    );
}

#[test]
fn at_without_test_clock_is_rejected() {
    let server = Running::new();
    let mut peer = server.connect();
    let refused = "ERR option AT is unavailable: the server runs without --test-clock";
    assert_eq!(peer.error("SG.TAKE k gcra:1/s AT 5"), refused);
    assert_eq!(peer.integers("SG.TAKE k gcra:1/s")[0], 1);
}

#[test]
fn take_many_of_maximum_length_is_answered() {
    let server = Running::new();
    let mut peer = server.connect();
    let take = ["k", "gcra:200/1h", "1"];
    for count in [255, 256] {
        let line = format!("SG.MTAKE {count} {}", vec![take.join(" "); count].join(" "));
        let Value::Array(decisions) = peer.call(&line) else { panic!("no array") };
        assert_eq!(decisions.len(), count);
    }
    assert_eq!(server.info_value("allowed"), 200);
    let line = format!("SG.MTAKE 257 {}", vec![take.join(" "); 257].join(" "));
    assert_eq!(peer.error(&line), "ERR invalid n `257`: expected a whole number from 1 to 256");
}
