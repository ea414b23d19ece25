//! The behaviours of Envoy 1.40, by their numbers in the table of ADR 52: the service with the model, without a network.

use std::time::Duration;

use sluicegate_core::{Answer, Timestamp, as_micros};
use sluicegate_memory::{MemoryStore, WhenFull};
use sluicegate_server::simulation::{
    SimulatedAction, SimulatedOperation, SimulatedQuotaStream, SimulatedQuotas,
};

use super::envoy::{BucketId, Envoy, Reports};
use crate::time::START;

const LIMIT: &str = "{name: api, match: {domain: d}, key: descriptor.user, policy: 'gcra:1000/1s:burst=100', quota: {proxies: 4}}";

/// A service with some streams, each with its Envoy.
struct Service {
    quotas: SimulatedQuotas,
    store: MemoryStore,
    millis: u64,
    pairs: Vec<(SimulatedQuotaStream, Envoy)>,
    /// Operations, messages and actions so far.
    operations: usize,
    messages: usize,
    actions: Vec<(usize, SimulatedAction)>,
}

fn bucket(user: &str) -> BucketId {
    [("user".to_owned(), user.to_owned())].into()
}

fn time(millis: u64) -> Timestamp {
    Timestamp::saturating_from_micros(START) + Duration::from_millis(millis)
}

impl Service {
    fn new(rule: &str, envoys: usize) -> Self {
        let quotas = SimulatedQuotas::new(&format!("rules: [{rule}]")).unwrap();
        let store = MemoryStore::bounded(64 << 20, WhenFull::Deny);
        let pairs = Vec::new();
        let mut service = Self {
            quotas,
            store,
            millis: 0,
            pairs,
            operations: 0,
            messages: 0,
            actions: Vec::new(),
        };
        (0..envoys).for_each(|_| service.connect());
        service
    }

    /// Adds a stream, with an Envoy that has just started.
    fn connect(&mut self) {
        let id = [u8::try_from(self.pairs.len()).unwrap(); 16];
        let stream = self.quotas.stream(id, Timestamp::EPOCH, 20_000);
        self.pairs.push((stream, Envoy::default()));
    }

    fn report(&mut self, at: usize, reports: Reports) {
        let (quotas, now) = (&self.quotas, time(self.millis));
        self.pairs[at].0.report(quotas, now, "d", reports).unwrap();
    }

    /// The turns that a stream needs now. Messages arrive at once.
    fn turn(&mut self, at: usize) {
        while self.pairs[at].0.next_turn().is_some_and(|next| next <= time(self.millis)) {
            self.one_turn(at, 0);
        }
    }

    /// One turn of a stream, in a store that takes so many microseconds for each operation.
    fn one_turn(&mut self, at: usize, micros: u64) {
        let mut now = time(self.millis);
        let (stream, envoy) = &mut self.pairs[at];
        if !stream.begin_turn(now) {
            return;
        }
        loop {
            let operations = stream.operations();
            if operations.is_empty() {
                break;
            }
            self.operations += operations.len();
            let decide = |it: &SimulatedOperation| {
                let it = it.keyed();
                let decided = self.store.apply(it.key, it.policy.policy(), now, it.operation);
                Ok(Answer::from(decided.unwrap()))
            };
            let answers: Vec<_> = operations.iter().map(decide).collect();
            now = now + Duration::from_micros(answers.len() as u64 * micros);
            stream.answers(now, answers);
        }
        self.millis = as_micros(now.since(time(0))) / 1000;
        let actions = stream.take_actions();
        self.messages += usize::from(!actions.is_empty());
        for action in actions {
            envoy.act(&action, self.millis);
            self.actions.push((at, action));
        }
    }

