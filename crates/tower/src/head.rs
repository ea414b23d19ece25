//! A request without its body.

use http::{Extensions, HeaderMap, Method, Request, Uri};

/// A request without its body, from which keys, costs and policies are derived.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Head<'a> {
    /// The method.
    pub method: &'a Method,
    /// The request target.
    pub uri: &'a Uri,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// Extensions set by the server and by other middleware, such as the address of the peer.
    pub extensions: &'a Extensions,
}

impl<'a> Head<'a> {
    /// The head of `request`.
    #[must_use]
    pub fn of<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    /// The path, without the query.
    #[must_use]
    pub fn path(&self) -> &'a str {
        self.uri.path()
    }

    /// The first value of a header, if it is visible ASCII.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Whether the request is a gRPC call.
    #[must_use]
    pub fn is_grpc(&self) -> bool {
        let rest = self.header("content-type").and_then(|it| it.strip_prefix("application/grpc"));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
    }
}
