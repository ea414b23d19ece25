//! The state that connections of HTTP share, on the server and on one worker.

use std::{
    cell::{Cell, RefCell},
    net::IpAddr,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use sluicegate_core::{Decision, Source, Timestamp};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{body::BodyLimits, cross_site::HostNames, mount::Mount, problem::Problem};
use crate::{
    FallbackDenial, HttpConfig,
    decide::Decider,
    net::{
        clients::Client,
        incidents::{Incident, Incidents},
        secret::{GUESS_DELAY, Secret},
        web::{RequestBody, WebPort},
    },
    policies::policy_cache::PolicyCache,
    stats::{Cause, Stats},
    telemetry::{Telemetry, record_decision},
    wait::Failure,
};

/// The parts of the server that requests of HTTP need.
pub(crate) struct HttpContext {
    pub(crate) decider: Arc<Decider>,
    pub(crate) settings: HttpConfig,
    pub(crate) fallback_denial: FallbackDenial,
    /// How long a body may take; zero: any time.
    pub(crate) input_timeout: Duration,
    /// Whether requests may set the time of a decision.
    pub(crate) test_clock: bool,
    /// Records spans, if it is to.
    pub(crate) telemetry: Option<Telemetry>,
    /// The names of the server that requests may use.
    pub(crate) hosts: HostNames,
    /// The secret that clients must give.
    pub(crate) token: Option<Secret>,
    /// Incidents with hostile clients.
    pub(crate) incidents: Incidents,
    /// Routes besides those of this protocol.
    pub(crate) mounts: Vec<Mount>,
}

/// The state that connections of one worker share.
pub(super) struct HttpWorker {
    pub(super) context: Arc<HttpContext>,
    pub(super) web: Rc<WebPort>,
    /// The policies that requests name, parsed.
    pub(super) policies: RefCell<PolicyCache>,
}

/// The state that requests of one client share.
pub(super) struct HttpClientState {
    pub(super) worker: Rc<HttpWorker>,
    pub(super) client: Arc<Client>,
    /// Its address, if it is connected by TCP.
    pub(super) address: Option<IpAddr>,
    /// The end of the delay after its last wrong token. It holds for all requests on the connection, also if the client
    /// withdraws the one with the wrong token.
    pub(super) delayed_until: Cell<Option<Instant>>,
}

impl HttpClientState {
    /// Counts and logs a wrong token, and delays all that follow.
    pub(super) fn note_wrong_token(&self) {
        let worker = &self.worker;
        worker.context.incidents.note(&self.client, worker.now(), Incident::WrongToken);
        worker.stats().login_failures.add();
        self.delayed_until.set(Some(Instant::now() + GUESS_DELAY));
    }

    /// Waits until the delay is over.
    pub(super) async fn delay(&self) {
        while let Some(until) = self.delayed_until.get().filter(|it| *it > Instant::now()) {
            sleep_until(until).await;
        }
    }
}

impl HttpWorker {
    /// The counters of this worker for HTTP.
    #[inline]
    pub(super) fn stats(&self) -> &Stats {
        &self.web.port.stats
    }

    /// Counts a decision, and adds it to the span of the request.
    #[inline]
    pub(super) fn record(&self, key: &[u8], source: Source, decision: &Decision, cause: Cause<'_>) {
        self.stats().record(key, source, decision, cause);
        if self.context.telemetry.is_some() {
            record_decision(source, decision, cause);
        }
    }

    #[inline]
    pub(super) fn now(&self) -> Timestamp {
        self.context.decider.now()
    }

    /// Turns true when the server begins to stop.
    pub(super) fn stopping(&self) -> watch::Receiver<bool> {
        self.web.port.worker.stop.subscribe()
    }

    /// The answer to a request that waits, for which `bytes` are reserved. A client that leaves withdraws its request.
    pub(super) async fn wait<T>(
        &self,
        body: &RequestBody,
        bytes: usize,
        waited: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Problem> {
        let mut reserved = body.bytes.reserve_nothing();
        if !reserved.resize(bytes) {
            return Err(Problem::no_memory());
        }
        let _waiting_mark = body.bytes.mark_waiting().ok_or_else(Problem::half_closed)?;
        Ok(waited.await?)
    }

    pub(super) fn body_limits(&self) -> BodyLimits {
        BodyLimits { time: self.context.input_timeout, clock: self.context.decider.clock }
    }
}