    /// Requests for a bucket of an Envoy; those that pass. A new bucket is reported and answered.
    fn request(&mut self, at: usize, user: &str, count: u64) -> u64 {
        let id = bucket(user);
        let (passed, is_new) = self.pairs[at].1.request(&id, count, self.millis);
        if is_new {
            let reports = self.pairs[at].1.first_report(&id);
            self.report(at, reports);
            self.turn(at);
        }
        passed
    }

    /// Time passes, in which Envoys report and are answered. `demand` has the requests of each Envoy in each 100 ms. Returns what
    /// passed of each.
    fn run(&mut self, millis: u64, user: &str, demand: &[u64]) -> Vec<u64> {
        let mut passed = vec![0; self.pairs.len()];
        for _ in 0..millis / 100 {
            self.millis += 100;
            for (at, passed) in passed.iter_mut().enumerate() {
                if let Some(count) = demand.get(at).copied().filter(|it| *it > 0) {
                    *passed += self.request(at, user, count);
                }
                if let Some(reports) = self.pairs[at].1.reports(self.millis) {
                    self.report(at, reports);
                }
                self.turn(at);
            }
        }
        passed
    }

    fn last(&self, at: usize) -> [u32; 4] {
        let of = self.actions.iter().filter(|it| it.0 == at);
        of.filter_map(|it| it.1.assignment).next_back().expect("an assignment")
    }
}

#[test]
fn row_01_first_report_is_answered_at_once() {
    let mut service = Service::new(LIMIT, 1);
    assert_eq!(service.request(0, "ada", 1), 0, "nothing is assigned before the first request");
    assert_eq!(service.request(0, "ada", 30), 25, "a quarter of the burst, at the same moment");
}

#[test]
fn row_02_cycle_is_measured_and_not_configured() {
    let mut service = Service::new(LIMIT, 1);
    service.run(20_000, "ada", &[50]);
    let [_, tokens, ..] = service.last(0);
    // Reports come every 5 s; 500 requests per second are all that there are.
    assert!(tokens >= 950, "{tokens}");
    // Two reports within a second are measured as one.
    let before = service.actions.len();
    service.report(0, vec![(bucket("ada"), 0, 5)]);
    service.turn(0);
    assert_eq!((service.actions.len(), service.last(0)[1]), (before + 1, tokens));
}

#[test]
fn row_03_time_is_our_own() {
    // The reports have no time: 1 s and 5 s between them give the same demand for the same rate.
    let mut service = Service::new(LIMIT, 2);
    service.run(10_000, "ada", &[100, 25]);
    for _ in 0..10 {
        service.millis += 1000;
        service.report(0, vec![(bucket("ada"), 800, 200)]);
        service.report(1, vec![(bucket("ada"), 200, 50)]);
        service.turn(0);
        service.turn(1);
    }
    let (one, other) = (service.last(0)[1], service.last(1)[1]);
    assert!((3 * other..5 * other).contains(&one), "{one} and {other}");
}

#[test]
fn row_04_idle_buckets_are_abandoned() {
    let mut service = Service::new(LIMIT, 1);
    service.run(5_000, "ada", &[5]);
    assert_eq!(service.quotas.counts("api")[0], 1);
    service.run(120_000, "ada", &[]);
    let (_, action) = service.actions.last().unwrap();
    assert_eq!((action.bucket.clone(), action.assignment), (bucket("ada"), None));
    assert!(service.pairs[0].1.buckets.is_empty());
    assert_eq!(service.quotas.counts("api"), [0; 4], "no bucket, and nothing is assigned");
}

#[test]
fn row_05_answers_of_a_moment_are_few_messages() {
    let mut service = Service::new(LIMIT, 1);
    for user in 0..3000 {
        let id = bucket(&user.to_string());
        let (_, is_new) = service.pairs[0].1.request(&id, 1, 0);
        assert!(is_new);
        let reports = service.pairs[0].1.first_report(&id);
        service.report(0, reports);
    }
    service.turn(0);
    assert_eq!(service.actions.len(), 3000);
    assert!(service.messages < 50, "{}", service.messages);
}

