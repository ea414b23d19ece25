//! The scripts: what is sent to the server, and what it answers.
//!
//! A [`Plan`] belongs to a policy. It knows the [`Script`] that decides under it (assembled from the
//! files in `lua/`, by the machines that the policy has: parameters come as arguments, so that there
//! are few scripts and none leaks in the server's cache), the arguments that say an operation, and
//! how to read the reply.
//!
//! One decision is one `EVALSHA` on one key. The server's clock decides.

mod arguments;
mod calendar;
mod library;
mod plan;
mod reply;
mod text;

pub(crate) use self::calendar::boundaries;
pub use self::{
    arguments::Arguments,
    calendar::Calendar,
    library::Library,
    plan::{Plan, TEST_PREFIX},
    reply::{Item, Reply, ReplyError, StateFault},
    text::Script,
};
