//! What all inputs have in common.

/// The longest line of a trace, in bytes, with the line breaks inside quotes: 1 MiB.
pub const MAX_LINE: usize = 1 << 20;

/// The mark that some editors put at the beginning of a file.
pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
