//! `ShouldRateLimit`.

use sluicegate_core::OnError;
use sluicegate_proto::{
    descriptor::{RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride},
    rls::{RateLimitRequest, rate_limit_response::Code},
};
use sluicegate_server::StoreConfig;
use sluicegate_testing::{Engine, Server};
use tonic::Code as Failure;

use super::client::{Service, descriptor, limited, long_unit, over_limit_and_remaining, request};
use crate::{harness::TempDir, store::patient};

#[test]
fn descriptor_with_its_own_limit_is_limited() {
    let service = Service::new();
    let ada = || limited(&[("user", "ada")], 2);
    let status = service.status_of(ada());
    assert_eq!(over_limit_and_remaining(&status), (false, 1));
    let limit = status.current_limit.unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit()), (2, long_unit()));
    let reset = status.duration_until_reset.unwrap();
    assert!(reset.seconds > 0 && reset.nanos == 0, "{reset:?}");
    assert_eq!(over_limit_and_remaining(&service.status_of(ada())), (false, 0));
    assert_eq!(over_limit_and_remaining(&service.status_of(ada())), (true, 0));
    // Another client, and one whose concatenated entries are equal.
    assert_eq!(
        over_limit_and_remaining(&service.status_of(limited(&[("user", "bob")], 2))),
        (false, 1)
    );
    assert_eq!(
        over_limit_and_remaining(&service.status_of(limited(&[("use", "rada")], 2))),
        (false, 1)
    );
    // Nothing at all passes a limit of nothing.
    let status = service.status_of(limited(&[("user", "eve")], 0));
    assert_eq!(over_limit_and_remaining(&status), (true, 0));
    assert_eq!(status.current_limit.unwrap().requests_per_unit, 0);
}

#[test]
fn call_with_one_denied_descriptor_is_denied_and_counts_all() {
    let service = Service::new();
    let both = || {
        let descriptors = vec![
            limited(&[("user", "ada")], 1),
            descriptor(&[("nobody", "knows")]),
            limited(&[("all", "")], 9),
        ];
        let response = service.should_rate_limit(request(descriptors)).unwrap();
        let statuses: Vec<_> = response.statuses.iter().map(over_limit_and_remaining).collect();
        (response.overall_code(), statuses)
    };
    assert_eq!(both(), (Code::Ok, vec![(false, 0), (false, 0), (false, 8)]));
    assert_eq!(both(), (Code::OverLimit, vec![(true, 0), (false, 0), (false, 7)]));
}

#[test]
fn cost_is_of_the_request_or_of_the_descriptor() {
    let service = Service::new();
    let ada = |hits_addend| RateLimitDescriptor { hits_addend, ..limited(&[("user", "ada")], 10) };
    let costing = |hits_addend, descriptor| {
        let request = RateLimitRequest { hits_addend, ..request(vec![descriptor]) };
        over_limit_and_remaining(&service.should_rate_limit(request).unwrap().statuses[0])
    };
    assert_eq!(costing(0, ada(None)), (false, 9), "the default is 1");
    assert_eq!(costing(3, ada(None)), (false, 6));
    assert_eq!(costing(3, ada(Some(4))), (false, 2), "the descriptor goes first");
    assert_eq!(costing(3, ada(Some(0))), (false, 2), "a cost of 0 only peeks");
    let back = RateLimitDescriptor { is_negative_hits: true, ..ada(Some(5)) };
    assert_eq!(costing(0, back.clone()), (false, 7), "given back");
    assert_eq!(costing(0, ada(Some(7))), (false, 0));
    assert_eq!(costing(0, ada(Some(0))), (true, 0), "nothing more would pass");
    assert_eq!(costing(0, ada(Some(2))), (true, 0), "denied, and counted");
    assert_eq!(costing(0, back), (false, 3), "12 were used");
    let most = u64::from(u32::MAX);
    assert_eq!(costing(0, ada(Some(most))), (true, 0));
    let more = service.should_rate_limit(request(vec![ada(Some(most + 1))])).unwrap_err();
    assert_eq!(more.code(), Failure::InvalidArgument);
    assert_eq!(
        more.message(),
        "invalid descriptor 0: expected a hits_addend from 0 to 4294967295, not 4294967296"
    );
}

