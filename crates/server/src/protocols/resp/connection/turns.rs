//! Turns of a connection among the others of its worker.

use tokio::task::yield_now;

use super::Connection;
use crate::protocols::resp::pool::{CHUNK, MAX_READ_AHEAD, SMALL};

impl Connection<'_> {
    /// Whether enough was read in this turn to let others go first. While many connections wait, a long command is
    /// finished first, because it would be kept.
    #[inline]
    pub(super) fn has_read_enough(&self) -> bool {
        if !self.worker.turns().are_many() {
            return self.turn >= CHUNK;
        }
        if !self.session.turn.is_in_lane() {
            return self.turn >= SMALL;
        }
        self.turn >= CHUNK && self.unread.len() <= SMALL || self.turn >= MAX_READ_AHEAD
    }

    /// Ends the turn, before the connection waits for something else than a turn.
    #[inline]
    pub(super) fn pause(&mut self) {
        self.turn = 0;
        self.session.turn.end();
    }

    /// Lets other connections of the worker go first, and continues in the lane. `false`: there is no memory
    /// for what is kept until then, and the client is to be closed.
    pub(super) async fn give_way(&mut self) -> bool {
        self.turn = 0;
        if !self.session.turn.try_lane() {
            if !self.compact() {
                return false;
            }
            // Rare, therefore boxed, so that not every connection has the space for it.
            Box::pin(self.session.turn.lane()).await;
        }
        yield_now().await;
        true
    }
}
