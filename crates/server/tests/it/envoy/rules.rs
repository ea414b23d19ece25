//! Rules of both forms, over the rate limit service.

use sluicegate_proto::{
    descriptor::RateLimitDescriptor,
    rls::{RateLimitResponse, rate_limit_response::Code},
};
use sluicegate_server::{Config, EnvoyHeaders, StoreConfig};
use sluicegate_testing::{Engine, Server as Redis};

use super::client::{Service, descriptor, long_unit, over_limit_and_remaining, request};
use crate::{
    harness::{TempDir, any_port},
    store::patient,
};

/// A service with these rules, in which `UNIT` is one that does not end while a test runs.
pub(super) fn service(rules: &str) -> (Service, TempDir) {
    service_of(&[rules])
}

/// [`service`] with several files.
fn service_of(files: &[&str]) -> (Service, TempDir) {
    service_with(files, |_| {})
}

/// [`service_of`] with other settings.
fn service_with(files: &[&str], configure: impl FnOnce(&mut Config)) -> (Service, TempDir) {
    let folder = TempDir::new();
    let unit = long_unit().as_str_name().to_lowercase();
    let files = files.iter().enumerate().map(|(index, rules)| {
        let file = folder.file(&format!("rules{index}.yaml"));
        std::fs::write(&file, rules.replace("UNIT", &unit)).unwrap();
        file
    });
    let files = files.collect();
    let service = Service::with(|config| {
        config.rules = files;
        config.http.address = Some(any_port());
        config.envoy.headers = EnvoyHeaders::RateLimit;
        config.envoy.metadata = true;
        configure(config);
    });
    (service, folder)
}

fn decide(service: &Service, descriptors: &[&[(&str, &str)]]) -> RateLimitResponse {
    let descriptors = descriptors.iter().map(|entries| descriptor(entries)).collect();
    service.should_rate_limit(request(descriptors)).unwrap()
}

/// Whether all passed, and for each descriptor whether its limit is exceeded and the units remaining.
fn shown(response: &RateLimitResponse) -> (bool, Vec<(bool, u32)>) {
    let statuses = response.statuses.iter().map(over_limit_and_remaining).collect();
    (response.overall_code() == Code::Ok, statuses)
}

