use sluicegate_proto::{
    descriptor::rate_limit_descriptor::Entry, rls::rate_limit_response::rate_limit::Unit,
};

use super::*;

const OK: i32 = Code::Ok as i32;
const OVER: i32 = Code::OverLimit as i32;

fn limit(allowed: bool, mode: EnvoyMode, remaining: u32) -> DescriptorOutcome {
    let limit = RateLimit { requests_per_unit: 10, unit: Unit::Hour.into(), name: "n".to_owned() };
    let reset = Duration::from_millis(1_001);
    DescriptorOutcome::Limited(LimitStatus {
        allowed,
        mode,
        limit,
        remaining,
        reset,
        metadata: None,
    })
}

/// The response for these outcomes.
fn responded(outcomes: &[DescriptorOutcome], config: &EnvoyConfig) -> RateLimitResponse {
    let descriptor = |index| RateLimitDescriptor {
        entries: vec![Entry { key: "k".to_owned(), value: format!("{index}") }],
        ..RateLimitDescriptor::default()
    };
    let request = RateLimitRequest {
        domain: "web".to_owned(),
        descriptors: (0..outcomes.len()).map(descriptor).collect(),
        hits_addend: 3,
    };
    response(&request, outcomes.to_vec(), config)
}

#[test]
fn response_one_descriptor_over_its_limit_is_over() {
    let (free, unlimited) = (DescriptorOutcome::NoRule, DescriptorOutcome::Unlimited);
    let enforced = |allowed, remaining| limit(allowed, EnvoyMode::Enforced, remaining);
    let shadow = limit(false, EnvoyMode::Shadow, 0);
    let quota = |allowed| limit(allowed, EnvoyMode::Quota, 5);
    for (outcomes, code, codes) in [
        (vec![free, unlimited, enforced(true, 9)], OK, vec![OK, OK, OK]),
        (vec![enforced(false, 0), enforced(true, 9)], OVER, vec![OVER, OK]),
        (vec![enforced(true, 9), enforced(false, 0)], OVER, vec![OK, OVER]),
        (vec![shadow.clone()], OK, vec![OK]),
        (vec![shadow, enforced(false, 0)], OVER, vec![OK, OVER]),
        (vec![quota(false), quota(true)], OK, vec![OVER, OK]),
        (vec![quota(false), quota(false)], OVER, vec![OVER, OVER]),
        (vec![quota(false), quota(true), enforced(false, 0)], OVER, vec![OVER, OK, OVER]),
        (vec![quota(false), DescriptorOutcome::NoRule], OVER, vec![OVER, OK]),
    ] {
        let response = responded(&outcomes, &EnvoyConfig::default());
        assert_eq!(response.overall_code, code, "{outcomes:?}");
        let found: Vec<_> = response.statuses.iter().map(|status| status.code).collect();
        assert_eq!(found, codes, "{outcomes:?}");
        assert_eq!((response.response_headers_to_add, response.dynamic_metadata), (vec![], None));
    }
}

#[test]
fn status_contains_limit_remaining_and_reset() {
    let outcomes = [
        DescriptorOutcome::NoRule,
        DescriptorOutcome::Unlimited,
        limit(true, EnvoyMode::Enforced, 7),
    ];
    let response = responded(&outcomes, &EnvoyConfig::default());
    let [free, unlimited, limited] = &response.statuses[..] else { panic!("{response:?}") };
    assert_eq!(*free, DescriptorStatus { code: OK, ..DescriptorStatus::default() });
    assert_eq!(unlimited.limit_remaining, u32::MAX);
    assert_eq!(unlimited.current_limit, None);
    let current = limited.current_limit.as_ref().unwrap();
    assert_eq!((current.requests_per_unit, current.unit(), &*current.name), (10, Unit::Hour, "n"));
    assert_eq!(limited.limit_remaining, 7);
    let reset = limited.duration_until_reset.unwrap();
    assert_eq!((reset.seconds, reset.nanos), (2, 0), "rounded up");
}

#[test]
fn headers_are_of_the_denial_or_the_least_remaining() {
    let headers = |outcomes: &[DescriptorOutcome], headers| {
        let config = EnvoyConfig { headers, ..EnvoyConfig::default() };
        let fields = responded(outcomes, &config).response_headers_to_add;
        let fields: Vec<_> = fields.iter().map(|it| format!("{}: {}", it.key, it.value)).collect();
        fields.join(", ")
    };
    let enforced = |allowed, remaining| limit(allowed, EnvoyMode::Enforced, remaining);
    let names = EnvoyHeaders::XRateLimit;
    assert_eq!(
        headers(&[enforced(true, 9), enforced(true, 4)], names),
        "X-RateLimit-Limit: 10, X-RateLimit-Remaining: 4, X-RateLimit-Reset: 2"
    );
    assert_eq!(
        headers(&[enforced(true, 2), enforced(false, 4)], EnvoyHeaders::RateLimit),
        "RateLimit-Limit: 10, RateLimit-Remaining: 4, RateLimit-Reset: 2"
    );
    assert_eq!(headers(&[DescriptorOutcome::NoRule, DescriptorOutcome::Unlimited], names), "");
    assert_eq!(headers(&[enforced(true, 2)], EnvoyHeaders::None), "");
}

#[test]
fn metadata_contains_the_request_and_violated_quotas() {
    let config = EnvoyConfig { metadata: true, ..EnvoyConfig::default() };
    let outcomes = [limit(true, EnvoyMode::Quota, 1), limit(false, EnvoyMode::Quota, 0)];
    let metadata = responded(&outcomes, &config).dynamic_metadata.unwrap();
    let names: Vec<_> = metadata.fields.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["descriptors", "domain", "hitsAddend", "quotaModeEnabled", "quotaModeViolations"]
    );
    assert_eq!(metadata.fields["domain"], text("web"));
    assert_eq!(metadata.fields["quotaModeViolations"], list([number(1)]));
    let entries = |entry| value(Kind::StructValue(map(vec![("entries", list([text(entry)]))])));
    assert_eq!(metadata.fields["descriptors"], list([entries("k=0"), entries("k=1")]));

    let of_rule = Metadata::Map(vec![
        ("tier".into(), Metadata::Text("free".into())),
        ("weights".into(), Metadata::List(vec![Metadata::Number("1.5".into()), Metadata::Null])),
        ("hard".into(), Metadata::Truth(true)),
    ]);
    let DescriptorOutcome::Limited(mut limited) = limit(true, EnvoyMode::Enforced, 1) else {
        panic!("it is one")
    };
    limited.metadata = response_metadata(&of_rule);
    let metadata =
        responded(&[DescriptorOutcome::Limited(limited)], &config).dynamic_metadata.unwrap();
    let fields = map(vec![
        ("tier", text("free")),
        ("weights", list([value(Kind::NumberValue(1.5)), value(Kind::NullValue(0))])),
        ("hard", value(Kind::BoolValue(true))),
    ]);
    let of_rule = ("metadata", value(Kind::StructValue(fields)));
    let descriptor = map(vec![("entries", list([text("k=0")])), of_rule]);
    assert_eq!(metadata.fields["descriptors"], list([value(Kind::StructValue(descriptor))]));
    assert_eq!(response_metadata(&Metadata::Truth(true)), None);

    let metadata = responded(&[DescriptorOutcome::NoRule], &config).dynamic_metadata.unwrap();
    assert_eq!(metadata.fields["quotaModeEnabled"], value(Kind::BoolValue(false)));
    assert!(!metadata.fields.contains_key("quotaModeViolations"));
}
