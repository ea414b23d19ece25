//! Routes that other parts of the server add to those of this protocol.

use std::net::IpAddr;

use futures_util::future::LocalBoxFuture;
use hyper::{Method, Response, http::request::Parts};
use serde::de::DeserializeOwned;
use sluicegate_core::Clock as _;
use tokio::sync::watch;

use super::{
    body::{self, BodyLimits},
    key_request::{self, KeyRequest},
    problem::{Problem, ReplyBody},
};
use crate::net::web::RequestBody;

/// A route, and what answers its requests.
pub(crate) struct Mount {
    pub(crate) path: &'static str,
    pub(crate) method: Method,
    pub(crate) access: Access,
    /// Whether `/openapi.json` describes it.
    pub(crate) is_documented: bool,
    pub(crate) handler: Handler,
}

/// The clients that may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// All clients, also browsers that follow a link: the response does not depend on the client.
    Visitors,
    /// Clients with the token; all clients if no token is set.
    Clients,
    /// Clients with the token; no client if no token is set.
    TokenHolders,
}

/// Answers the requests of a route.
pub(crate) type Handler = Box<
    dyn for<'a> Fn(MountedRequest<'a>) -> LocalBoxFuture<'a, Result<Response<ReplyBody>, Problem>>
        + Send
        + Sync,
>;

/// A request for a route.
pub(crate) struct MountedRequest<'a> {
    pub(crate) head: &'a Parts,
    pub(crate) body: &'a mut RequestBody,
    /// The address of the client, as far as the connection tells.
    pub(crate) address: Option<IpAddr>,
    /// Whether the server is to stop.
    pub(crate) stop: &'a watch::Sender<bool>,
    pub(super) limits: BodyLimits,
}

impl MountedRequest<'_> {
    /// The body as JSON.
    pub(crate) async fn read_json<T: DeserializeOwned>(&mut self) -> Result<T, Problem> {
        let now = self.limits.clock.now();
        key_request::read(&body::json(self.limits, self.head, self.body, now).await?.0)
    }

    /// The key that the body names, and nothing else.
    pub(crate) async fn read_key(&mut self) -> Result<Vec<u8>, Problem> {
        let now = self.limits.clock.now();
        let (body, _) = body::json(self.limits, self.head, self.body, now).await?;
        let request: KeyRequest<'_> = key_request::read(&body)?;
        request.only_key()?;
        Ok(request.key()?.into_owned())
    }

    /// Rejects a request whose body is not JSON: any page may have a browser send other types.
    pub(crate) fn check_json_type(&self) -> Result<(), Problem> {
        body::check_json_type(self.head)
    }
}
