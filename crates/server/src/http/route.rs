//! What is asked, by path and method.

use hyper::Method;

use super::problem::Problem;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// One decision.
    Decide(Verb),
    /// Several takes.
    TakeMany,
    /// That a key be as if never used.
    Reset,
    /// Whether a request may pass that a proxy asks about.
    Gate,
    /// That the rules be read again.
    Reload,
    /// An operator changes a key.
    Act(Action),
    /// Which keys are blocked.
    Blocks,
    /// Whether the server runs.
    Health,
    /// Whether it takes requests.
    Ready,
    /// What was counted.
    Metrics,
    /// What is where.
    OpenApi,
}

/// What an operator does to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Reset,
    Block,
    Unblock,
}

/// What is asked of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Take,
    Peek,
    Charge,
    Refund,
    Reserve,
}

/// The gate for proxies that take only the status 403 for a denial. A path and no parameter, because some
/// proxies (Caddy) pass the query of the client on.
pub(super) const GATE_403: &str = "/v1/gate/403";

/// The paths, each with its one method.
const ROUTES: [(&str, Method, Route); 18] = [
    ("/v1/take", Method::POST, Route::Decide(Verb::Take)),
    ("/v1/peek", Method::POST, Route::Decide(Verb::Peek)),
    ("/v1/charge", Method::POST, Route::Decide(Verb::Charge)),
    ("/v1/refund", Method::POST, Route::Decide(Verb::Refund)),
    ("/v1/reserve", Method::POST, Route::Decide(Verb::Reserve)),
    ("/v1/take_many", Method::POST, Route::TakeMany),
    ("/v1/reset", Method::POST, Route::Reset),
    ("/v1/gate", Method::GET, Route::Gate),
    (GATE_403, Method::GET, Route::Gate),
    ("/admin/reload", Method::POST, Route::Reload),
    ("/admin/reset", Method::POST, Route::Act(Action::Reset)),
    ("/admin/block", Method::POST, Route::Act(Action::Block)),
    ("/admin/unblock", Method::POST, Route::Act(Action::Unblock)),
    ("/admin/blocks", Method::GET, Route::Blocks),
    ("/healthz", Method::GET, Route::Health),
    ("/readyz", Method::GET, Route::Ready),
    ("/metrics", Method::GET, Route::Metrics),
    ("/openapi.json", Method::GET, Route::OpenApi),
];

impl Route {
    /// Whether it needs a server that requires a token.
    pub(super) const fn needs_token(self) -> bool {
        matches!(self, Self::Act(_) | Self::Blocks)
    }

    /// Whether no token is asked for.
    pub(super) const fn is_open(self) -> bool {
        matches!(self, Self::Health | Self::Ready | Self::OpenApi)
    }
}

/// What stands at `path`.
#[inline]
pub(super) fn find(path: &str, method: &Method) -> Result<Route, Problem> {
    let found = ROUTES.iter().find(|(known, ..)| *known == path);
    let Some((_, takes, route)) = found else { return Err(Problem::no_path(path, near(path))) };
    if method == takes || (method == Method::HEAD && *takes == Method::GET) {
        return Ok(*route);
    }
    Err(Problem::no_method(method, takes))
}

/// The path that is probably meant: the one with the same last segment.
#[cold]
fn near(path: &str) -> Option<&'static str> {
    let last = |path: &str| {
        path.trim_end_matches('/').rsplit('/').next().unwrap_or("").to_ascii_lowercase()
    };
    let wanted = last(path).replace('-', "_");
    let found = ROUTES.iter().find(|(known, ..)| !wanted.is_empty() && last(known) == wanted);
    found.map(|(known, ..)| *known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_paths_are_corrected() {
        for (path, expected) in [
            ("/take", Some("/v1/take")),
            ("/v2/take", Some("/v1/take")),
            ("/v1/Take/", Some("/v1/take")),
            ("/v1/take-many", Some("/v1/take_many")),
            ("/v1/tak", None),
            ("/", None),
        ] {
            assert_eq!(near(path), expected, "{path}");
        }
    }

    #[test]
    fn the_document_tells_what_is_where() {
        let document: serde_json::Value =
            serde_json::from_str(include_str!("openapi.json")).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
        let mut told = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            let methods = methods.as_object().unwrap();
            told.extend(methods.keys().map(|method| (path.clone(), method.to_uppercase())));
        }
        let known = ROUTES.iter().map(|(path, method, _)| ((*path).to_owned(), method.to_string()));
        let mut known: Vec<_> = known.collect();
        told.sort();
        known.sort();
        assert_eq!(told, known);
    }
}
