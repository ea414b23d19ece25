//! Arguments and flags that several commands have.

use sluicegate_commands::{Argument, ArgumentKind};

pub(super) const SUBCOMMAND: &[Argument] = &[text("subcommand")];
pub(super) const KEY: &[Argument] = &[Argument::new("key", ArgumentKind::Key)];
pub(super) const EACH_KEY: &[Argument] =
    &[Argument { multiple: true, ..Argument::new("key", ArgumentKind::Key) }];
/// Flags of a command that clients may call before they give the password.
pub(super) const PRE_AUTH_FLAGS: &[&str] = &["noscript", "loading", "stale", "fast", "no_auth"];
pub(super) const FAST: &[&str] = &["loading", "stale", "fast"];
pub(super) const ADMIN: &[&str] = &["admin", "noscript", "loading", "stale"];

/// A mandatory string.
pub(super) const fn text(name: &'static str) -> Argument {
    Argument::new(name, ArgumentKind::Text)
}

/// An optional string.
pub(super) const fn optional(name: &'static str) -> Argument {
    Argument::optional(name, ArgumentKind::Text)
}
