//! Examples of SEMANTICS.md, and the traces in `scenarios/`.

use super::{Answer, Op, Oracle, ParsedPolicy};

const S: u64 = 1_000_000;
const NOW: u64 = 1_700_000_000 * S;

/// One key; times are seconds after `NOW`.
struct Key(Oracle);

impl Key {
    fn new() -> Self {
        Self(Oracle::new())
    }

    fn at(&mut self, seconds: u64, policy: &str, op: Op, cost: u32) -> Answer {
        self.at_us(NOW + seconds * S, policy, op, cost)
    }

    fn at_us(&mut self, now_us: u64, policy: &str, op: Op, cost: u32) -> Answer {
        self.0.apply(b"k", policy, now_us, op, cost).unwrap()
    }
}

fn counts(answer: &Answer) -> (bool, u64, Option<u64>) {
    (answer.allowed, answer.remaining, answer.retry_after_us)
}

#[test]
fn take_cl_throttle_readme_example_matches() {
    let answer = Key::new().at(0, "gcra:30/60s:burst=16", Op::Take, 1);
    let expected = Answer {
        allowed: true,
        limit: 16,
        remaining: 15,
        retry_after_us: Some(0),
        reset_after_us: 2 * S,
        delay_us: 0,
        binding: 0,
    };
    assert_eq!(answer, expected);
}

#[test]
fn policy_change_from_30_to_60_with_30_used_leaves_30() {
    for machine in ["gcra", "leaky-queue", "fixed-window", "sliding-log", "sliding-counter"] {
        let mut key = Key::new();
        // The first request is at the start of a minute, which is also the start of clock-aligned windows.
        assert_eq!(counts(&key.at(40, &format!("{machine}:30/1m"), Op::Take, 30)).1, 0);
        let raised = key.at(40, &format!("{machine}:60/1m"), Op::Peek, 1);
        assert_eq!((raised.allowed, raised.remaining), (true, 30), "{machine}");
    }
}

#[test]
fn policy_change_from_30_to_20_with_30_used_denies_until_19_are_used() {
    let mut key = Key::new();
    key.at(0, "gcra:30/1m", Op::Take, 30);
    let denied = key.at(0, "gcra:20/1m", Op::Take, 1);
    // 11 of 30 units drain at one in 3 s.
    assert_eq!(counts(&denied), (false, 0, Some(33 * S)));
    assert!(!key.at_us(NOW + 33 * S - 1, "gcra:20/1m", Op::Take, 1).allowed);
    assert!(key.at(33, "gcra:20/1m", Op::Take, 1).allowed);

    let steps = "token-bucket:20/1m:refill=interval";
    let mut key = Key::new();
    key.at(0, "token-bucket:30/1m:refill=interval", Op::Take, 30);
    assert_eq!(counts(&key.at(59, steps, Op::Take, 1)), (false, 0, Some(S)));
    assert_eq!(counts(&key.at(60, steps, Op::Peek, 1)), (true, 10, Some(0)));
}

#[test]
fn take_denied_after_policy_change_stores_migrated_state() {
    // 30 units in use are 60 s of debt under the first policy, and 30 s under the second.
    let (slow, fast) = ("gcra:30/1m", "gcra:60/1m:burst=30");
    for (op, left) in [(Op::Peek, 45), (Op::Take, 30)] {
        let mut key = Key::new();
        key.at(0, slow, Op::Take, 30);
        assert!(!key.at(0, fast, op, 30).allowed);
        // The first policy continues from the migrated state.
        assert_eq!(key.at(15, slow, Op::Peek, 1).reset_after_us, left * S, "{op:?}");
    }
}

#[test]
fn reserve_beyond_max_wait_is_denied_unchanged() {
    let policy = "gcra:1/1s";
    let mut key = Key::new();
    assert_eq!(key.at(0, policy, Op::Reserve { max_wait_us: S }, 1).delay_us, 0);
    assert_eq!(key.at(0, policy, Op::Reserve { max_wait_us: S }, 1).delay_us, S);
    let denied = key.at(0, policy, Op::Reserve { max_wait_us: S }, 1);
    assert_eq!((counts(&denied), denied.reset_after_us), ((false, 0, Some(S)), 2 * S));
    assert_eq!(key.at(0, policy, Op::Reserve { max_wait_us: S }, 2).retry_after_us, None);
    assert!(
        Oracle::new()
            .apply(b"", "fixed-window:1/1s", 0, Op::Reserve { max_wait_us: 0 }, 1)
            .is_err()
    );
}

