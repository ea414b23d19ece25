//! The quota service over gRPC: streams of several servers with one store, hostile ones, and a store that goes away.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use sluicegate_proto::rlqs::{
    BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
    rate_limit_quota_response::bucket_action::BucketAction,
    rate_limit_quota_service_client::RateLimitQuotaServiceClient,
    rate_limit_quota_usage_reports::BucketQuotaUsage,
};
use sluicegate_proto::strategy::{TokenBucket, rate_limit_strategy::Strategy};
use sluicegate_server::{Config, StoreConfig};
use sluicegate_testing::{Engine, Server as Redis, eventually};
use tokio::sync::mpsc;
use tonic::{Code, Status, Streaming};

use super::client::Service;
use crate::{
    harness::{TempDir, any_port},
    http::client::Client,
};

const RULES: &str = "
rules:
  - {name: api, match: {domain: shop}, key: descriptor.user, policy: 'gcra:1000/1s:burst=100', quota: {proxies: 4}}
";

/// A server with its state in Redis.
fn serve(redis: &Redis, configure: impl FnOnce(&mut Config)) -> (Service, TempDir) {
    let folder = TempDir::new();
    let file = folder.file("rules.yaml");
    fs::write(&file, RULES).unwrap();
    let service = Service::with(|config| {
        config.rules = vec![file];
        config.http.address = Some(any_port());
        let mut store = StoreConfig::new(redis.url());
        store.redis.deadline = Duration::from_secs(5);
        config.store = Some(store);
        configure(config);
    });
    (service, folder)
}

/// A stream of an Envoy.
struct Stream<'s> {
    service: &'s Service,
    reports: mpsc::Sender<RateLimitQuotaUsageReports>,
    responses: Streaming<RateLimitQuotaResponse>,
}

impl<'s> Stream<'s> {
    fn open(service: &'s Service) -> Result<Self, Status> {
        let mut client = RateLimitQuotaServiceClient::new(service.channel.clone());
        let (reports, mut receiver) = mpsc::channel(64);
        let messages = futures_util::stream::poll_fn(move |context| receiver.poll_recv(context));
        let responses = service.runtime.block_on(client.stream_rate_limit_quotas(messages))?;
        Ok(Self { service, reports, responses: responses.into_inner() })
    }

    fn send(&self, message: RateLimitQuotaUsageReports) {
        self.service.runtime.block_on(self.reports.send(message)).unwrap();
    }

    /// The next message, or the status with which the stream ends.
    fn next(&mut self) -> Result<RateLimitQuotaResponse, Status> {
        let next = self.service.runtime.block_on(self.responses.message())?;
        next.ok_or_else(|| Status::ok("the stream has ended"))
    }

    /// The token buckets that the next message assigns.
    fn assigned(&mut self) -> BTreeMap<String, TokenBucket> {
        let assigned = self.next().unwrap().bucket_action.into_iter().map(|action| {
            let user = action.bucket_id.clone().unwrap().bucket["user"].clone();
            let Some(BucketAction::QuotaAssignmentAction(it)) = action.bucket_action else {
                panic!("not an assignment")
            };
            assert_eq!(it.assignment_time_to_live.unwrap().seconds, 13);
            let Some(Strategy::TokenBucket(tokens)) = it.rate_limit_strategy.unwrap().strategy
            else {
                panic!("no token bucket")
            };
            (user, tokens)
        });
        assigned.collect()
    }
}

fn usage(user: &str, allowed: u64, denied: u64) -> BucketQuotaUsage {
    BucketQuotaUsage {
        bucket_id: Some(BucketId { bucket: [("user".to_owned(), user.to_owned())].into() }),
        num_requests_allowed: allowed,
        num_requests_denied: denied,
        ..BucketQuotaUsage::default()
    }
}

fn reports(domain: &str, usages: Vec<BucketQuotaUsage>) -> RateLimitQuotaUsageReports {
    RateLimitQuotaUsageReports { domain: domain.to_owned(), bucket_quota_usages: usages }
}

/// A line of `/metrics`. Until it has come, connections of the runtime go on.
fn metric(service: &Service, name: &str) -> f64 {
    service.runtime.block_on(async {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    });
    let text = String::from_utf8(Client::connect(&service.server).get("/metrics").body).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("`{name}` is not in:\n{text}")).parse().unwrap()
}

