//! Envoy's rate limit service: its clients speak gRPC over HTTP/2, and rules decide.
//!
//! The server decides a call as soon as it has read all of it. Its responses come in any order.

mod calls;
mod client;
mod descriptors;
mod frames;
mod message;
mod rule_states;

pub(crate) use self::descriptors::{
    DescriptorPlan, RulePlan, read as read_descriptors, write as write_descriptors,
};
pub(super) use self::{calls::Calls, client::EnvoyClient, descriptors::rules_text, message::Call};