#[test]
fn reserve_queue_delay_is_time_to_departure() {
    let policy = "leaky-queue:1/1s:capacity=3";
    let mut key = Key::new();
    assert_eq!(key.at(0, policy, Op::Take, 2).delay_us, 0);
    assert_eq!(key.at(0, policy, Op::Reserve { max_wait_us: S }, 1).retry_after_us, Some(S));
    assert_eq!(key.at(0, policy, Op::Take, 1).delay_us, 2 * S);
    assert_eq!(counts(&key.at(0, policy, Op::Take, 1)), (false, 0, Some(S)));
}

#[test]
fn take_borrow_and_charge_exceed_capacity() {
    for policy in ["gcra:10/10s:borrow", "token-bucket:10/10s:borrow:refill=interval"] {
        let mut key = Key::new();
        assert_eq!(counts(&key.at(0, policy, Op::Take, 25)), (true, 0, Some(0)), "{policy}");
        assert!(!key.at(15, policy, Op::Take, 1).allowed, "{policy}");
        assert!(key.at(20, policy, Op::Take, 1).allowed, "{policy}");
    }
    let mut key = Key::new();
    let charged = key.at(0, "gcra:1/366d", Op::Charge, u32::MAX);
    assert_eq!((charged.allowed, charged.reset_after_us), (true, 1 << 50));
}

#[test]
fn take_denied_is_recorded_by_every_count_all_limit() {
    let policy = "fixed-window:2/10s:count=all,sliding-log:1/60s";
    let mut key = Key::new();
    assert!(key.at(0, policy, Op::Take, 1).allowed);
    let denied = key.at(0, policy, Op::Take, 1);
    assert_eq!((counts(&denied), denied.binding), ((false, 0, Some(60 * S)), 1));
    assert_eq!(key.at(0, "fixed-window:2/10s:count=all", Op::Peek, 1).remaining, 0);
}

#[test]
fn log_with_keep_is_migrated_to_longer_period() {
    let mut key = Key::new();
    key.at(0, "sliding-log:30/1m:keep=1h", Op::Take, 20);
    assert_eq!(key.at(600, "sliding-log:30/1m:keep=1h", Op::Peek, 1).remaining, 30);
    assert_eq!(key.at(600, "sliding-log:30/1h", Op::Peek, 1).remaining, 10);
    assert_eq!(key.at(600, "fixed-window:30/1h", Op::Peek, 1).remaining, 30);
}

#[test]
fn log_old_events_are_dropped() {
    let mut key = Key::new();
    for _ in 0..5 {
        key.at(0, "sliding-log:2/1m", Op::Charge, 1);
    }
    assert_eq!(key.at(0, "sliding-log:9/1m", Op::Peek, 1).remaining, 7);
}

#[test]
fn policy_change_new_limits_continue_matching_old_ones() {
    let remaining = |old: &str, new: &str| {
        let mut key = Key::new();
        key.at(40, old, Op::Take, 3);
        key.at(40, new, Op::Peek, 1).remaining
    };
    // The second limit continues the log, because the period is equal; the first starts with a copy.
    assert_eq!(remaining("sliding-log:10/1m", "sliding-log:20/1h,sliding-log:9/1m"), 6);
    // The same number of limits: a bucket is paired with a window.
    assert_eq!(remaining("fixed-window:10/1m", "gcra:10/1m"), 7);
    // A different number of limits: the window starts unused.
    assert_eq!(remaining("gcra:10/1m,gcra:10/1h", "fixed-window:10/1m"), 10);
}

#[test]
fn window_month_ends_at_local_midnight() {
    // 2023-11-30T15:59:59Z is the last second of November in Shanghai.
    let last = 1_701_359_999 * S;
    let policy = "fixed-window:10000/month:tz=Asia/Shanghai";
    let mut key = Key::new();
    assert_eq!(key.at_us(last, policy, Op::Take, 10_000).reset_after_us, S);
    assert_eq!(key.at_us(last, policy, Op::Take, 1).retry_after_us, Some(S));
    assert_eq!(key.at_us(last + S, policy, Op::Take, 1).reset_after_us, 31 * 86_400 * S);
}