#[test]
fn quotas_of_two_servers_divide_one_limit() {
    let redis = Redis::start(Engine::Redis70);
    let (one, other) = (serve(&redis, |_| {}), serve(&redis, |_| {}));
    let mut streams =
        [&one.0, &one.0, &other.0, &other.0, &other.0].map(|it| Stream::open(it).unwrap());
    let mut tokens = Vec::new();
    for stream in &mut streams[..4] {
        stream.send(reports("shop", vec![usage("ada", 0, 1)]));
        tokens.push(stream.assigned().remove("ada").unwrap());
    }
    assert!(tokens.iter().all(|it| (it.max_tokens, it.fill_interval.unwrap().seconds) == (25, 1)));
    let rates: Vec<_> = tokens.iter().map(|it| it.tokens_per_fill.unwrap()).collect();
    assert!(rates[0] > 400 && rates.iter().sum::<u32>() <= 1000, "{rates:?}");
    // A fifth finds no place, and another key has a limit of its own.
    streams[4].send(reports("shop", vec![usage("ada", 0, 1), usage("bob", 0, 1)]));
    let bob = streams[4].assigned();
    assert_eq!(bob.keys().collect::<Vec<_>>(), ["bob"]);
    assert_eq!(metric(&other.0, "sluicegate_quota_rejections_total{reason=\"slots\"}"), 1.0);
    assert_eq!(metric(&other.0, "sluicegate_quota_streams"), 3.0);
    assert_eq!(
        metric(&one.0, "sluicegate_quota_assigned{rule=\"api\"}"),
        f64::from(rates[0] + rates[1])
    );
    assert_eq!(
        metric(&one.0, "sluicegate_rule_decisions_total{rule=\"api\",outcome=\"denied\"}"),
        2.0
    );
}

/// The dashboard shows a rule with `quota` as any other: what Envoys report are its decisions.
#[cfg(target_os = "linux")]
#[test]
fn quotas_are_in_the_rules_of_the_dashboard() {
    use serde_json::{Value, json};

    use crate::dashboard::Viewer;

    let redis = Redis::start(Engine::Redis70);
    let (service, _folder) = serve(&redis, |_| {});
    let mut client = Client::connect(&service.server);
    let listing = client.get("/dashboard/rules").json();
    assert_eq!(listing["count"], 1);
    let rule = &listing["rules"][0];
    assert_eq!(rule["title"], "api (line 3)");
    let lines = rule["lines"].as_array().unwrap();
    let line = |name| &lines.iter().find(|line| line[0] == name).unwrap()[1];
    assert_eq!(line("divided"), "between up to 4 Envoys, each with a burst of 25");

    let mut viewer = Viewer::new(&service.server);
    let decided = |frame: &Value| frame["rules"]["decisions"][0].clone();
    let expected = |allowed, denied| {
        json!({
            "rule": "api", "allowed": allowed, "denied": denied, "shadow_denied": 0, "unlimited": 0, "blocked": 0,
            "fallback": 0,
        })
    };
    assert_eq!(decided(&viewer.frame()), expected(0, 0));
    let mut stream = Stream::open(&service).unwrap();
    for (allowed, denied) in [(0, 1), (30, 5)] {
        stream.send(reports("shop", vec![usage("ada", allowed, denied)]));
        stream.assigned();
    }
    let frame = viewer.until(|frame| decided(frame)["allowed"] == 30);
    assert_eq!(decided(&frame), expected(30, 6));
}

#[test]
fn quotas_invalid_streams_end_with_a_status_and_leave_nothing() {
    let redis = Redis::start(Engine::Redis70);
    let (service, _folder) = serve(&redis, |config| config.envoy.max_quota_streams = 2);
    let empty = BucketQuotaUsage { bucket_id: None, ..usage("ada", 1, 0) };
    for (messages, expected) in [
        (
            vec![reports("", vec![usage("ada", 1, 0)])],
            "missing domain: expected the name of a domain in the first report of a stream",
        ),
        (vec![reports("shop", vec![empty])], "invalid bucket_id of 0 entries: expected 1 to 256"),
        (
            vec![reports("shop", vec![]), reports("bank", vec![])],
            "invalid domain `bank`: expected that of the first report of the stream",
        ),
    ] {
        let mut stream = Stream::open(&service).unwrap();
        messages.into_iter().for_each(|message| stream.send(message));
        let status = stream.next().unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, expected));
    }
    let mut open = [Stream::open(&service).unwrap(), Stream::open(&service).unwrap()];
    let status = Stream::open(&service).err().unwrap();
    let text = "too many quota streams: expected at most 2";
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, text));
    open[0].send(reports("shop", vec![usage("ada", 1, 0)]));
    assert_eq!(open[0].assigned().len(), 1);
    // A bucket that no rule applies to is not answered, and neither ends the stream.
    open[0].send(reports("bank", vec![]));
    assert_eq!(open[0].next().unwrap_err().code(), Code::InvalidArgument);
    open[1].send(reports("bank", vec![usage("ada", 1, 0)]));
    eventually("it is counted", || {
        match metric(&service, "sluicegate_quota_rejections_total{reason=\"no_rule\"}") {
            1.0 => Ok(()),
            count => Err(count),
        }
    });
    drop(open);
    eventually("nothing is left", || {
        let names = [
            "sluicegate_quota_streams",
            "sluicegate_quota_buckets",
            "sluicegate_quota_assigned{rule=\"api\"}",
        ];
        let left = names.map(|name| metric(&service, name));
        if left == [0.0; 3] { Ok(()) } else { Err(left) }
    });
    assert_eq!(metric(&service, "sluicegate_quota_rejections_total{reason=\"invalid\"}"), 4.0);
    assert_eq!(metric(&service, "sluicegate_quota_rejections_total{reason=\"streams\"}"), 1.0);
}

