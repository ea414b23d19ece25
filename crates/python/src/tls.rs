//! The settings of TLS.

use std::path::PathBuf;

use pyo3::prelude::*;
use sluicegate_redis::TlsOptions;

use crate::errors;

/// The options of TLS for the store at `url`. Settings that would have no effect are an error, because their user relies on them.
pub(crate) fn options(
    py: Python<'_>,
    url: &str,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
) -> PyResult<TlsOptions> {
    let invalid = |name: &str, path: &PathBuf, expected: &str| {
        let text = format!("invalid {name} `{}`: expected {expected}", path.display());
        Err(errors::new(py, "SettingsError", text))
    };
    if !["rediss", "valkeys"].iter().any(|scheme| url.starts_with(scheme)) {
        for (name, path) in [("tls_ca", &ca), ("tls_cert", &cert), ("tls_key", &key)] {
            if let Some(path) = path {
                return invalid(name, path, "a URL with TLS such as `rediss://HOST`");
            }
        }
    }
    let mut options = TlsOptions::default();
    options.ca = ca;
    options.client = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        (Some(cert), None) => return invalid("tls_cert", &cert, "tls_key beside it"),
        (None, Some(key)) => return invalid("tls_key", &key, "tls_cert beside it"),
    };
    Ok(options)
}