#[test]
fn window_day_at_clock_change_has_local_length() {
    let opens = |zone: &str, now: u64| {
        let policy = format!("fixed-window:1/day:tz={zone}");
        Key::new().at_us(now * S, &policy, Op::Take, 1).reset_after_us / S
    };
    // 2024-03-31 in Berlin has 23 hours; its midnight is 23:00Z.
    assert_eq!(opens("Europe/Berlin", 1_711_839_600), 23 * 3_600);
    // 2015-10-18 in Sao Paulo begins at 01:00, which is 03:00Z.
    assert_eq!(opens("America/Sao_Paulo", 1_445_137_200), 23 * 3_600);
    assert_eq!(opens("America/Sao_Paulo", 1_445_137_199), 1);
    // On 2007-11-04 clocks in St John's went from 00:01 back to 23:01: the new day continues.
    assert_eq!(opens("America/St_Johns", 1_194_143_400 - 1), 1);
    assert_eq!(opens("America/St_Johns", 1_194_143_400), 25 * 3_600);
    assert_eq!(opens("America/St_Johns", 1_194_143_400 + 90), 25 * 3_600 - 90);
    // Apia skipped 2011-12-30: the 29th, 10:00Z to 10:00Z, is followed by the 31st.
    assert_eq!(opens("Pacific/Apia", 1_325_152_800), 86_400);
    assert_eq!(opens("Pacific/Apia", 1_325_239_200), 86_400);
}

#[test]
fn window_beyond_the_calendar_is_an_error() {
    let take = |policy| Oracle::new().apply(b"k", policy, 1 << 58, Op::Take, 1);
    assert!(take("fixed-window:1/day").is_err() && take("fixed-window:1/1d").is_ok());
}

#[test]
fn take_before_the_time_of_the_key_is_decided_as_at_that_time() {
    for (policy, left) in [
        ("fixed-window:5/10s", 10 * S),
        ("fixed-window:5/10s:align=clock", 10 * S),
        ("fixed-window:5/day", 86_400 * S - (NOW / S + 20) % 86_400 * S),
        ("sliding-log:5/10s", 10 * S),
        ("token-bucket:5/10s:refill=interval", 10 * S),
        ("sliding-counter:5/10s", 12 * S),
    ] {
        let mut key = Key::new();
        key.at(20, policy, Op::Take, 4);
        let straggler = key.at(17, policy, Op::Take, 1);
        assert_eq!((straggler.allowed, straggler.remaining), (true, 0), "{policy}");
        // Both were charged at 20 s.
        assert_eq!(counts(&key.at(17, policy, Op::Take, 1)).2, Some(left + 3 * S), "{policy}");
        assert_eq!(key.at(20, policy, Op::Peek, 1).retry_after_us, Some(left), "{policy}");
    }
}

#[test]
fn take_a_period_or_more_before_the_time_of_the_key_is_decided_as_after_a_clock_set_back() {
    for (policy, retry) in [
        ("fixed-window:5/10s", 10 * S),
        ("sliding-log:5/10s", 10 * S),
        ("token-bucket:5/10s:refill=interval", 10 * S),
        // Its windows begin at multiples of 10 s: it opens as one of that time does.
        ("fixed-window:5/10s:align=clock", 7 * S),
        ("sliding-counter:5/10s", 9 * S),
    ] {
        let mut key = Key::new();
        key.at(30, policy, Op::Take, 5);
        assert_eq!(counts(&key.at(13, policy, Op::Take, 1)), (false, 0, Some(retry)), "{policy}");
        // The denial changed nothing: the stored time is still the later one.
        assert!(key.at(31, policy, Op::Peek, 1).retry_after_us > Some(8 * S), "{policy}");
    }
}

#[test]
fn reserve_denied_after_policy_change_stores_the_carried_state() {
    let (slow, fast) = ("gcra:30/1m", "gcra:60/1m:burst=30");
    let mut key = Key::new();
    key.at(0, slow, Op::Take, 30);
    assert!(!key.at(0, fast, Op::Reserve { max_wait_us: S }, 30).allowed);
    assert_eq!(key.at(15, slow, Op::Peek, 1).reset_after_us, 30 * S);
}

