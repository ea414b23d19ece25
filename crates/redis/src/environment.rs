//! The parts of the system that a store uses: time, random numbers, tasks and connections.

use std::{fmt, io};

use sluicegate_core::{BoxFuture, Timestamp};
use tokio::io::{AsyncRead, AsyncWrite};

/// A replacement for the system, so that a simulation decides what happens, in which order and when. Set it in
/// [`Options`](crate::Options). Timers are those of tokio, whose time a simulation pauses.
pub trait Environment: fmt::Debug + Send + Sync {
    /// The time of this process, which never goes back.
    fn now(&self) -> Timestamp;

    /// A random number.
    fn random(&self) -> u64;

    /// Runs `task` in the background.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// A connection to a server.
    ///
    /// # Errors
    /// The reason why it failed.
    fn connect(&self, host: &str, port: u16)
    -> BoxFuture<'static, io::Result<Box<dyn Connection>>>;
}

/// A connection, as bytes in both directions.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}
