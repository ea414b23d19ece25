//! HTTP: JSON in, decisions out.
//!
//! Frequent requests are routed by hand and answered without a framework: the path names the operation
//! ([`route`]), the body has its arguments ([`key_request`], [`hold_request`]), and the reply is written byte by byte ([`reply`]).
//! An error is a [`problem`] that names the invalid value and what is expected. Other parts of the server
//! add routes of their own ([`mount`]).

mod body;
mod cross_site;
mod decide;
mod gate;
mod holds;
mod json;
mod key_request;
mod mount;
mod problem;
mod reply;
mod route;
mod worker;

use std::{borrow::Cow, cell::Cell, convert::Infallible, net::SocketAddr, rc::Rc, sync::Arc};

use http_body_util::Either;
use hyper::{
    Request, Response, StatusCode,
    body::Body as _,
    header::{AUTHORIZATION, CONNECTION, HeaderValue},
    http::request::Parts,
};
use sluicegate_core::Timestamp;
use tokio::task::JoinSet;
use tracing::{Instrument as _, Span};

#[cfg(test)]
pub(crate) use self::route::documented;
pub(crate) use self::{
    cross_site::HostNames,
    key_request::{Str, given_key},
    mount::{Access, Handler, Mount, MountedRequest},
    problem::{BodyStream, Problem, Reply, ReplyBody, without_class},
    reply::{reset, text, value},
    worker::HttpContext,
};
use self::{
    cross_site::{Audience, check_site},
    reply::plain,
    route::{Route, check_method, find, similar_path},
    worker::{HttpClientState, HttpWorker},
};
use crate::{
    net::{
        clients::ConnectionPermit,
        protocol::Protocol,
        stream::Socket,
        web::{self, MAX_HEAD, RequestBody, WebPort},
        worker::{Service, ServiceFactory},
    },
    policies::policy_cache::PolicyCache,
};

pub(crate) static PROTOCOL: Protocol = Protocol {
    name: "http",
    setting: "http",
    tls_settings: "--http-tls",
    alpn: &[b"h2", b"http/1.1"],
    reserves_health: true,
    rejection: web::UNAVAILABLE,
};

/// The replies to checks of health for whose connections there is no memory.
const HEALTHY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\
    Content-Length: 3\r\n\r\nok\n";
const READY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\
    Content-Length: 6\r\n\r\nready\n";

/// Makes the service of each worker.
pub(crate) fn service(context: HttpContext, web: web::Settings) -> ServiceFactory {
    let context = Arc::new(context);
    Box::new(move |port| {
        let web = Rc::new(WebPort { port, settings: web.clone() });
        let context = Arc::clone(&context);
        Rc::new(HttpWorker { context, web, policies: PolicyCache::default().into() })
    })
}

impl Service for HttpWorker {
    fn serve(self: Rc<Self>, socket: Socket, permit: ConnectionPermit, tasks: &mut JoinSet<()>) {
        let address = permit.client.address.parse::<SocketAddr>().ok();
        let address = address.map(|address| address.ip().to_canonical());
        let (web, client) = (Rc::clone(&self.web), Arc::clone(&permit.client));
        let worker = Rc::clone(&self);
        let delayed_until = Cell::default();
        let client = Rc::new(HttpClientState { worker: self, client, address, delayed_until });
        let answer = move |request| answer(Rc::clone(&client), request);
        let unavailable = || Problem::no_memory().reply().map(Either::Left);
        let rejection = move |first: &[u8]| rejection(&worker, first);
        tasks.spawn_local(web::serve(socket, permit, web, answer, unavailable, rejection));
    }
}

