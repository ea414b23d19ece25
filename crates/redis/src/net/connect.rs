//! Establishes connections to one server, with pauses after failures.

use sluicegate_core::StoreError;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redis::{PushInfo, PushKind};
use tokio::time::{sleep, timeout};

use super::context::TLS_ADVICE;
use super::node_connection::{NodeConnection, OpenConnection, State};
use crate::native;

/// Pauses after the first failed attempt and after later ones, with jitter, so that clients that lost a server at
/// the same time do not reconnect at the same time.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
];
/// A connection that ends sooner counts as a failed attempt.
const SHORT_LIVED: Duration = Duration::from_millis(5);
impl NodeConnection {
    /// Starts to connect, unless there is a connection or an attempt.
    pub(super) fn connect(self: &Arc<Self>) {
        let begins = self.state.send_if_modified(|state| {
            let down = matches!(state, State::Down { .. });
            if down {
                *state = State::Connecting;
            }
            down
        });
        if begins {
            if self.report.is_some() {
                self.start_keeper();
            }
            // In the background, because the caller may be cancelled.
            self.context.spawn(Arc::clone(self).make());
        }
    }

    async fn make(self: Arc<Self>) {
        let why = match self.open().await {
            Ok(up) => return self.use_from_now_on(up),
            Err(why) => why,
        };
        let missed = self.missed.fetch_add(1, Ordering::Relaxed);
        let until = self.context.now() + self.pause(missed);
        tracing::debug!(%why, "cannot connect");
        // Opens the breaker without counting, because no command can be sent.
        self.unavailable(&why);
        self.state.send_replace(State::Down { why, until });
    }

    /// Replaces the connection. Commands in flight get their replies on the old one.
    pub(super) async fn replace(self: &Arc<Self>) {
        if let Ok(up) = self.open().await {
            self.use_from_now_on(up);
        }
    }

    fn use_from_now_on(&self, up: OpenConnection) {
        // The address may belong to another server than before.
        self.module.store(up.has_module, Ordering::Relaxed);
        self.schedule_module_probe();
        self.context.counts.connections.one();
        self.state.send_replace(State::Up(up));
    }

    /// A new connection, or the reason of the failure.
    async fn open(self: &Arc<Self>) -> Result<OpenConnection, String> {
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let node = Arc::downgrade(self);
        let pushed = move |info: PushInfo| {
            if info.kind == PushKind::Disconnection
                && let Some(node) = node.upgrade()
            {
                node.lost(Some(number), &format!("{} has closed the connection", node.endpoint));
            }
            Ok::<_, ()>(())
        };
        let made = timeout(self.context.options.connect_timeout, async {
            let (mut connection, address) = self.context.connect(&self.endpoint, pushed).await?;
            let looks = self.context.options.look_for_module.is_some();
            let has_module = looks && native::has_module(&mut connection).await;
            Ok((connection, address, has_module))
        });
        match made.await {
            Ok(Ok((connection, address, has_module))) => {
                let (flow, since) = (Arc::default(), self.context.now());
                let address = Arc::new(address);
                Ok(OpenConnection { connection, number, address, flow, since, has_module })
            }
            Ok(Err(StoreError::Unavailable(why))) => Err(format!("{}: {why}", self.endpoint)),
            Ok(Err(error)) => Err(format!("{}: {error}", self.endpoint)),
            Err(_) => {
                let advice = if self.context.url.tls { TLS_ADVICE } else { "" };
                Err(format!("{}: no connection in time{advice}", self.endpoint))
            }
        }
    }

    /// The connection of this number (any, for `None`) has failed, and is replaced.
    pub(crate) fn lost(self: &Arc<Self>, number: Option<u64>, why: &str) {
        let now = self.context.now();
        let mut wait = Duration::ZERO;
        let was_up = self.state.send_if_modified(|state| {
            let State::Up(up) = state else { return false };
            if number.is_some_and(|number| number != up.number) {
                return false;
            }
            if now < up.since + SHORT_LIVED {
                wait = self.pause(self.missed.fetch_add(1, Ordering::Relaxed));
            } else {
                self.missed.store(0, Ordering::Relaxed);
            }
            *state = State::Down { why: why.to_owned(), until: now + wait };
            true
        });
        if was_up && wait.is_zero() {
            self.connect();
        } else if was_up {
            let node = Arc::downgrade(self);
            self.context.spawn(async move {
                sleep(wait).await;
                if let Some(node) = node.upgrade() {
                    node.connect();
                }
            });
        }
    }

    /// Pause after `missed` failed attempts.
    fn pause(&self, missed: u32) -> Duration {
        let pause = usize::try_from(missed).ok().and_then(|it| PAUSES.get(it)).or(PAUSES.last());
        self.context.jitter(pause.copied().unwrap_or_default())
    }
}
