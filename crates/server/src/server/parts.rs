//! The parts of the server, and the table of its protocols.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use sluicegate_core::PolicySettings;
use tokio::sync::Semaphore;

use crate::{
    Config, TlsConfig, admin,
    budgets::buffers::BufferBudget,
    clock::ServerClock,
    dashboard::{self, Broadcaster},
    decide::Decider,
    denial_log::{self, DenialLog},
    key_display::KeyDisplay,
    metrics::{self, MetricSources},
    net::{
        clients::Clients, incidents::Incidents, listen::Addresses, protocol::Protocol,
        secret::Secret, web, worker::ServiceFactory,
    },
    policies::rule_store::RuleStore,
    protocols::{
        envoy::{self, EnvoyContext},
        http::{self, HostNames, HttpContext},
        resp::{self, RespContext},
    },
    stats::{QuotaStats, SampledKeys, ServerStats},
    store::{open::OpenStore, snapshots::SnapshotLog},
};

/// A protocol that the server speaks.
pub(crate) struct Registration {
    pub(crate) protocol: &'static Protocol,
    /// Where to listen, if anywhere.
    pub(crate) address: Option<SocketAddr>,
    pub(crate) tls: Option<TlsConfig>,
    /// Whether clients need a secret besides a certificate.
    pub(crate) has_secret: bool,
    pub(crate) service: fn(&Parts) -> ServiceFactory,
}

/// All protocols. Clients of the Unix socket speak the first one.
pub(crate) fn registrations(config: &Config) -> [Registration; 3] {
    let register = |protocol, address, tls: &Option<_>, secret: &Option<_>, service| Registration {
        protocol,
        address,
        tls: tls.clone(),
        has_secret: secret.is_some(),
        service,
    };
    let Config { resp, http, envoy, .. } = config;
    [
        register(&resp::PROTOCOL, Some(resp.address), &resp.tls, &resp.password, Parts::resp),
        register(&http::PROTOCOL, http.address, &http.tls, &http.token, Parts::http),
        register(&envoy::PROTOCOL, envoy.address, &envoy.tls, &None, Parts::envoy),
    ]
}

/// The parts of which protocols and routes are made. Each gets only those that it needs.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) addresses: Addresses,
    pub(crate) decider: Arc<Decider>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) buffers: Arc<BufferBudget>,
    pub(crate) stats: Arc<ServerStats>,
    pub(crate) snapshots: Arc<SnapshotLog>,
    pub(crate) quotas: Arc<QuotaStats>,
    pub(crate) display: Arc<KeyDisplay>,
    pub(crate) dashboard: Arc<Broadcaster>,
    /// The secrets of RESP and HTTP, which are removed from `config`.
    password: Option<Secret>,
    token: Option<Secret>,
}

impl Parts {
    pub(crate) fn new(
        mut config: Config,
        addresses: Addresses,
        clock: ServerClock,
        (store, rules): (OpenStore, RuleStore),
        stats: Arc<ServerStats>,
        denials: Option<denial_log::Output>,
    ) -> Self {
        let buffers = Arc::new(BufferBudget::new(config.max_buffer_memory));
        let mut defaults = PolicySettings::default();
        if let Some(store) = &config.store {
            (defaults.on_error, defaults.lease) = (store.on_error, store.lease);
        }
        let display = Arc::new(KeyDisplay::new(config.dashboard));
        let mut decider = Decider::new(store, Arc::new(rules), clock, defaults);
        let denial_log = |output| Arc::new(DenialLog::new(output, Arc::clone(&display)));
        decider.denial_log = denials.map(denial_log);
        decider.has_spans = config.telemetry.is_some();
        decider.display = Arc::clone(&display);
        let decider = Arc::new(decider);
        let clients = Arc::new(Clients::new(config.max_clients, stats.workers()));
        let snapshots: Arc<SnapshotLog> = Arc::default();
        let password = config.resp.password.take().as_deref().map(Secret::new);
        let token = config.http.token.take().as_deref().map(Secret::new);
        let dashboard = Broadcaster::new(dashboard::Sources {
            decider: Arc::clone(&decider),
            clients: Arc::clone(&clients),
            stats: Arc::clone(&stats),
            snapshots: Arc::clone(&snapshots),
            display: Arc::clone(&display),
            sampled: SampledKeys::default(),
            has_actions: token.is_some(),
            when_full: config.memory.when_full,
            has_state_file: config.memory.state_file.is_some(),
        });
        let dashboard = Arc::new(dashboard);
        Self {
            config,
            addresses,
            decider,
            clients,
            buffers,
            stats,
            snapshots,
            quotas: Arc::default(),
            display,
            dashboard,
            password,
            token,
        }
    }