async fn answer(
    client: Rc<HttpClientState>,
    request: Request<RequestBody>,
) -> Result<Response<ReplyBody>, Infallible> {
    let worker = &client.worker;
    let stats = worker.stats();
    stats.requests.add();
    let start = worker.now();
    let (head, mut body) = request.into_parts();
    let path = head.uri.path();
    let replied = if client.client.reserved && !is_health(path) {
        Err(Problem::too_many_clients())
    } else if let Some(found) = find(path) {
        let reply = match request_span(&worker.context, found.0, &head) {
            None => carry_out(&client, found, &head, &mut body, start).await,
            Some(span) => {
                let reply = carry_out(&client, found, &head, &mut body, start);
                Box::pin(record(reply, span)).await
            }
        };
        reply.map(|it| it.map(Either::Left))
    } else {
        // Boxed, so that its state is not part of every other request.
        Box::pin(call_mount(&client, &head, &mut body)).await
    };
    // Also after an error: otherwise the next requests find names under the rules of this one.
    worker.policies.borrow_mut().evict();
    let rejected = replied.is_err();
    let mut reply = replied.unwrap_or_else(|problem| {
        stats.errors.add();
        problem.reply().map(Either::Left)
    });
    if reply.status() != StatusCode::OK && head.uri.path() == route::GATE_403 {
        gate::reject_with_403(&mut reply);
    }
    let limits = worker.body_limits();
    if !body.is_end_stream()
        && !Box::pin(body::drain_rest(limits, &head, body, (start, rejected))).await
    {
        reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if client.client.reserved {
        reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let end = worker.now();
    stats.answered(1, usize::from(head.uri.path().starts_with("/v1/")), start, end);
    Ok(reply)
}

/// The span of a request, if it is to be recorded.
#[inline]
fn request_span(context: &HttpContext, route: Route, head: &Parts) -> Option<Span> {
    let telemetry = context.telemetry.as_ref()?;
    let path = route.traced_path(head.uri.path())?;
    telemetry.http(path, &head.method, &head.headers)
}

/// Answers a request within its span.
async fn record(
    reply: impl Future<Output = Result<Reply, Problem>>,
    span: Span,
) -> Result<Reply, Problem> {
    let reply = reply.instrument(span.clone()).await;
    let status = reply.as_ref().map_or_else(|problem| problem.status, Response::status);
    span.record("http.response.status_code", i64::from(status.as_u16()));
    if status.is_server_error() {
        span.record("error.type", status.as_str());
        span.record("otel.status_code", "error");
    }
    reply
}

/// Answers a request for one of the routes of this protocol.
async fn carry_out(
    client: &HttpClientState,
    (route, method): (Route, &hyper::Method),
    head: &Parts,
    body: &mut RequestBody,
    now: Timestamp,
) -> Result<Reply, Problem> {
    let worker = &*client.worker;
    let context = &*worker.context;
    check_size(body)?;
    let method = check_method(&head.method, method);
    let audience = if method.is_ok() { audience(route) } else { Audience::Clients };
    check_site(&context.hosts, audience, head)?;
    method?;
    if !route.is_open() {
        authorize(client, head).await?;
    }
    let limits = worker.body_limits();
    match route {
        Route::Decide(kind) => {
            let (text, now) = body::json(limits, head, body, now).await?;
            decide::one(worker, kind, (&text, body), now).await
        }
        // The routes of rare requests are boxed, so that the state of each request stays small.
        Route::TakeMany => {
            let (body, now) = body::json(limits, head, body, now).await?;
            Box::pin(decide::many(worker, &body, now)).await
        }
        Route::Hold(kind) => {
            let (text, now) = body::json(limits, head, body, now).await?;
            Box::pin(holds::one(worker, kind, (&text, body), now)).await
        }
        Route::TakeAll => {
            let (text, now) = body::json(limits, head, body, now).await?;
            Box::pin(holds::take_all(worker, (&text, body), now)).await
        }
        Route::SettleAll => {
            let (body, now) = body::json(limits, head, body, now).await?;
            Box::pin(holds::settle_all(worker, &body, now)).await
        }
        Route::Reset => {
            let (body, now) = body::json(limits, head, body, now).await?;
            Box::pin(decide::reset(worker, &body, now)).await
        }
        Route::Gate => Box::pin(gate::evaluate(client, head, now)).await,
        Route::Health => Ok(plain("ok\n")),
        Route::OpenApi => Ok(text("application/json", include_str!("openapi.json"))),
        Route::Ready => match not_ready(worker) {
            Some(why) => Err(Problem::unavailable(why)),
            None => Ok(plain("ready\n")),
        },
    }
}

/// Why the server is not ready.
fn not_ready(worker: &HttpWorker) -> Option<String> {
    if worker.web.port.worker.stopping.get() {
        return Some("the server is shutting down".into());
    }
    worker.context.decider.not_ready()
}

/// The reply to a connection for which there is no memory, and which has sent the bytes `first`: a check of health is answered.
fn rejection(worker: &HttpWorker, first: &[u8]) -> Cow<'static, [u8]> {
    if first.starts_with(b"GET /healthz ") {
        HEALTHY.into()
    } else if first.starts_with(b"GET /readyz ") && not_ready(worker).is_none() {
        READY.into()
    } else {
        web::UNAVAILABLE.into()
    }
}

/// Answers a request for a route that another part of the server has added.
async fn call_mount(
    client: &HttpClientState,
    head: &Parts,
    body: &mut RequestBody,
) -> Result<Response<ReplyBody>, Problem> {
    let context = &*client.worker.context;
    check_size(body)?;
    let path = head.uri.path();
    let mount = context.mounts.iter().find(|mount| mount.path == path);
    let access = mount.map_or(Access::Clients, |mount| mount.access);
    let audience = if access == Access::Visitors { Audience::Visitors } else { Audience::Clients };
    check_site(&context.hosts, audience, head)?;
    let Some(mount) = mount else {
        let documented = context.mounts.iter().filter(|mount| mount.is_documented);
        let similar = similar_path(path, documented.map(|mount| mount.path));
        return Err(Problem::no_path(path, similar));
    };
    check_method(&head.method, &mount.method)?;
    if access != Access::Visitors {
        authorize(client, head).await?;
    }
    if access == Access::TokenHolders && context.token.is_none() {
        return Err(Problem::needs_token());
    }
    let stop = &client.worker.web.port.worker.stop;
    let limits = client.worker.body_limits();
    (mount.handler)(MountedRequest { head, body, address: client.address, stop, limits }).await
}

/// Whether `path` answers clients beyond `--max-clients` as well.
fn is_health(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

/// The audience of a route, as far as pages in browsers are concerned.
const fn audience(route: Route) -> Audience {
    match route {
        Route::Health | Route::Ready => Audience::Anybody,
        Route::Gate => Audience::Proxies,
        _ => Audience::Clients,
    }
}

/// Rejects a head that is too large. hyper has done so on HTTP/2.
fn check_size(body: &RequestBody) -> Result<(), Problem> {
    let (size, most) = (body.head_size, usize::try_from(MAX_HEAD).expect("32 KiB"));
    if size <= most { Ok(()) } else { Err(Problem::head_too_large(size, most)) }
}

/// Rejects a request without the token, where one is set. Guesses are delayed, counted and logged.
async fn authorize(client: &HttpClientState, head: &Parts) -> Result<(), Problem> {
    let Some(token) = &client.worker.context.token else { return Ok(()) };
    let Some(given) = head.headers.get(AUTHORIZATION) else {
        return Err(Problem::unauthorized("missing token"));
    };
    // Boxed, because few connections have a wrong token, and each request would have its size.
    if client.delayed_until.get().is_some() {
        Box::pin(client.delay()).await;
    }
    let given = given.as_bytes();
    let bearer =
        given.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
    match bearer {
        Some((_, given)) if token.matches(given.trim_ascii()) => Ok(()),
        _ => {
            client.note_wrong_token();
            Box::pin(client.delay()).await;
            Err(Problem::unauthorized("invalid token"))
        }
    }
}
