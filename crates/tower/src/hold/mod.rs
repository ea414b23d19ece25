//! Requests in flight: units that are held until the body of the response has ended.

mod body;
mod layer;
mod service;
mod settings;
mod wait;

pub use body::HeldBody;
pub use layer::HoldLayer;
pub use service::{HoldFuture, HoldService};
