//! Replies of shared commands as RESP.

use sluicegate_commands::{IntegersWriter, ReplyWriter};
use sluicegate_resp::Writer;

/// Writes a reply as RESP.
pub(super) struct RespReply<'w, 'o>(pub(super) &'w mut Writer<'o>);

impl IntegersWriter for RespReply<'_, '_> {
    #[inline]
    fn integers<const N: usize>(&mut self, integers: &[i64; N]) {
        self.0.integers(integers);
    }
}

impl ReplyWriter for RespReply<'_, '_> {
    fn integer(&mut self, value: i64) {
        self.0.integer(value);
    }

    fn string(&mut self, bytes: &[u8]) {
        self.0.bulk(bytes);
    }

    fn null(&mut self) {
        self.0.null();
    }

    fn array(&mut self, length: usize) {
        self.0.array(length);
    }

    fn map(&mut self, length: usize) {
        self.0.map(length);
    }

    fn error(&mut self, text: &str) {
        self.0.error(text);
    }
}
