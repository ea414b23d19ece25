use sluicegate_proto::{
    descriptor::rate_limit_descriptor::Entry, rls::rate_limit_response::rate_limit::Unit,
};

use super::*;

const OK: i32 = Code::Ok as i32;
const OVER: i32 = Code::OverLimit as i32;

fn limit(allowed: bool, mode: Mode, remaining: u32) -> Verdict {
    let limit = RateLimit { requests_per_unit: 10, unit: Unit::Hour.into(), name: "n".to_owned() };
    let reset = Duration::from_millis(1_001);
    Verdict::Limited(Limited { allowed, mode, limit, remaining, reset, metadata: None })
}

/// What is answered about so many descriptors.
fn answered(verdicts: &[Verdict], config: &EnvoyConfig) -> RateLimitResponse {
    let descriptor = |index| RateLimitDescriptor {
        entries: vec![Entry { key: "k".to_owned(), value: format!("{index}") }],
        ..RateLimitDescriptor::default()
    };
    let request = RateLimitRequest {
        domain: "web".to_owned(),
        descriptors: (0..verdicts.len()).map(descriptor).collect(),
        hits_addend: 3,
    };
    answer(&request, verdicts.to_vec(), config)
}

#[test]
fn answer_one_denied_descriptor_denies_the_request() {
    let (free, unlimited) = (Verdict::Free, Verdict::Unlimited);
    let enforced = |allowed, remaining| limit(allowed, Mode::Enforced, remaining);
    let shadow = limit(false, Mode::Shadow, 0);
    let quota = |allowed| limit(allowed, Mode::Quota, 5);
    for (verdicts, code, codes) in [
        (vec![free, unlimited, enforced(true, 9)], OK, vec![OK, OK, OK]),
        (vec![enforced(false, 0), enforced(true, 9)], OVER, vec![OVER, OK]),
        (vec![enforced(true, 9), enforced(false, 0)], OVER, vec![OK, OVER]),
        (vec![shadow.clone()], OK, vec![OK]),
        (vec![shadow, enforced(false, 0)], OVER, vec![OK, OVER]),
        (vec![quota(false), quota(true)], OK, vec![OVER, OK]),
        (vec![quota(false), quota(false)], OVER, vec![OVER, OVER]),
        (vec![quota(false), quota(true), enforced(false, 0)], OVER, vec![OVER, OK, OVER]),
        (vec![quota(false), Verdict::Free], OVER, vec![OVER, OK]),
    ] {
        let response = answered(&verdicts, &EnvoyConfig::default());
        assert_eq!(response.overall_code, code, "{verdicts:?}");
        let told: Vec<_> = response.statuses.iter().map(|status| status.code).collect();
        assert_eq!(told, codes, "{verdicts:?}");
        assert_eq!((response.response_headers_to_add, response.dynamic_metadata), (vec![], None));
    }
}

#[test]
fn answer_status_has_limit_remaining_and_reset() {
    let verdicts = [Verdict::Free, Verdict::Unlimited, limit(true, Mode::Enforced, 7)];
    let response = answered(&verdicts, &EnvoyConfig::default());
    let [free, unlimited, limited] = &response.statuses[..] else { panic!("{response:?}") };
    assert_eq!(*free, DescriptorStatus { code: OK, ..DescriptorStatus::default() });
    assert_eq!(unlimited.limit_remaining, u32::MAX);
    assert_eq!(unlimited.current_limit, None);
    let told = limited.current_limit.as_ref().unwrap();
    assert_eq!((told.requests_per_unit, told.unit(), &*told.name), (10, Unit::Hour, "n"));
    assert_eq!(limited.limit_remaining, 7);
    let reset = limited.duration_until_reset.unwrap();
    assert_eq!((reset.seconds, reset.nanos), (2, 0), "rounded up");
}

#[test]
fn answer_headers_are_of_the_denied_or_lowest_limit() {
    let headers = |verdicts: &[Verdict], headers| {
        let config = EnvoyConfig { headers, ..EnvoyConfig::default() };
        let fields = answered(verdicts, &config).response_headers_to_add;
        let fields: Vec<_> = fields.iter().map(|it| format!("{}: {}", it.key, it.value)).collect();
        fields.join(", ")
    };
    let enforced = |allowed, remaining| limit(allowed, Mode::Enforced, remaining);
    let names = EnvoyHeaders::XRateLimit;
    assert_eq!(
        headers(&[enforced(true, 9), enforced(true, 4)], names),
        "X-RateLimit-Limit: 10, X-RateLimit-Remaining: 4, X-RateLimit-Reset: 2"
    );
    assert_eq!(
        headers(&[enforced(true, 2), enforced(false, 4)], EnvoyHeaders::RateLimit),
        "RateLimit-Limit: 10, RateLimit-Remaining: 4, RateLimit-Reset: 2"
    );
    assert_eq!(headers(&[Verdict::Free, Verdict::Unlimited], names), "");
    assert_eq!(headers(&[enforced(true, 2)], EnvoyHeaders::None), "");
}

#[test]
fn answer_metadata_has_request_and_denied_quotas() {
    let config = EnvoyConfig { metadata: true, ..EnvoyConfig::default() };
    let verdicts = [limit(true, Mode::Quota, 1), limit(false, Mode::Quota, 0)];
    let told = answered(&verdicts, &config).dynamic_metadata.unwrap();
    let names: Vec<_> = told.fields.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["descriptors", "domain", "hitsAddend", "quotaModeEnabled", "quotaModeViolations"]
    );
    assert_eq!(told.fields["domain"], text("web"));
    assert_eq!(told.fields["quotaModeViolations"], list([number(1)]));
    let entries = |entry| value(Kind::StructValue(map(vec![("entries", list([text(entry)]))])));
    assert_eq!(told.fields["descriptors"], list([entries("k=0"), entries("k=1")]));

    let said = Metadata::Map(vec![
        ("tier".into(), Metadata::Text("free".into())),
        ("weights".into(), Metadata::List(vec![Metadata::Number("1.5".into()), Metadata::Null])),
        ("hard".into(), Metadata::Truth(true)),
    ]);
    let Verdict::Limited(mut limited) = limit(true, Mode::Enforced, 1) else { panic!("it is one") };
    limited.metadata = with_answer(&said);
    let told = answered(&[Verdict::Limited(limited)], &config).dynamic_metadata.unwrap();
    let fields = map(vec![
        ("tier", text("free")),
        ("weights", list([value(Kind::NumberValue(1.5)), value(Kind::NullValue(0))])),
        ("hard", value(Kind::BoolValue(true))),
    ]);
    let metadata = ("metadata", value(Kind::StructValue(fields)));
    let descriptor = map(vec![("entries", list([text("k=0")])), metadata]);
    assert_eq!(told.fields["descriptors"], list([value(Kind::StructValue(descriptor))]));
    assert_eq!(with_answer(&Metadata::Truth(true)), None);

    let told = answered(&[Verdict::Free], &config).dynamic_metadata.unwrap();
    assert_eq!(told.fields["quotaModeEnabled"], value(Kind::BoolValue(false)));
    assert!(!told.fields.contains_key("quotaModeViolations"));
}
