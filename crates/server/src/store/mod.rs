//! Where the state of keys is kept: opening the store, its clock and errors, snapshots, the state file.

pub(crate) mod disk;
pub(crate) mod open;
mod remote;
pub(crate) mod snapshot_file;
pub(crate) mod snapshots;
pub(crate) mod state_file;

use sluicegate_core::{Store, StoreError};

/// The store of a server.
pub(crate) type ServerStore = dyn Store<Error = StoreError>;

/// A whole error reply, the class word first.
pub(crate) fn error_reply(error: &StoreError) -> String {
    match error {
        StoreError::Operation(error) => format!("ERR {error}"),
        StoreError::Hold(error) => format!("ERR {error}"),
        StoreError::Key(text) | StoreError::Arguments(text) => format!("ERR {text}"),
        // The text of every backend begins with its class: `SGSTATE` or `WRONGTYPE`.
        StoreError::Corrupt(_, text) => text.clone(),
        error => format!("SGSTORE {error}"),
    }
}
