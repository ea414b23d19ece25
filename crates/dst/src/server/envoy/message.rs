//! Calls and responses, and their bytes.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message as _;
use sluicegate_proto::{
    descriptor::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    rls::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus as WireStatus},
    },
};

use super::descriptors::{DOMAIN, DescriptorPlan, ENTRIES};

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// A call. Negative `hits` are given back.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) hits: i64,
    pub(crate) descriptors: Vec<DescriptorPlan>,
}

/// The status of each descriptor, or why there is none.
pub(super) type CallResponse = Result<Vec<DescriptorStatus>, String>;

/// The status of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DescriptorStatus {
    /// Whether the descriptor is over its limit.
    pub(super) is_over: bool,
    /// Requests that would still pass.
    pub(super) remaining: u32,
    /// Seconds, if the descriptor has a limit: over it, until the same request passes; otherwise until the limit is unused.
    pub(super) reset: Option<i64>,
}

/// The message of a call.
pub(super) fn encode(call: &Call) -> Bytes {
    let descriptor = |values: &DescriptorPlan| {
        let entries = ENTRIES.iter().zip(values).filter_map(|(key, value)| {
            Some(Entry { key: (*key).to_owned(), value: value.as_ref()?.to_string() })
        });
        RateLimitDescriptor {
            entries: entries.collect(),
            hits_addend: Some(call.hits.unsigned_abs()),
            is_negative_hits: call.hits < 0,
            ..RateLimitDescriptor::default()
        }
    };
    let request = RateLimitRequest {
        domain: DOMAIN.to_owned(),
        descriptors: call.descriptors.iter().map(descriptor).collect(),
        ..RateLimitRequest::default()
    };
    let message = request.encode_to_vec();
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    bytes.put_slice(&message);
    bytes.freeze()
}

/// The response in a message. `Err`: what is wrong with it.
pub(super) fn decode(bytes: &[u8]) -> CallResponse {
    let message = bytes.get(PREFIX..).ok_or("the message of a response is too short")?;
    let response = RateLimitResponse::decode(message).map_err(|error| error.to_string())?;
    let is_over = |code: i32| code == i32::from(Code::OverLimit);
    let status = |status: &WireStatus| DescriptorStatus {
        is_over: is_over(status.code),
        remaining: status.limit_remaining,
        reset: status.duration_until_reset.as_ref().map(|it| it.seconds),
    };
    let each: Vec<_> = response.statuses.iter().map(status).collect();
    if is_over(response.overall_code) != each.iter().any(|it| it.is_over) {
        return Err(format!("the code of a response does not agree with {each:?}"));
    }
    Ok(each)
}
