//! Policy strings: their parts, errors, hints and formats. [`algorithm`](crate::algorithm) and
//! [`policy`](crate::policy) give them a meaning.

mod error;
mod hint;
mod limit;
mod write;

pub use self::error::{MAX_LIMITS, PolicyError};
pub(crate) use self::{
    hint::did_you_mean,
    limit::{LimitText, PartPosition, TextError, TextPart},
    write::{write_option, write_rate},
};
