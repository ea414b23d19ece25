use super::*;

fn times(specs: &[&str], keys: &str, seed: u64, seconds: u64) -> Vec<(u64, String)> {
    let specs: Vec<TrafficSpec> = specs.iter().map(|spec| spec.parse().unwrap()).collect();
    let (keys, length) = (keys.parse().unwrap(), Duration::from_secs(seconds));
    let mut traffic = Traffic::new(&specs, keys, seed, Timestamp::EPOCH, length);
    let mut found = Vec::new();
    loop {
        let batch = traffic.next_batch();
        if batch.is_empty() {
            return found;
        }
        let key = |key| String::from_utf8_lossy(key).into_owned();
        found.extend(batch.events().map(|event| (event.time.as_micros(), key(event.key))));
    }
}

fn micros(specs: &[&str], seconds: u64) -> Vec<u64> {
    times(specs, "1", 1, seconds).into_iter().map(|(time, _)| time).collect()
}

#[test]
fn bursts_and_even_traffic_are_where_they_should_be() {
    assert_eq!(micros(&["burst:3@2s", "burst:1"], 3), [0, 2_000_000, 2_000_000, 2_000_000]);
    assert!(micros(&["burst:3@2s"], 2).is_empty());
    assert_eq!(micros(&["even:3/s"], 1), [0, 333_333, 666_666]);
    assert_eq!(micros(&["even:1/s@1s..3s"], 9), [1_000_000, 2_000_000]);
}

#[test]
fn poisson_traffic_has_its_mean_and_spread() {
    let found = micros(&["poisson:50/s"], 1000);
    // Expected 50 000; the standard deviation is 224.
    assert!(found.len().abs_diff(50_000) < 1200, "{}", found.len());
    assert!(found.is_sorted());
    let mut gaps: Vec<u64> = found.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable();
    // Half of the gaps are below ln 2 of the mean: 13.86 ms of 20 ms.
    let median = gaps[gaps.len() / 2];
    assert!(median.abs_diff(13_863) < 400, "{median}");
    let long = gaps.iter().filter(|gap| **gap > 60_000).count();
    // One in e^3.
    assert!(long.abs_diff(gaps.len() / 20) < gaps.len() / 200, "{long}");
}

#[test]
fn traffic_same_seed_is_reproducible() {
    let of = |seed| times(&["poisson:50/s", "poisson:5/s"], "zipf:100", seed, 20);
    assert_eq!(of(7), of(7));
    assert_ne!(of(7), of(8));
    // Pictures in the documentation are made of it.
    let first: Vec<_> = of(1).into_iter().take(3).collect();
    assert_eq!(
        format!("{first:?}"),
        "[(2520, \"key-11\"), (19792, \"key-27\"), (38922, \"key-86\")]"
    );
}

#[test]
fn keys_of_zipf_are_as_busy_as_their_rank_says() {
    let found = times(&["even:10000/s"], "zipf:100", 3, 10);
    let of = |name: &str| found.iter().filter(|(_, key)| key == name).count();
    let (first, second, last) = (of("key-1"), of("key-2"), of("key-100"));
    // The harmonic number of 100 is 5.187.
    assert!(first.abs_diff(19_278) < 600 && second.abs_diff(9_639) < 450, "{first} {second}");
    assert!(last.abs_diff(193) < 70, "{last}");
    let found = times(&["even:1000/s"], "10", 3, 10);
    assert!((1..=10).all(|it| found.iter().any(|(_, key)| *key == format!("key-{it}"))));
}

#[test]
fn traffic_parse_invalid_text_is_an_error() {
    for text in [
        "",
        "burst",
        "burst:0@1s",
        "even:0/s",
        "even:1/0s",
        "poisson:1",
        "x:1/s",
        "even:1/s@2s..1s",
        "even:+1/s",
        "burst:+1",
    ] {
        assert!(text.parse::<TrafficSpec>().is_err(), "{text}");
    }
    for text in ["", "0", "zipf:0", "zipf:x", "zipf:+5", "+5", "1000001"] {
        assert!(text.parse::<KeySpec>().is_err(), "{text}");
    }
}
