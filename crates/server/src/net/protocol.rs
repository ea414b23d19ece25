//! The properties of a protocol that listeners and connections use.

/// A protocol that clients speak, at a port of its own.
#[derive(Debug)]
pub(crate) struct Protocol {
    /// Its name in metrics and messages.
    pub(crate) name: &'static str,
    /// The setting of its address, without dashes.
    pub(crate) setting: &'static str,
    /// The prefix of the settings of its TLS files.
    pub(crate) tls_settings: &'static str,
    /// The names that ALPN offers within TLS, the preferred one first.
    pub(crate) alpn: &'static [&'static [u8]],
    /// Whether a few clients beyond `--max-clients` are accepted, to check the health of the server.
    pub(crate) reserves_health: bool,
    /// The bytes that are sent to a client which is rejected because there are too many.
    pub(crate) rejection: &'static [u8],
}
