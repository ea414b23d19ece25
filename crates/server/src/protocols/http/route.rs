//! The routes of this protocol, by path and method.

use hyper::Method;

use super::problem::Problem;

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// One decision.
    Decide(KeyOperationKind),
    /// Several takes.
    TakeMany,
    /// One operation on a hold.
    Hold(HoldOperationKind),
    /// Take from several keys, from all or from none, or hold.
    TakeAll,
    /// Settle a hold of several keys.
    SettleAll,
    /// Reset a key.
    Reset,
    /// Decide about a request that a proxy describes.
    Gate,
    /// Whether the server runs.
    Health,
    /// Whether it accepts requests.
    Ready,
    /// The description of all routes.
    OpenApi,
}

/// An operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyOperationKind {
    Take,
    Peek,
    Charge,
    Refund,
    Reserve,
}

/// An operation on a hold of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldOperationKind {
    Hold,
    Settle,
    Renew,
}

/// The gate for proxies that accept only status 403 as a denial. It is a path instead of a parameter, because some
/// proxies (Caddy) pass on the query of the client.
pub(super) const GATE_403: &str = "/v1/gate/403";

/// The routes. Each has one method.
static ROUTES: [(&str, Method, Route); 17] = [
    ("/v1/take", Method::POST, Route::Decide(KeyOperationKind::Take)),
    ("/v1/peek", Method::POST, Route::Decide(KeyOperationKind::Peek)),
    ("/v1/charge", Method::POST, Route::Decide(KeyOperationKind::Charge)),
    ("/v1/refund", Method::POST, Route::Decide(KeyOperationKind::Refund)),
    ("/v1/reserve", Method::POST, Route::Decide(KeyOperationKind::Reserve)),
    ("/v1/take_many", Method::POST, Route::TakeMany),
    ("/v1/hold", Method::POST, Route::Hold(HoldOperationKind::Hold)),
    ("/v1/settle", Method::POST, Route::Hold(HoldOperationKind::Settle)),
    ("/v1/renew", Method::POST, Route::Hold(HoldOperationKind::Renew)),
    ("/v1/take_all", Method::POST, Route::TakeAll),
    ("/v1/settle_all", Method::POST, Route::SettleAll),
    ("/v1/reset", Method::POST, Route::Reset),
    ("/v1/gate", Method::GET, Route::Gate),
    (GATE_403, Method::GET, Route::Gate),
    ("/healthz", Method::GET, Route::Health),
    ("/readyz", Method::GET, Route::Ready),
    ("/openapi.json", Method::GET, Route::OpenApi),
];

impl Route {
    /// The path of a route whose requests are recorded as spans, which is that of `ROUTES` and nothing else.
    pub(super) fn traced_path(self, path: &str) -> Option<&'static str> {
        if matches!(self, Self::Health | Self::Ready | Self::OpenApi) {
            return None;
        }
        ROUTES.iter().map(|(known, ..)| *known).find(|known| *known == path)
    }

    /// Whether it needs no token.
    pub(super) const fn is_open(self) -> bool {
        matches!(self, Self::Health | Self::Ready | Self::OpenApi)
    }
}

/// The route at `path`, and its method.
#[inline]
pub(super) fn find(path: &str) -> Option<(Route, &'static Method)> {
    let found = ROUTES.iter().find(|(known, ..)| *known == path);
    found.map(|(_, method, route)| (*route, method))
}

/// Rejects a method other than `expected`; `HEAD` is a `GET`.
#[inline]
pub(super) fn check_method(method: &Method, expected: &Method) -> Result<(), Problem> {
    if method == expected || (method == Method::HEAD && *expected == Method::GET) {
        return Ok(());
    }
    Err(Problem::no_method(method, expected))
}

/// The path that is probably meant, here or among `others`: the one with the same last segment.
#[cold]
pub(super) fn similar_path(
    path: &str,
    others: impl Iterator<Item = &'static str>,
) -> Option<&'static str> {
    let last = |path: &str| {
        path.trim_end_matches('/').rsplit('/').next().unwrap_or("").to_ascii_lowercase()
    };
    let wanted = last(path).replace('-', "_");
    let mut known = ROUTES.iter().map(|(known, ..)| *known).chain(others);
    known.find(|known| !wanted.is_empty() && last(known) == wanted)
}

/// The paths and methods of this protocol that `/openapi.json` describes.
#[cfg(test)]
pub(crate) fn documented() -> Vec<(&'static str, Method)> {
    ROUTES.iter().map(|(path, method, _)| (*path, method.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_path_same_last_segment_is_found() {
        for (path, expected) in [
            ("/take", Some("/v1/take")),
            ("/v2/take", Some("/v1/take")),
            ("/v1/Take/", Some("/v1/take")),
            ("/v1/take-many", Some("/v1/take_many")),
            ("/v1/tak", None),
            ("/block", Some("/admin/block")),
            ("/", None),
        ] {
            assert_eq!(similar_path(path, ["/admin/block"].into_iter()), expected, "{path}");
        }
    }
}
