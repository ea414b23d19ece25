//! Policy strings: parts of them, errors and hints, and how they are written. What they mean is in
//! [`algorithm`](crate::algorithm) and [`policy`](crate::policy).

mod error;
mod hint;
mod limit;
mod write;

pub use self::error::{MAX_LIMITS, PolicyError};
pub(crate) use self::{
    hint::did_you_mean,
    limit::{LimitText, Part, Place, TextError},
    write::{write_option, write_rate},
};