#[test]
fn row_06_every_assignment_is_a_token_bucket() {
    let mut service = Service::new(LIMIT, 3);
    service.run(30_000, "ada", &[100, 20, 1]);
    assert!(
        service.actions.iter().all(|it| it.1.assignment.is_some_and(|it| it[0] > 0 && it[1] > 0))
    );
}

#[test]
fn row_07_burst_is_given_away_once_for_each_envoy() {
    let mut service = Service::new(LIMIT, 5);
    let buckets: Vec<_> = (0..5)
        .map(|at| {
            service.request(at, "ada", 1);
            service.pairs[at].1.assigned(&bucket("ada"), 0).map(|it| it.max)
        })
        .collect();
    assert_eq!(
        buckets,
        [Some(25), Some(25), Some(25), Some(25), None],
        "four slots of a burst of 100"
    );
}

#[test]
fn row_08_nothing_is_throttled_by_deny_all() {
    let mut service = Service::new(LIMIT, 2);
    service.run(10_000, "ada", &[200, 0]);
    // Its demand ends, and it keeps its bucket, with the base rate.
    service.run(30_000, "ada", &[0, 200]);
    let [max, tokens, ..] = service.last(0);
    assert_eq!((max, tokens > 0 && tokens <= 10), (25, true));
}

#[test]
fn row_09_bucket_is_abandoned_only_after_it_is_full_again() {
    // The base rate is one token in 15 s, and the bucket of each Envoy has 10.
    let rule = "{name: api, match: {domain: d}, key: descriptor.user, policy: 'gcra:256/15s:burst=40', quota: {proxies: 4}}";
    let mut service = Service::new(rule, 1);
    service.run(5_000, "ada", &[5]);
    service.run(145_000, "ada", &[]);
    assert_eq!(service.quotas.counts("api")[0], 1, "it takes 150 s to fill");
    service.run(40_000, "ada", &[]);
    assert_eq!(service.quotas.counts("api")[0], 0);
}

#[test]
fn row_10_renewal_refills_nothing() {
    let mut service = Service::new(LIMIT, 1);
    service.request(0, "ada", 1);
    assert_eq!(service.request(0, "ada", 100), 25);
    for _ in 0..10 {
        service.report(0, vec![(bucket("ada"), 0, 0)]);
        service.turn(0);
    }
    assert_eq!(service.request(0, "ada", 100), 0);
}

#[test]
fn row_11_max_tokens_of_a_bucket_never_change() {
    let mut service = Service::new(LIMIT, 3);
    service.run(40_000, "ada", &[100, 20, 1]);
    service.run(40_000, "ada", &[1, 100, 20]);
    let sizes: Vec<_> =
        service.actions.iter().filter_map(|it| it.1.assignment).map(|it| it[0]).collect();
    assert!(sizes.len() > 40 && sizes.iter().all(|size| *size == 25));
}

#[test]
fn row_12_fill_interval_never_changes() {
    let mut service = Service::new(LIMIT, 3);
    service.run(40_000, "ada", &[100, 20, 1]);
    service.run(40_000, "ada", &[1, 100, 20]);
    let all: Vec<_> = service.actions.iter().filter_map(|it| it.1.assignment).collect();
    assert!(all.iter().all(|it| it[2] == 1));
    let rates: std::collections::BTreeSet<_> = all.iter().map(|it| it[1]).collect();
    assert!(rates.len() > 4, "only the tokens of a fill change: {rates:?}");
}

#[test]
fn row_13_fill_interval_is_at_least_a_whole_second() {
    for (policy, expected) in
        [("gcra:100/100ms:burst=100", 1), ("gcra:3/10s:burst=4", 854), ("gcra:7/1s:burst=4", 37)]
    {
        let rule = format!(
            "{{name: api, match: {{domain: d}}, key: descriptor.user, policy: '{policy}', quota: {{proxies: 4}}}}"
        );
        let mut service = Service::new(&rule, 1);
        service.request(0, "ada", 1);
        assert_eq!(service.last(0)[2], expected, "{policy}");
    }
}

