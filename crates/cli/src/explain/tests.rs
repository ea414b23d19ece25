use super::*;

/// Each policy with its description, after its canonical form.
const WORDS: &[(&str, &str)] = &[
    (
        "gcra:30/60s:burst=16",
        "gcra:30/1m:burst=16
  at once    16 units after idling
  sustained  30 units per 1m: one each 2s
  at most    16 units in any second, 45 in any 1m, 43215 in any day
  denied     waits 2s at most for 1 unit, 32s for 16
  never      more than 16 units at a time
",
    ),
    (
        "leaky-queue:5/1s:capacity=20",
        "leaky-queue:5/1s:capacity=20
  at once    20 units into the queue, when it is empty
  sustained  5 units per 1s: one goes each 200ms
  at most    24 units in any second, 432019 in any day
  sent       at most 5 units in any second, 432000 in any day
  denied     waits 200ms at most for 1 unit, 4s for 20
  never      more than 20 units at a time
",
    ),
    (
        "token-bucket:7/1m:borrow",
        "token-bucket:7/1m:borrow
  at once    7 units after idling; one request may take more, if 1 unit is available
  sustained  7 units per 1m: one each 1m/7
  at most    7 units in any second, 13 in any 1m, 10086 in any day, and what the last request \
         borrows
  denied     waits until what was borrowed is repaid, one unit each 1m/7
",
    ),
    (
        "token-bucket:10/1s:burst=20:refill=interval",
        "token-bucket:10/1s:burst=20:refill=interval
  at once    20 units after idling
  sustained  10 units per 1s: all of them each 1s
  at most    29 units in any second, 864019 in any day
  denied     waits 1s at most for 1 unit, 2s for 20
  never      more than 20 units at a time
",
    ),
    (
        "fixed-window:100/60s:align=clock",
        "fixed-window:100/1m:align=clock
  at once    100 units
  sustained  100 units each window of 1m on the clock
  at most    200 units in any second, 200 in any 1m, 144100 in any day
  denied     waits until the window ends, 1m at most
  never      more than 100 units at a time
",
    ),
    (
        "sliding-counter:100/1m",
        "sliding-counter:100/1m
  at once    100 units
  sustained  99 units per 1m, by an estimate from two windows
  at most    101 units in any second, 199 in any 1m, 144099 in any day
  denied     waits until the estimate has fallen, 2m at most
  never      more than 100 units at a time
",
    ),
    (
        "sliding-counter:1/10s",
        "sliding-counter:1/10s
  at once    1 unit
  sustained  1 unit per 20s, by an estimate from two windows
  at most    1 unit in any second, 1 in any 10s, 8640 in any day
  denied     waits until the estimate has fallen, 20s at most
  never      more than 1 unit at a time
",
    ),
    (
        "fixed-window:1/1m",
        "fixed-window:1/1m
  at once    1 unit
  sustained  1 unit each window of 1m that its first request opens
  at most    1 unit in any second, 1 in any 1m, 1440 in any day
  denied     waits until the window ends, 1m at most
  never      more than 1 unit at a time
",
    ),
    (
        "concurrency:20/30s",
        "concurrency:20/30s
  at once    20 units held at one time
  sustained  as many as are settled
  held       until it is settled, or for 30s unless renewed
  denied     waits until a hold is settled, 30s at most for each hold
  never      more than 20 units at a time
",
    ),
    (
        "concurrency:1/1m,gcra:100/1s",
        "concurrency:1/1m,gcra:100/1s

  1. concurrency:1/1m
  at once    1 unit held at one time
  sustained  as many as are settled
  held       until it is settled, or for 1m unless renewed
  denied     waits until a hold is settled, 1m at most for each hold
  never      more than 1 unit at a time

  2. gcra:100/1s
  at once    100 units after idling
  sustained  100 units per 1s: one each 10ms
  at most    199 units in any second, 6099 in any 1m, 8640099 in any day
  denied     waits 10ms at most for 1 unit, 1s for 100
  never      more than 100 units at a time

  together: a request passes if every limit allows it, and otherwise takes from none
  at once    1 unit
  at most    199 units in any second, 6099 in any 1m, 8640099 in any day
  denied     waits until all of them allow it
",
    ),
    (
        "fixed-window:100/day:tz=Asia/Shanghai,sliding-log:30/1m:count=all",
        "fixed-window:100/day:tz=Asia/Shanghai,sliding-log:30/1m:count=all

  1. fixed-window:100/day:tz=Asia/Shanghai
  at once    100 units
  sustained  100 units each day of the calendar in Asia/Shanghai
  at most    200 units in any second, 200 in any 1m, 300 in any day
  denied     waits until the window ends, the next day
  never      more than 100 units at a time

  2. sliding-log:30/1m:count=all
  at once    30 units
  sustained  30 units per 1m
  at most    30 units in any second, 30 in any 1m, 43200 in any day
  denied     waits until enough of the units that count are 1m old; denied requests count too, and \
         extend the wait
  never      more than 30 units at a time

  together: a request passes if every limit allows it, and otherwise takes from none
  at once    30 units
  at most    30 units in any second, 30 in any 1m, 300 in any day
  denied     waits until all of them allow it
",
    ),
];

#[test]
fn explain_each_algorithm_prints_its_text() {
    for (text, words) in WORDS {
        assert_eq!(in_words(&text.parse().unwrap()), *words, "{text}");
    }
}

#[test]
fn explain_several_policies_separates_them_with_a_blank_line() {
    let policies = ["gcra:1/1s", "gcra:2/1s"].map(|text| text.parse().unwrap());
    let mut out = Vec::new();
    explain(&policies, &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert_eq!(out, format!("{}\n{}", in_words(&policies[0]), in_words(&policies[1])));
}

/// The text about denied requests that count agrees with the decisions.
#[test]
fn count_all_extends_the_wait_where_the_words_say_so() {
    use sluicegate_core::{Operation, Retry, Timestamp, apply};

    for (text, extends) in [
        ("fixed-window:2/10s", false),
        ("fixed-window:2/10s:align=clock", false),
        ("fixed-window:2/day", false),
        ("sliding-log:2/10s", true),
        ("sliding-counter:2/10s", true),
    ] {
        let policy: Policy = format!("{text}:count=all").parse().unwrap();
        let (mut entry, mut ends) = (None, Vec::new());
        for step in 0..8_u64 {
            let now = 1_700_000_001_000_000 + step * 300_000;
            let take = Operation::Take(1);
            let at = Timestamp::from_micros(now).unwrap();
            let decision = apply(&policy, &mut entry, at, take).unwrap();
            if let Some(Retry::After(wait)) = decision.retry() {
                ends.push(now + as_micros(wait));
            }
        }
        assert_eq!(ends.len(), 6, "{text}");
        assert_eq!(ends.first() < ends.last(), extends, "{text}: {ends:?}");
        let words = in_words(&policy);
        assert_eq!(words.contains("and extend the wait"), extends, "{words}");
        assert_eq!(words.contains("but do not extend it"), !extends, "{words}");
    }
}