#[test]
fn oracle_scenarios_match_expected_counts() {
    macro_rules! trace {
        ($name:literal) => {
            include_str!(concat!("../../../../scenarios/", $name, ".csv"))
        };
    }
    let table = [
        (trace!("boundary-burst"), "fixed-window:100/60s:align=clock", 200, 0),
        (trace!("boundary-burst"), "sliding-log:100/60s", 100, 100),
        (trace!("boundary-burst"), "sliding-counter:100/60s", 101, 99),
        (trace!("counter-1980"), "token-bucket:1000/3s", 1785, 215),
        (trace!("late-rush"), "gcra:60/60s:burst=1", 1, 59),
        (trace!("late-rush"), "token-bucket:60/60s:burst=10", 10, 50),
        (trace!("queue-200ms"), "leaky-queue:5/1s:capacity=20", 20, 10),
        (trace!("third-party-29"), "leaky-queue:30/60s:capacity=30", 29, 0),
        (trace!("across-minutes"), "fixed-window:30/60s:align=clock", 40, 0),
        (trace!("across-minutes"), "sliding-log:30/60s", 30, 10),
        (trace!("time-bucketed-20"), "fixed-window:20/30s", 21, 6),
        (trace!("time-bucketed-20"), "gcra:20/30s", 22, 5),
        (trace!("gcra-10-per-minute"), "gcra:10/60s", 12, 3),
        (trace!("interval-refill"), "token-bucket:10/1s:burst=20:refill=interval", 50, 30),
        (trace!("interval-refill"), "token-bucket:10/1s:burst=20", 59, 21),
        (trace!("count-all"), "sliding-log:30/60s:count=all", 30, 330),
        (trace!("count-all"), "sliding-log:30/60s", 90, 270),
        (trace!("spent-at-once"), "fixed-window:1000/3s:align=clock", 1300, 600),
        (trace!("ten-or-one"), "gcra:10/60s", 19, 41),
        (trace!("ten-or-one"), "gcra:1/6s", 10, 50),
    ];
    for (trace, policy, allowed, denied) in table {
        let mut key = Key::new();
        let mut counted = (0, 0);
        for line in trace.lines().skip(1) {
            let fields: Vec<&str> = line.split(',').collect();
            let (now, cost) = (fields[0].parse().unwrap(), fields[2].parse().unwrap());
            match key.at_us(now, policy, Op::Take, cost).allowed {
                true => counted.0 += 1,
                false => counted.1 += 1,
            }
        }
        assert_eq!(counted, (allowed, denied), "{policy}");
    }
}

#[test]
fn parse_every_form_of_semantics_is_accepted() {
    for text in [
        "gcra:30/60s:burst=16",
        "token-bucket:10/1s:burst=20:refill=interval:borrow",
        "token-bucket:10/s:capacity=20",
        "leaky-bucket:1/250ms:borrow",
        "leaky-queue:5/1s:capacity=20",
        "sliding-log:30/1m:count=all:keep=1h:keep-max=7",
        "sliding-log:30/1m,sliding-log:1000/1d",
        "fixed-window:10000/month:tz=Asia/Shanghai",
        "fixed-window:100/minute:align=clock",
        "sliding-counter:4294967295/366d",
        "concurrency:65536/30s,gcra:1/1s",
    ] {
        assert!(ParsedPolicy::parse(text).is_ok(), "{text}: {:?}", ParsedPolicy::parse(text).err());
    }
}

#[test]
fn parse_invalid_policy_is_rejected() {
    for text in [
        "",
        "gcra",
        "gcra:30",
        "gcra:0/1s",
        "gcra:4294967296/1s",
        "gcra:+1/1s",
        "gcra:1/0s",
        "gcra:1/999us",
        "gcra:1/367d",
        "gcra:1/1x",
        "gcra:1/day",
        "gcra:1/1s:burst",
        "gcra:1/1s:burst=0",
        "gcra:1/1s:burst=2:burst=2",
        "gcra:1/1s:burst=2:capacity=2",
        "gcra:1/1s:refill=interval",
        "gcra:1/1s:count=all",
        "gcra:1/366d:burst=100",
        "token-bucket:1/366d:burst=100:refill=interval",
        "leaky-queue:1/1s:borrow",
        "fixed-window:1/1s:tz=UTC",
        "fixed-window:1/day:tz=Nowhere/AtAll",
        "fixed-window:1/1s:align=moon",
        "sliding-log:1/1s:keep-max=9",
        "sliding-counter:1/1s:",
        "concurrency:0/1s",
        "concurrency:65537/1s",
        "concurrency:1/999us",
        "concurrency:1/day",
        "concurrency:1/1s:count=all",
        "gcra:1/1s,",
        "gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s",
    ] {
        assert!(ParsedPolicy::parse(text).is_err(), "{text}");
    }
}
