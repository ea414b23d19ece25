//! Bounds of inputs.

/// The longest line of a trace, in bytes, with the line breaks inside quotes: 1 MiB.
pub const MAX_LINE: usize = 1 << 20;
