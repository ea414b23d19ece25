//! A run of the quota service for Envoy: the streams of several servers are production code, which share one store. A model of
//! Envoy is their client.
//!
//! At each moment the assignments that are in force must fit into the limit, and what passes in any interval must be within the
//! bound of `docs/fleet.md`. At the end, when nothing has failed for a while, Envoys must pass nearly all of the limit.

mod envoy;
mod plan;
#[cfg(test)]
mod rows;
mod world;

pub(crate) use self::plan::Quotas;