#[test]
fn row_14_lifetime_is_two_cycles_and_a_second() {
    let mut service = Service::new(LIMIT, 1);
    service.run(60_000, "ada", &[50]);
    assert!(service.actions.iter().all(|it| it.1.assignment.is_some_and(|it| it[3] > 2 * 5)));
}

#[test]
fn row_15_assignment_is_renewed_before_it_expires() {
    let mut service = Service::new(LIMIT, 1);
    for _ in 0..600 {
        service.run(100, "ada", &[5]);
        let assigned = service.pairs[0].1.assigned(&bucket("ada"), service.millis);
        assert!(service.millis < 200 || assigned.is_some(), "at {} ms", service.millis);
    }
}

#[test]
fn row_16_assignment_expires_when_its_holds_do() {
    let mut service = Service::new(LIMIT, 2);
    service.run(10_000, "ada", &[200, 0]);
    // The stream ends: what it holds is free again only after its last assignment.
    let before = service.pairs[0].1.assigned(&bucket("ada"), service.millis);
    let (stream, envoy) = service.pairs.remove(0);
    drop(stream);
    let mut at = 0;
    while envoy.assigned(&bucket("ada"), service.millis + at).is_some() {
        at += 100;
    }
    assert!(before.is_some_and(|it| it.per_fill > 900) && (7_000..=13_000).contains(&at), "{at}");
    service.run(at, "ada", &[200]);
    assert!(service.last(0)[1] <= 1000 / 64 + 100, "{:?}", service.last(0));
    service.run(10_000, "ada", &[200]);
    assert!(service.last(0)[1] > 900, "{:?}", service.last(0));
}

#[test]
fn row_17_reports_that_were_lost_count_as_used() {
    let mut service = Service::new(LIMIT, 2);
    service.run(20_100, "ada", &[100, 100]);
    let rates: Vec<_> = (0..2).map(|at| service.last(at)[1]).collect();
    // Nothing is heard of the second Envoy for two cycles: its share stays as it is.
    for _ in 0..2 {
        service.millis += 5_000;
        service.report(0, vec![(bucket("ada"), 2500, 2500)]);
        service.turn(0);
        service.turn(1);
    }
    assert!(service.last(0)[1] <= rates[0] + rates[0] / 16, "{rates:?} {:?}", service.last(0));
    assert_eq!(service.last(1)[1], rates[1]);
}

#[test]
fn row_18_buckets_of_a_stream_have_one_assignment_each() {
    let mut service = Service::new(LIMIT, 1);
    let usages = vec![(bucket("ada"), 1, 0), (bucket("bob"), 1, 0), (bucket("ada"), 0, 1)];
    service.report(0, usages);
    service.turn(0);
    let named: Vec<_> = service.actions.iter().map(|it| it.1.bucket.clone()).collect();
    assert_eq!(named, [bucket("ada"), bucket("bob")]);
}

#[test]
fn stream_without_a_slot_takes_nothing_from_others() {
    let rule = LIMIT.replace("proxies: 4", "proxies: 2");
    let mut service = Service::new(&rule, 2);
    service.run(15_000, "ada", &[100, 100]);
    (0..2).for_each(|_| service.connect());
    // Two Envoys more want as much as they can say.
    let passed = service.run(30_000, "ada", &[100, 100, 1_000_000, 1_000_000]);
    assert_eq!(&passed[2..], [0, 0]);
    let assigned = service.last(0)[1] + service.last(1)[1];
    assert!(assigned > 950 && passed[0] + passed[1] > 28_500, "{assigned} {passed:?}");
}

