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
    rls::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{
            Code, DescriptorStatus, Quota, RateLimit, quota::ExpirationSpecifier, rate_limit::Unit,
        },
    },
};

const REQUEST: &str = "0a0377656212220a0b0a047573657212036164610a060a04706174681204080710031a0308\
                       ac022001120a0a060a016b1201761a0012080a060a016b1201771803";
const RESPONSE: &str = "080212130802120908f0a20410071a016e2204083d10051208080118ffffffff0f1a060a01\
                        6112016222060a01631a01ff2a020102320a0a080a017812031a01793a0908051202080\
                        91a0171";

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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2);
    pairs.map(|it| u8::from_str_radix(str::from_utf8(it).unwrap(), 16).unwrap()).collect()
}
