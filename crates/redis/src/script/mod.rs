//! The scripts, their arguments and their replies.
//!
//! A [`Plan`] belongs to a policy. It has the [`Script`] that decides under the policy, the arguments of an operation,
//! and parses the reply. A script is assembled from the files in `lua/`, by the algorithms of the policy. Parameters
//! are arguments, so that there are few scripts in the cache of the server.
//!
//! One decision is one `EVALSHA` on one key, by the clock of the server.

mod library;
mod plan;
mod text;

pub(crate) use self::plan::{begin_call, boundaries, call_one};
pub use self::{
    library::Library,
    plan::{Arguments, Calendar, Plan, Reply, ReplyError, TEST_PREFIX},
    text::Script,
};
