//! Examples of requests, written beside the rules, with what is expected of them.

use crate::{error::Fault, tree::Node};

/// An example of a request, and what is expected of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Example {}

pub(crate) fn read(_: &Node) -> Result<Example, Fault> {
    Ok(Example {})
}
