//! Our messages and Envoy's are the same bytes.
//!
//! What is expected was written once by the crate `envoy-types` 0.7.7, which has all of Envoy's
//! protos; to compile 4 MB of Rust with every test run would show no more.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

use prost::Message;
use prost_types::{Duration, Struct, Timestamp, Value, value::Kind};
use sluicegate_proto::{
    HeaderValue,
    descriptor::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    rlqs::{
        BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
        rate_limit_quota_response::{
            BucketAction,
            bucket_action::{self, AbandonAction, QuotaAssignmentAction},
        },
        rate_limit_quota_usage_reports::BucketQuotaUsage,
    },
    rls::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{
            Code, DescriptorStatus, Quota, RateLimit, quota::ExpirationSpecifier, rate_limit::Unit,
        },
    },
    strategy::{RateLimitStrategy, TokenBucket, rate_limit_strategy::Strategy},
};

const REQUEST: &str = "0a0377656212220a0b0a047573657212036164610a060a04706174681204080710031a0308\
                       ac022001120a0a060a016b1201761a0012080a060a016b1201771803";
const RESPONSE: &str = "080212130802120908f0a20410071a016e2204083d10051208080118ffffffff0f1a060a01\
                        6112016222060a01631a01ff2a020102320a0a080a017812031a01793a0908051202080\
                        91a0171";
const REPORTS: &str = "0a0377656212180a0d0a0b0a047573657212036164611202080518ac022007120e0a080a060a01\
                       6b12017612001801";
const ACTIONS: &str = "0a240a0d0a0b0a0475736572120361646112131202080c1a0d1a0b0806120308cd021a0208010a\
                       0c0a080a060a016b1201761a00";

#[test]
fn request_encodes_to_the_bytes_that_envoy_sends() {
    let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
    let path = |entries| RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
    let request = RateLimitRequest {
        domain: "web".into(),
        hits_addend: 3,
        descriptors: vec![
            RateLimitDescriptor {
                entries: vec![entry("user", "ada"), entry("path", "")],
                limit: Some(RateLimitOverride { requests_per_unit: 7, unit: 3 }),
                hits_addend: Some(300),
                is_negative_hits: true,
            },
            RateLimitDescriptor { hits_addend: Some(0), ..path(vec![entry("k", "v")]) },
            path(vec![entry("k", "w")]),
        ],
    };
    assert_eq!(hex(&request.encode_to_vec()), REQUEST);
    assert_eq!(RateLimitRequest::decode(&*bytes(REQUEST)).unwrap(), request);
}

#[test]
fn response_encodes_to_the_bytes_that_envoy_reads() {
    let header = |key: &str, value: &str, raw: &[u8]| HeaderValue {
        key: key.into(),
        value: value.into(),
        raw_value: raw.into(),
    };
    let metadata = Value { kind: Some(Kind::StringValue("y".into())) };
    let response = RateLimitResponse {
        overall_code: Code::OverLimit.into(),
        statuses: vec![
            DescriptorStatus {
                code: Code::OverLimit.into(),
                current_limit: Some(RateLimit {
                    name: "n".into(),
                    requests_per_unit: 70_000,
                    unit: Unit::Week.into(),
                }),
                limit_remaining: 0,
                duration_until_reset: Some(Duration { seconds: 61, nanos: 5 }),
                quota: None,
            },
            DescriptorStatus {
                code: Code::Ok.into(),
                limit_remaining: u32::MAX,
                ..DescriptorStatus::default()
            },
        ],
        response_headers_to_add: vec![header("a", "b", b"")],
        request_headers_to_add: vec![header("c", "", b"\xff")],
        raw_body: vec![1, 2],
        dynamic_metadata: Some(Struct { fields: [("x".to_owned(), metadata)].into() }),
        quota: Some(Quota {
            requests: 5,
            id: "q".into(),
            expiration_specifier: Some(ExpirationSpecifier::ValidUntil(Timestamp {
                seconds: 9,
                nanos: 0,
            })),
        }),
    };
    assert_eq!(hex(&response.encode_to_vec()), RESPONSE);
    assert_eq!(RateLimitResponse::decode(&*bytes(RESPONSE)).unwrap(), response);
}

fn bucket(key: &str, value: &str) -> Option<BucketId> {
    Some(BucketId { bucket: [(key.to_owned(), value.to_owned())].into() })
}

fn seconds(seconds: i64) -> Option<Duration> {
    Some(Duration { seconds, nanos: 0 })
}

#[test]
fn reports_encode_to_the_bytes_that_envoy_sends() {
    let usage = |bucket_id, elapsed, allowed, denied| BucketQuotaUsage {
        bucket_id,
        time_elapsed: seconds(elapsed),
        num_requests_allowed: allowed,
        num_requests_denied: denied,
    };
    let reports = RateLimitQuotaUsageReports {
        domain: "web".into(),
        bucket_quota_usages: vec![
            usage(bucket("user", "ada"), 5, 300, 7),
            usage(bucket("k", "v"), 0, 1, 0),
        ],
    };
    assert_eq!(hex(&reports.encode_to_vec()), REPORTS);
    assert_eq!(RateLimitQuotaUsageReports::decode(&*bytes(REPORTS)).unwrap(), reports);
}

#[test]
fn actions_encode_to_the_bytes_that_envoy_reads() {
    let tokens = TokenBucket {
        max_tokens: 6,
        tokens_per_fill: Some(333),
        fill_interval: seconds(1),
        name: String::new(),
    };
    let strategy = RateLimitStrategy { strategy: Some(Strategy::TokenBucket(tokens)) };
    let assignment = QuotaAssignmentAction {
        assignment_time_to_live: seconds(12),
        rate_limit_strategy: Some(strategy),
    };
    let action = |bucket_id, action| BucketAction { bucket_id, bucket_action: Some(action) };
    let actions = RateLimitQuotaResponse {
        bucket_action: vec![
            action(
                bucket("user", "ada"),
                bucket_action::BucketAction::QuotaAssignmentAction(assignment),
            ),
            action(bucket("k", "v"), bucket_action::BucketAction::AbandonAction(AbandonAction {})),
        ],
    };
    assert_eq!(hex(&actions.encode_to_vec()), ACTIONS);
    assert_eq!(RateLimitQuotaResponse::decode(&*bytes(ACTIONS)).unwrap(), actions);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2);
    pairs.map(|it| u8::from_str_radix(str::from_utf8(it).unwrap(), 16).unwrap()).collect()
}