#[test]
fn stream_after_a_change_of_the_burst_alone_is_assigned_without_a_pause() {
    let rule = LIMIT.replace("proxies: 4", "proxies: 2");
    let mut service = Service::new(&rule, 2);
    service.run(15_000, "ada", &[100, 100]);
    let changed = rule.replace("burst=100", "burst=200");
    service.quotas = SimulatedQuotas::new(&format!("rules: [{changed}]")).unwrap();
    for _ in 0..300 {
        service.run(100, "ada", &[100, 100]);
        for (_, envoy) in &service.pairs {
            assert!(envoy.assigned(&bucket("ada"), service.millis).is_some());
        }
    }
    assert_eq!([service.last(0)[0], service.last(1)[0]], [100, 100]);
    assert!(service.last(0)[1] + service.last(1)[1] > 950);
}

#[test]
fn stream_bucket_without_a_rule_gets_no_assignment() {
    let mut service = Service::new(LIMIT, 1);
    let other: BucketId = [("path".to_owned(), "/".to_owned())].into();
    service.report(0, vec![(other, 5, 0), (bucket("ada"), 1, 0)]);
    service.turn(0);
    assert_eq!((service.actions.len(), service.quotas.counts("api")[1]), (1, 1));
}

#[test]
fn stream_many_buckets_are_bounded() {
    let mut service = Service::new(LIMIT, 0);
    let stream = service.quotas.stream([7; 16], Timestamp::EPOCH, 1000);
    service.pairs.push((stream, Envoy::default()));
    let usages = (0..100_000).map(|user| (bucket(&user.to_string()), 1, 0)).collect();
    service.report(0, usages);
    service.turn(0);
    assert_eq!(service.actions.len(), 1000);
    assert_eq!(service.quotas.counts("api")[2], 99_000, "counted");
}

#[test]
fn stream_more_buckets_than_the_store_can_answer_in_a_turn_are_assigned_in_order() {
    let mut service = Service::new(LIMIT, 1);
    let users = 5000;
    let usages: Reports = (0..users).map(|user| (bucket(&format!("{user:05}")), 1, 0)).collect();
    // The operations of all buckets take about as long as a cycle.
    let mut reported = None;
    let (mut assigned, mut longest) = (vec![0; users], 0);
    let mut first = Vec::new();
    while service.millis < 60_000 {
        if reported.is_none_or(|at| service.millis >= at + 5_000) {
            reported = Some(service.millis);
            service.report(0, usages.clone());
        }
        let before = service.actions.len();
        match service.pairs[0].0.next_turn() {
            Some(at) if at <= time(service.millis) => service.one_turn(0, 200),
            _ => service.millis += 10,
        }
        for (_, action) in &service.actions[before..] {
            assert!(action.assignment.is_some());
            let user: usize = action.bucket["user"].parse().unwrap();
            if assigned[user] == 0 {
                first.push(user);
            } else {
                longest = longest.max(service.millis - assigned[user]);
            }
            assigned[user] = service.millis;
        }
    }
    assert_eq!(first, (0..users).collect::<Vec<_>>(), "the oldest first");
    let oldest = service.millis - assigned.iter().min().unwrap();
    assert!(longest.max(oldest) < 13_000, "{longest} and {oldest} ms without a renewal");
}

#[test]
fn stream_invalid_report_is_an_error_that_names_what_is_expected() {
    let mut service = Service::new(LIMIT, 1);
    let now = time(0);
    let (quotas, stream) = (&service.quotas, &mut service.pairs[0].0);
    let mut report = |domain, reports| stream.report(quotas, now, domain, reports).unwrap_err();
    assert_eq!(
        report("", vec![(bucket("ada"), 1, 0)]),
        "missing domain: expected the name of a domain in the first report of a stream"
    );
    assert_eq!(
        report("d", vec![(BucketId::new(), 1, 0)]),
        "invalid bucket_id of 0 entries: expected 1 to 256"
    );
    assert_eq!(
        report("other", Vec::new()),
        "invalid domain `other`: expected that of the first report of the stream"
    );
}
