//! Locks that a fork must not leave locked.
//!
//! A child has one thread, and memory as it was at the fork: a lock of the table that another thread has at that
//! moment is never released there. Calls that use a table with the lock of the interpreter cannot run during a fork,
//! because `os.fork` has that lock, too. All others go through [`Gated`], and a fork waits until none of them is in
//! the table.

use std::{
    cell::RefCell,
    hash::RandomState,
    process,
    sync::{
        Arc, Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU32, Ordering},
    },
};

use sluicegate::{Answer, Applied, Request, Store, StoreError};
use sluicegate_core::{ReadEntry, StoreStatus};
use sluicegate_holds::HoldId;

use crate::hold::AnyStore;

static GATE: RwLock<()> = RwLock::new(());
static HANDLERS: Once = Once::new();
/// The id of this process.
static PROCESS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The closed gate of a thread that forks.
    static CLOSED: RefCell<Option<RwLockWriteGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Registers the handlers of a fork.
#[expect(unsafe_code, reason = "the one way to run code at each fork")]
pub(crate) fn prepare() {
    extern "C" fn before() {
        // The random bits of the next child differ from those of this one.
        let _ = RandomState::new();
        let closed = GATE.write().unwrap_or_else(PoisonError::into_inner);
        CLOSED.with_borrow_mut(|it| *it = Some(closed));
    }
    extern "C" fn in_parent() {
        CLOSED.take();
    }
    extern "C" fn in_child() {
        CLOSED.take();
        PROCESS.store(process::id(), Ordering::Relaxed);
        HoldId::reseed();
    }
    HANDLERS.call_once(|| {
        PROCESS.store(process::id(), Ordering::Relaxed);
        // SAFETY: the handlers are functions of this module, which Python never unloads. They take no lock that a
        // thread keeps for long, and the child uses only locks of its own thread.
        let code = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        assert_eq!(code, 0, "the list of handlers is not full");
    });
}

/// The id of this process, without the system call of [`process::id`], which takes longer than a decision.
pub(crate) fn process() -> u32 {
    PROCESS.load(Ordering::Relaxed)
}

/// A store in this process for calls without the lock of the interpreter.
#[derive(Debug)]
pub(crate) struct Gated(pub(crate) Arc<AnyStore>);

fn pass() -> RwLockReadGuard<'static, ()> {
    GATE.read().unwrap_or_else(PoisonError::into_inner)
}

impl Store for Gated {
    type Error = StoreError;

    fn apply<'a>(&'a self, request: Request<'a>) -> Applied<'a, Result<Answer, StoreError>> {
        let _open = pass();
        self.0.apply(request)
    }

    fn read<'a>(
        &'a self,
        key: &'a [u8],
        read: ReadEntry<'a>,
    ) -> Applied<'a, Result<(), StoreError>> {
        let _open = pass();
        self.0.read(key, read)
    }

    fn reset<'a>(&'a self, key: &'a [u8]) -> Applied<'a, Result<bool, StoreError>> {
        let _open = pass();
        self.0.reset(key)
    }

    fn status(&self) -> StoreStatus {
        let _open = pass();
        self.0.status()
    }
}