    fn resp(&self) -> ServiceFactory {
        let dashboard = Arc::clone(&self.dashboard);
        resp::service(RespContext {
            decider: Arc::clone(&self.decider),
            clients: Arc::clone(&self.clients),
            incidents: Incidents::default(),
            buffers: Arc::clone(&self.buffers),
            stats: Arc::clone(&self.stats),
            snapshots: Arc::clone(&self.snapshots),
            telemetry: self.config.telemetry.clone(),
            list_keys: Box::new(move |cursor, count, filter| {
                dashboard.list_keys(cursor, count, filter)
            }),
            timeouts: self.config.timeouts,
            when_full: self.config.memory.when_full,
            has_state_file: self.config.memory.state_file.is_some(),
            test_clock: self.config.test_clock,
            address: self.addresses.address_of(&resp::PROTOCOL).unwrap_or(self.config.resp.address),
            password: self.password.clone(),
        })
    }

    fn http(&self) -> ServiceFactory {
        let address = self.addresses.address_of(&http::PROTOCOL);
        let context = HttpContext {
            decider: Arc::clone(&self.decider),
            settings: self.config.http.clone(),
            fallback_denial: self.config.fallback_denial,
            input_timeout: self.config.timeouts.input,
            test_clock: self.config.test_clock,
            telemetry: self.config.telemetry.clone(),
            hosts: HostNames::new(&self.config.http, address, self.token.is_some()),
            token: self.token.clone(),
            incidents: Incidents::default(),
            mounts: self.mounts(),
        };
        http::service(context, self.web(Duration::ZERO))
    }

    fn envoy(&self) -> ServiceFactory {
        let quota_turns = if self.decider.is_local() { Semaphore::MAX_PERMITS } else { 1 };
        let context = EnvoyContext {
            decider: Arc::clone(&self.decider),
            config: self.config.envoy.clone(),
            fallback_denial: self.config.fallback_denial,
            input_timeout: self.config.timeouts.input,
            buffers: Arc::clone(&self.buffers),
            quotas: Arc::clone(&self.quotas),
            quota_turns: Semaphore::new(quota_turns),
            started: self.decider.now(),
            telemetry: self.config.telemetry.clone(),
        };
        envoy::service(context, self.web(self.config.envoy.max_age))
    }

    /// The routes besides those of the protocol.
    fn mounts(&self) -> Vec<http::Mount> {
        let mut mounts = admin::mounts(&self.decider, &self.display);
        mounts.push(metrics::mount(MetricSources {
            decider: Arc::clone(&self.decider),
            clients: Arc::clone(&self.clients),
            buffers: Arc::clone(&self.buffers),
            stats: Arc::clone(&self.stats),
            snapshots: Arc::clone(&self.snapshots),
            quotas: Arc::clone(&self.quotas),
            telemetry: self.config.telemetry.clone(),
        }));
        mounts.extend(dashboard::mounts(&self.dashboard));
        mounts
    }

    fn web(&self, max_age: Duration) -> web::Settings {
        let (clock, buffers) = (self.decider.clock, Arc::clone(&self.buffers));
        let timeouts = self.config.timeouts;
        web::Settings { clock, buffers, timeouts, max_age }
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use sluicegate_memory::MemoryStore;

    use super::*;

    #[test]
    fn openapi_document_describes_all_routes() {
        let document: serde_json::Value =
            serde_json::from_str(include_str!("../protocols/http/openapi.json")).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
        let mut described = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            let methods = methods.as_object().unwrap();
            described.extend(methods.keys().map(|method| (path.clone(), method.to_uppercase())));
        }
        let parts = Parts::new(
            Config::default(),
            Addresses::default(),
            ServerClock::system(),
            (OpenStore::from(MemoryStore::new()), RuleStore::default()),
            Arc::new(ServerStats::new(iter::empty(), 1)),
            None,
        );
        let mounts = parts.mounts().into_iter().filter(|mount| mount.is_documented);
        let routes = mounts.map(|mount| (mount.path, mount.method)).chain(http::documented());
        let mut routes: Vec<_> =
            routes.map(|(path, method)| (path.to_owned(), method.to_string())).collect();
        described.sort();
        routes.sort();
        assert_eq!(described, routes);
    }
}
