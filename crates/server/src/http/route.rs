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
    /// Whether the server runs.
    Health,
    /// Whether it takes requests.
    Ready,
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

/// The paths, each with its one method.
const ROUTES: [(&str, Method, Route); 9] = [
    ("/v1/take", Method::POST, Route::Decide(Verb::Take)),
    ("/v1/peek", Method::POST, Route::Decide(Verb::Peek)),
    ("/v1/charge", Method::POST, Route::Decide(Verb::Charge)),
    ("/v1/refund", Method::POST, Route::Decide(Verb::Refund)),
    ("/v1/reserve", Method::POST, Route::Decide(Verb::Reserve)),
    ("/v1/take_many", Method::POST, Route::TakeMany),
    ("/v1/reset", Method::POST, Route::Reset),
    ("/healthz", Method::GET, Route::Health),
    ("/readyz", Method::GET, Route::Ready),
];

impl Route {
    /// Whether no token is asked for.
    pub(super) const fn is_open(self) -> bool {
        matches!(self, Self::Health | Self::Ready)
    }
}

/// What stands at `path`.
#[inline]
pub(super) fn find(path: &str, method: &Method) -> Result<Route, Problem> {
    let found = ROUTES.iter().find(|(known, ..)| *known == path);
    let Some((_, takes, route)) = found else { return Err(Problem::no_path(path)) };
    if method == takes || (method == Method::HEAD && *takes == Method::GET) {
        return Ok(*route);
    }
    Err(Problem::no_method(method, takes))
}