#[test]
fn envoyproxy_rules_have_the_same_effect() {
    let (service, _folder) = service(
        "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: UNIT, requests_per_unit: 2, name: user}
  - key: user
    value: root
    rate_limit: {unlimited: true}
  - key: user
    value: eve
    rate_limit: {unit: UNIT, requests_per_unit: 0}
  - key: tried
    shadow_mode: true
    rate_limit: {unit: UNIT, requests_per_unit: 1}
  - key: path
    value: /files/*
    share_threshold: true
    rate_limit: {unit: UNIT, requests_per_unit: 2}
  - key: vip
    rate_limit: {unit: UNIT, requests_per_unit: 9, replaces: [{name: user}]}
  - key: model
    descriptors:
      - key: tokens
        rate_limit: {unit: UNIT, requests_per_unit: 5}
  - key: paced
    policy: gcra:3/366d
",
    );
    let one = |entries: &[(&str, &str)]| shown(&decide(&service, &[entries]));
    let user = [("user", "ada")];
    let response = decide(&service, &[&user]);
    let limit = response.statuses[0].current_limit.clone().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit(), &*limit.name), (2, long_unit(), "user"));
    let headers: Vec<_> = response.response_headers_to_add.iter().collect();
    assert_eq!((&*headers[0].key, &*headers[0].value), ("RateLimit-Limit", "2"));
    assert_eq!(one(&user), (true, vec![(false, 0)]));
    assert_eq!(one(&user), (false, vec![(true, 0)]));
    assert_eq!(one(&[("user", "root")]), (true, vec![(false, u32::MAX)]));
    assert_eq!(one(&[("user", "eve")]), (false, vec![(true, 0)]));
    // Another depth is another descriptor, without a limit.
    assert_eq!(one(&[("user", "ada"), ("path", "/")]), (true, vec![(false, 0)]));
    assert_eq!(one(&[("model", "x")]), (true, vec![(false, 0)]));
    assert_eq!(one(&[("model", "x"), ("tokens", "")]), (true, vec![(false, 4)]));
    for _ in 0..3 {
        assert!(one(&[("tried", "it")]).0, "it is only counted");
    }
    assert!(one(&[("path", "/files/a")]).0 && one(&[("path", "/files/b")]).0);
    assert!(!one(&[("path", "/files/c")]).0, "one limit for all of them");
    // A user above the limit of users passes where another limit replaces it.
    let both = shown(&decide(&service, &[&user, &[("vip", "ada")]]));
    assert_eq!(both, (true, vec![(false, 0), (false, 8)]));
    let response = decide(&service, &[&[("paced", "x")]]);
    assert_eq!(shown(&response), (true, vec![(false, 2)]));
    let limit = response.statuses[0].current_limit.clone().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit().as_str_name()), (2, "YEAR"));
}

#[test]
fn quota_mode_denies_only_together() {
    let (service, _folder) = service(
        "
domain: shop
descriptors:
  - key: model
    value: small
    quota_mode: true
    metadata: {tier: free}
    rate_limit: {unit: UNIT, requests_per_unit: 1}
  - key: model
    value: large
    quota_mode: true
    rate_limit: {unit: UNIT, requests_per_unit: 2}
",
    );
    let both: [&[(&str, &str)]; 2] = [&[("model", "small")], &[("model", "large")]];
    let call = || {
        let response = decide(&service, &both);
        let metadata = response.dynamic_metadata.clone().unwrap();
        let over = metadata.fields.get("quotaModeViolations").map(|it| format!("{it:?}"));
        (shown(&response), over, format!("{:?}", metadata.fields["descriptors"]))
    };
    let (first, over, descriptors) = call();
    assert_eq!(first, (true, vec![(false, 0), (false, 1)]));
    assert_eq!(over, None);
    assert!(descriptors.contains("tier") && descriptors.contains("model=small"), "{descriptors}");
    let (second, over, _) = call();
    assert_eq!(second, (true, vec![(true, 0), (false, 0)]));
    assert!(over.is_some_and(|it| it.contains("NumberValue(0.0)")));
    assert_eq!(call().0, (false, vec![(true, 0), (true, 0)]));
}

#[test]
fn quota_mode_hides_no_denial_by_an_enforced_rule() {
    let quotas = "
domain: shop
descriptors:
  - key: model
    value: small
    quota_mode: true
    rate_limit: {unit: UNIT, requests_per_unit: 1}
  - key: model
    value: large
    quota_mode: true
    rate_limit: {unit: UNIT, requests_per_unit: 9}
";
    let enforced = "
rules:
  - name: small
    match: {domain: shop, descriptor.model: small}
    cost: 10
    policy: gcra:15/366d
";
    let (service, _folder) = service_of(&[quotas, enforced]);
    let both: [&[(&str, &str)]; 2] = [&[("model", "small")], &[("model", "large")]];
    assert_eq!(shown(&decide(&service, &both)), (true, vec![(false, 0), (false, 8)]));
    // Both limits of the first descriptor deny, and the one in quota mode has less left.
    assert_eq!(shown(&decide(&service, &both)), (false, vec![(true, 5), (false, 7)]));
}

#[test]
fn native_rules_match_descriptors() {
    let (service, _folder) = service(
        "
rules:
  - name: users
    match: {domain: shop, descriptor.plan: free}
    key: descriptor.user
    policy: gcra:2/366d
  - name: banned
    match: {descriptor.user: eve}
    block: true
  - name: tried
    match: {descriptor.plan: trial}
    shadow: true
    policy: gcra:1/366d
  - name: tokens
    match: {descriptor.kind: tokens}
    key: descriptor.user
    cost: 10
    policy: gcra:100/366d
",
    );
    let one = |entries: &[(&str, &str)]| shown(&decide(&service, &[entries]));
    let ada = [("plan", "free"), ("user", "ada")];
    let response = decide(&service, &[&ada]);
    assert_eq!(shown(&response), (true, vec![(false, 1)]));
    assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().name, "users");
    assert!(one(&ada).0 && !one(&ada).0);
    assert!(one(&[("plan", "free"), ("user", "bob")]).0);
    assert!(!one(&[("plan", "gold"), ("user", "eve")]).0);
    assert!((0..3).all(|_| one(&[("plan", "trial"), ("user", "ada")]).0));
    assert_eq!(one(&[("kind", "tokens"), ("user", "ada")]), (true, vec![(false, 90)]));
}

#[test]
fn native_rules_with_several_keys_take_from_all_or_from_none() {
    let (service, _folder) = service(
        "
rules:
  - {name: users, match: {domain: shop}, key: descriptor.user, policy: 'gcra:5/366d'}
  - {name: teams, match: {domain: shop}, key: descriptor.team, policy: 'gcra:2/366d'}
",
    );
    let one = |user, team| shown(&decide(&service, &[&[("user", user), ("team", team)]]));
    assert_eq!(one("ada", "red"), (true, vec![(false, 1)]));
    assert_eq!(one("bob", "red"), (true, vec![(false, 0)]));
    for _ in 0..10 {
        assert_eq!(one("ada", "red"), (false, vec![(true, 0)]));
    }
    // Without a team, only the rule of users applies: of its five units, one is used.
    assert_eq!(shown(&decide(&service, &[&[("user", "ada")]])), (true, vec![(false, 3)]));
}

#[test]
fn native_rule_with_hold_id_holds_until_negative_hits() {
    let (service, _folder) = service(
        "
rules:
  - {name: flight, match: {domain: shop}, key: descriptor.user, hold_id: descriptor.id, policy: 'concurrency:2/1h'}
  - {name: users, match: {domain: shop}, key: descriptor.user, policy: 'gcra:5/366d'}
",
    );
    let entries = |id| [("user", "ada"), ("id", id)];
    let start = |id| shown(&decide(&service, &[&entries(id)]));
    let end = |id| {
        let negative = descriptor(&entries(id));
        let negative = RateLimitDescriptor { is_negative_hits: true, ..negative };
        service.should_rate_limit(request(vec![negative])).unwrap().overall_code() == Code::Ok
    };
    assert_eq!(start("a"), (true, vec![(false, 1)]));
    assert_eq!(start("b"), (true, vec![(false, 0)]));
    // A repeated start is allowed, holds nothing, and is a request for the other rule.
    assert_eq!(start("a"), (true, vec![(false, 0)]));
    for _ in 0..10 {
        assert_eq!(start("c"), (false, vec![(true, 0)]));
        assert!(end("c"));
    }
    assert!(end("a") && end("a"));
    assert_eq!(start("c"), (true, vec![(false, 0)]));
    assert_eq!(start("d"), (false, vec![(true, 0)]));
    // Four starts were allowed, and no end gave back to the rule that takes.
    assert_eq!(shown(&decide(&service, &[&[("user", "ada")]])), (true, vec![(false, 0)]));
}

/// An error would let the request pass every limit, where Envoy allows requests that fail.
#[test]
fn native_rule_with_hold_id_invalid_id_is_denied() {
    let (service, _folder) = service(
        "
rules:
  - {name: trial, match: {domain: shop}, key: descriptor.user, hold_id: descriptor.trial, policy: 'concurrency:2/1h', shadow: true}
  - {name: flight, match: {domain: shop}, key: descriptor.user, hold_id: descriptor.id, policy: 'concurrency:2/1h'}
",
    );
    let long = "x".repeat(65);
    let start = |name, id| shown(&decide(&service, &[&[("user", "ada"), (name, id)]])).0;
    assert!(!start("id", &long));
    assert!(start("id", &long[..64]));
    assert!(start("trial", &long), "a shadow rule denies nothing");
}

/// In both forms of rules. One server with leases is exact.
#[test]
fn rules_with_a_lease_decide_most_requests_without_the_store() {
    const NATIVE: &str = "
rules:
  - {name: user, match: {domain: shop}, key: descriptor.user, policy: 'gcra:300/365d', lease: 32}
";
    const ENVOY: &str = "
domain: shop
descriptors:
  - {key: user, policy: 'gcra:300/365d', lease: 32}
";
    for rules in [NATIVE, ENVOY] {
        let redis = Redis::start(Engine::Redis70);
        let commands = || {
            let stats: String = redis.query("INFO stats");
            let count = stats.lines().find_map(|it| it.strip_prefix("total_commands_processed:"));
            count.unwrap().trim().parse::<u64>().unwrap()
        };
        let (service, _folder) = service_with(&[rules], |config| {
            let mut store = StoreConfig::new(redis.url());
            store.redis = patient();
            config.store = Some(store);
        });
        let before = commands();
        let allowed = (0..400).filter(|_| shown(&decide(&service, &[&[("user", "ada")]])).0);
        assert_eq!(allowed.count(), 300, "{rules}");
        let sent = commands() - before;
        println!(
            "figure: 400 requests of Envoy with leases of 32 send {sent} commands to the store"
        );
        // Commands that a script calls are counted, too: three for each decision.
        assert!(sent <= 150, "{sent}: {rules}");
        // The store decided the rest, and the denials after the first are cached.
        let leased = service.server.info_value("store_count_lease");
        assert!((240..300).contains(&leased), "{leased}: {rules}");
    }
}
