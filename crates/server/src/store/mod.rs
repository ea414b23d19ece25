//! Where the state of keys is kept: opening the store, snapshots, the state file.

pub(crate) mod home;
pub(crate) mod snapshot_file;
pub(crate) mod snapshots;
pub(crate) mod state_file;
