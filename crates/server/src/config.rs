//! How a server is to run.

use std::net::SocketAddr;

/// How a server is to run. Start from the default and change what differs.
///
/// ```
/// use sluicegate_server::Config;
///
/// let mut config = Config::default();
/// assert_eq!(config.listen.to_string(), "127.0.0.1:6380");
/// config.listen.set_port(0);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Where to listen; port 0 picks a free one. Default: 127.0.0.1:6380.
    pub listen: SocketAddr,
    /// The password that clients must give before anything else. Default: none is asked for.
    pub requirepass: Option<String>,
    /// Whether requests may say what time it is (`AT us`), each key living by its own clock: only
    /// for tests and simulations. Default: no.
    pub test_clock: bool,
    /// Most clients at a time; those beyond are told so and closed. Default: 10 000.
    pub max_clients: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 6380)),
            requirepass: None,
            test_clock: false,
            max_clients: 10_000,
        }
    }
}
