//! The protocols: each decodes requests, has them decided, and encodes the answers.

pub(crate) mod envoy;
pub(crate) mod http;
pub(crate) mod resp;