/// Each descriptor is decided by itself, with its own limit.
#[test]
fn descriptors_with_the_same_entries_and_other_limits_are_counted_separately() {
    let rules =
        "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 9}}]\n";
    let folder = TempDir::new();
    std::fs::write(folder.file("rules.yaml"), rules).unwrap();
    let with_rules = Service::with(|config| config.rules = vec![folder.file("rules.yaml")]);
    for service in [Service::new(), with_rules] {
        let ada = |units| limited(&[("user", "ada")], units);
        let call = || {
            let descriptors = vec![ada(2), ada(100)];
            let response = service.should_rate_limit(request(descriptors)).unwrap();
            let statuses: Vec<_> = response.statuses.iter().map(over_limit_and_remaining).collect();
            (response.overall_code(), statuses)
        };
        assert_eq!(call(), (Code::Ok, vec![(false, 1), (false, 99)]));
        assert_eq!(call(), (Code::Ok, vec![(false, 0), (false, 98)]));
        assert_eq!(call(), (Code::OverLimit, vec![(true, 0), (false, 97)]));
    }
}

/// A store with a prefix allows less than the protocol. No descriptor is charged before all are checked.
#[test]
fn call_with_a_key_too_long_for_the_store_charges_nothing() {
    let store = Server::start(Engine::Redis70);
    let service = Service::with(|config| {
        let mut at = StoreConfig::new(store.url());
        (at.redis, at.on_error) = (patient(), OnError::Allow);
        at.redis.prefix = b"limits:".to_vec();
        config.store = Some(at);
    });
    let long = "x".repeat(65_500);
    let pair = request(vec![limited(&[("user", "eve")], 5), limited(&[("user", &long)], 5)]);
    let status = service.should_rate_limit(pair).unwrap_err();
    let text = "invalid descriptor 1: invalid key: expected 1 to 65536 bytes, found 65542 with the prefix of the store";
    assert_eq!((status.code(), status.message()), (Failure::InvalidArgument, text));
    let eve = service.status_of(limited(&[("user", "eve")], 5));
    assert_eq!(over_limit_and_remaining(&eve), (false, 4));
}

#[test]
fn call_invalid_names_the_field() {
    let service = Service::new();
    let ada = || descriptor(&[("user", "ada")]);
    let no_domain = RateLimitRequest { domain: String::new(), ..request(vec![ada()]) };
    let unit = RateLimitOverride { requests_per_unit: 1, unit: 8 };
    let unknown_unit = RateLimitDescriptor { limit: Some(unit), ..ada() };
    let long = "x".repeat(66_000);
    for (request, text) in [
        (no_domain, "missing domain: expected the name of a domain in the rules"),
        (request(vec![]), "missing descriptors: expected 1 to 256"),
        (request(vec![ada(); 257]), "too many descriptors: expected 1 to 256"),
        (
            request(vec![ada(), descriptor(&[])]),
            "invalid descriptor 1: expected 1 to 256 entries, not 0",
        ),
        (
            request(vec![descriptor(&[("a", "b"); 257])]),
            "invalid descriptor 0: expected 1 to 256 entries",
        ),
        (request(vec![unknown_unit]), "invalid descriptor 0: expected a unit from 1 to 7, not 8"),
        (
            request(vec![limited(&[("user", &long)], 1)]),
            "invalid descriptor 0: invalid key: expected 1 to 65536 bytes, found 66035",
        ),
    ] {
        let status = service.should_rate_limit(request).unwrap_err();
        assert_eq!((status.code(), status.message()), (Failure::InvalidArgument, text));
    }
    // The first descriptor of an invalid call is not charged.
    let pair = request(vec![limited(&[("user", "eve")], 5), limited(&[("user", &long)], 1)]);
    let status = service.should_rate_limit(pair).unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (
            Failure::InvalidArgument,
            "invalid descriptor 1: invalid key: expected 1 to 65536 bytes, found 66035"
        )
    );
    let eve = service.status_of(limited(&[("user", "eve")], 5));
    assert_eq!(over_limit_and_remaining(&eve), (false, 4));
    let huge = request(vec![descriptor(&[("user", &"x".repeat(140_000)), ("a", "b"), ("c", "d")])]);
    assert_eq!(service.should_rate_limit(huge).unwrap_err().code(), Failure::InvalidArgument);
    assert!(service.should_rate_limit(request(vec![ada()])).is_ok(), "the connection goes on");
}