#[test]
fn quotas_hostile_numbers_and_keys_are_counted() {
    let redis = Redis::start(Engine::Redis70);
    let (service, _folder) = serve(&redis, |_| {});
    let mut stream = Stream::open(&service).unwrap();
    let long = "x".repeat(65_520);
    for allowed in [1, u64::MAX, 1] {
        let usages = vec![usage(&long, 1, 0), usage("ada", allowed, 0)];
        stream.send(reports("shop", usages));
        assert_eq!(stream.assigned().into_keys().collect::<Vec<_>>(), ["ada"]);
    }
    let count = |name: &str| metric(&service, name);
    assert_eq!(count("sluicegate_quota_rejections_total{reason=\"key\"}"), 3.0);
    assert_eq!(count("sluicegate_quota_rejections_total{reason=\"no_rule\"}"), 0.0);
    let allowed = count("sluicegate_rule_decisions_total{rule=\"api\",outcome=\"allowed\"}");
    assert_eq!(allowed, u64::MAX as f64);
}

#[test]
fn quotas_many_buckets_of_a_stream_are_bounded() {
    let redis = Redis::start(Engine::Redis70);
    let (service, _folder) = serve(&redis, |config| config.envoy.max_quota_buckets = 300);
    let stream = Stream::open(&service).unwrap();
    for first in 0..100 {
        let users = (0..1000).map(|user| usage(&format!("{}", first * 1000 + user), 1, 0));
        stream.send(reports("shop", users.collect()));
    }
    eventually("all have arrived", || match metric(&service, "sluicegate_quota_reports_total") {
        100_000.0 => Ok(()),
        count => Err(count),
    });
    assert_eq!(metric(&service, "sluicegate_quota_buckets"), 300.0);
    assert_eq!(metric(&service, "sluicegate_quota_rejections_total{reason=\"buckets\"}"), 99_700.0);
}

#[test]
fn quotas_reports_are_read_while_the_store_does_not_answer() {
    let redis = Redis::start(Engine::Redis70);
    let (service, _folder) = serve(&redis, |_| {});
    let mut stream = Stream::open(&service).unwrap();
    stream.send(reports("shop", vec![usage("first", 1, 0)]));
    assert_eq!(stream.assigned().len(), 1);
    redis.signal("-STOP");
    // As Envoy does: a message for each new bucket. HTTP/2 closes a connection with too many that are not read.
    let users: BTreeSet<String> = (0..6000).map(|user| user.to_string()).collect();
    for user in &users {
        stream.send(reports("", vec![usage(user, 1, 0)]));
        // Otherwise several messages are sent as one frame.
        service.runtime.block_on(async {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        });
    }
    redis.signal("-CONT");
    let mut assigned = BTreeSet::new();
    while assigned.len() < users.len() {
        let more = stream.assigned().into_keys().filter(|it| it != "first");
        assigned.extend(more);
    }
    assert_eq!(assigned, users);
}

#[test]
fn quotas_without_the_store_are_not_assigned_until_it_is_back() {
    let mut redis = Redis::start(Engine::Redis70);
    let (service, _folder) = serve(&redis, |_| {});
    let mut stream = Stream::open(&service).unwrap();
    stream.send(reports("shop", vec![usage("ada", 1, 0)]));
    assert_eq!(stream.assigned().len(), 1);
    redis.kill();
    stream.send(reports("shop", vec![usage("ada", 1, 0), usage("bob", 1, 0)]));
    eventually("operations fail", || {
        match metric(&service, "sluicegate_quota_rejections_total{reason=\"store\"}") {
            0.0 => Err(()),
            _ => Ok(()),
        }
    });
    redis.restart();
    let mut assigned = stream.assigned();
    while assigned.len() < 2 {
        assigned.extend(stream.assigned());
    }
    assert_eq!(assigned.keys().collect::<Vec<_>>(), ["ada", "bob"]);
}

#[test]
fn quotas_streams_end_when_the_server_stops() {
    let redis = Redis::start(Engine::Redis70);
    let (mut service, _folder) = serve(&redis, |_| {});
    let mut client = RateLimitQuotaServiceClient::new(service.channel.clone());
    let (reports, mut receiver) = mpsc::channel::<RateLimitQuotaUsageReports>(1);
    let messages = futures_util::stream::poll_fn(move |context| receiver.poll_recv(context));
    let responses = service.runtime.block_on(client.stream_rate_limit_quotas(messages)).unwrap();
    service.server.begin_to_stop();
    let status = service.runtime.block_on(responses.into_inner().message()).unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "the server stops"));
    drop(reports);
}
