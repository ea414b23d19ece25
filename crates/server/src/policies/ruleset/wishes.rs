//! What the thread that watches the files may be asked for.

use std::sync::mpsc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// What came of reading the files again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reloaded {
    /// The number of the version in force: the first is 1.
    pub version: u64,
    /// How many rules it has.
    pub rules: usize,
    /// Whether it is another one than before.
    pub changed: bool,
}

/// What the thread may be asked for.
#[derive(Debug)]
pub(super) enum Wish {
    /// Something happened where the files are.
    Look,
    /// To read the files in any case, and tell what came of it.
    Reload(oneshot::Sender<Result<Reloaded, String>>),
    Stop,
}

/// What is asked of the thread, from before it starts.
#[derive(Debug)]
pub(super) struct Wishes {
    pub(super) wishes: mpsc::Sender<Wish>,
    /// What the thread takes when it starts.
    pub(super) wanted: Mutex<Option<mpsc::Receiver<Wish>>>,
}

impl Wishes {
    /// What comes of reading the files again, now or when the thread starts. Nothing, once it ended.
    pub(super) async fn reload(&self) -> Option<Result<Reloaded, String>> {
        let (reply, told) = oneshot::channel();
        self.wishes.send(Wish::Reload(reply)).ok()?;
        told.await.ok()
    }
}

impl Default for Wishes {
    fn default() -> Self {
        let (wishes, wanted) = mpsc::channel();
        Self { wishes, wanted: Mutex::new(Some(wanted)) }
    }
}
