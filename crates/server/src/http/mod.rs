//! The face for HTTP: JSON in, decisions out.
//!
//! What is asked often is routed by hand and answered without a framework: the path names what is
//! asked ([`route`]), the body says it ([`ask`]), and the reply is written byte by byte ([`reply`]).
//! An error is a [`problem`] that names the invalid value and what is expected.

mod admin;
mod ask;
mod body;
mod cross_site;
mod decide;
mod gate;
mod json;
mod problem;
mod reply;
mod route;

use std::{convert::Infallible, net::IpAddr, rc::Rc};

use bytes::Bytes;
use http_body_util::{Either, Full, StreamBody};
use hyper::{
    Request, Response, StatusCode,
    body::{Body as _, Frame},
    header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HeaderValue, VARY},
    http::request::Parts,
};
use serde::de::DeserializeOwned;
use sluicegate_core::Timestamp;

pub(crate) use self::{
    admin::Shown,
    cross_site::HostNames,
    problem::{Problem, without_class},
};
use self::{
    cross_site::{Audience, Fields, check, check_fields},
    reply::plain,
    route::{Route, find},
};
use crate::{
    dashboard, metrics,
    shared::Seat,
    stream::Socket,
    web::{self, MAX_HEAD, RequestBody},
    worker::Worker,
};

/// A response, all of which is there.
type Reply = Response<Full<Bytes>>;

/// What all requests of one client have in common.
struct Client {
    worker: Rc<Worker>,
    /// Where it comes from, as far as the connection tells.
    address: Option<IpAddr>,
    /// Whether it may only ask about the health of the server.
    reserved: bool,
}

/// Serves a client until it leaves, is closed, or the server stops.
pub(crate) async fn serve(socket: Socket, seat: Seat, worker: Rc<Worker>) {
    let address = seat.client.address.parse::<std::net::SocketAddr>().ok();
    let address = address.map(|address| address.ip().to_canonical());
    let reserved = seat.client.reserved;
    let client = Rc::new(Client { worker: Rc::clone(&worker), address, reserved });
    let answer = move |request| answer(Rc::clone(&client), request);
    let unavailable = || Problem::no_memory().reply().map(Either::Left);
    web::serve(socket, seat, worker, answer, unavailable).await;
}

async fn answer(
    client: Rc<Client>,
    request: Request<RequestBody>,
) -> Result<Response<dashboard::Body>, Infallible> {
    let worker = &client.worker;
    let stats = worker.stats();
    stats.requests.add();
    let start = worker.shared.decider.now();
    let (head, mut body) = request.into_parts();
    let replied = match dashboard::find(worker, head.uri.path()) {
        _ if client.reserved && !is_health(head.uri.path()) => Err(Problem::too_many_clients()),
        Some(page) => {
            let audience = if page.is_open() { Audience::Visitors } else { Audience::Clients };
            let checked = check_size(&body);
            match checked.and_then(|()| check(&worker.shared.http_hosts, audience, &head)) {
                // It is long: in a box, so that it is not moved with every other request.
                Ok(()) => Box::pin(dashboard::answer(worker, page, &head, &mut body)).await,
                Err(problem) => Err(problem),
            }
        }
        None => carry_out(&client, &head, &mut body, start).await,
    };
    let refused = replied.is_err();
    let mut reply = replied.unwrap_or_else(|problem| {
        stats.errors.add();
        problem.reply().map(Either::Left)
    });
    if reply.status() != StatusCode::OK && head.uri.path() == route::GATE_403 {
        gate::reject_with_403(&mut reply);
    }
    if !body.is_end_stream() && !Box::pin(body::pass(worker, &head, body, (start, refused))).await {
        reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if client.reserved {
        reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let end = worker.shared.decider.now();
    stats.latency.took(end.as_micros().saturating_sub(start.as_micros()));
    if head.uri.path().starts_with("/v1/") {
        stats.watch.answered(1, start, end);
    }
    Ok(reply)
}

/// The key that a body names.
pub(crate) async fn key_of(
    worker: &Worker,
    head: &Parts,
    body: &mut RequestBody,
) -> Result<Vec<u8>, Problem> {
    let content_type = head.headers.get(CONTENT_TYPE);
    let (body, _) = body::json(worker, content_type, body, worker.shared.decider.now()).await?;
    let ask = ask::Ask::read(&body)?;
    ask.only_key()?;
    Ok(ask.key()?.into_owned())
}

/// What a body says, as JSON.
pub(crate) async fn read_json<T: DeserializeOwned>(
    worker: &Worker,
    head: &Parts,
    body: &mut RequestBody,
) -> Result<T, Problem> {
    let content_type = head.headers.get(CONTENT_TYPE);
    let (body, _) = body::json(worker, content_type, body, worker.shared.decider.now()).await?;
    ask::read(&body)
}

async fn carry_out(
    client: &Client,
    head: &Parts,
    body: &mut RequestBody,
    now: Timestamp,
) -> Result<Response<dashboard::Body>, Problem> {
    let worker = &*client.worker;
    check_size(body)?;
    let route = find(head.uri.path(), &head.method);
    let fields = Fields::of(&head.headers);
    let audience = audience(route.as_ref().ok().copied());
    check_fields(&worker.shared.http_hosts, audience, head, &fields)?;
    let route = route?;
    if !route.is_open() {
        authorize(worker, head)?;
    }
    if route.needs_token() && worker.shared.http_token.is_none() {
        return Err(Problem::needs_token());
    }
    if route == Route::Metrics {
        let format = metrics::Format::negotiate(&head.headers);
        let parts = Box::pin(metrics::render(&worker.shared, format, body.hold_nothing())).await;
        let parts = parts.ok_or_else(Problem::no_memory)?.map(|text| Ok(Frame::data(text)));
        let parts: dashboard::Stream = Box::pin(futures_util::stream::iter(parts));
        let mut reply = reply::text(format.media_type(), Bytes::new());
        reply.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
        return Ok(reply.map(|_| Either::Right(StreamBody::new(parts))));
    }
    let replied = match route {
        Route::Decide(verb) => {
            let (text, now) = body::json(worker, fields.content_type, body, now).await?;
            decide::one(worker, verb, (&text, body), now).await
        }
        // What is asked less often is kept apart, so that what is kept of each request stays small.
        Route::TakeMany => {
            let (body, now) = body::json(worker, fields.content_type, body, now).await?;
            Box::pin(decide::many(worker, &body, now)).await
        }
        Route::Reset => {
            let (body, now) = body::json(worker, fields.content_type, body, now).await?;
            Box::pin(decide::reset(worker, &body, now)).await
        }
        Route::Gate => Box::pin(gate::ask(client, head, now)).await,
        Route::Reload if !body::is_json_type(fields.content_type) => Err(Problem::no_json(None)),
        Route::Reload => match Box::pin(worker.shared.decider.rules.reload()).await {
            Ok(reloaded) => Ok(reply::reloaded(reloaded)),
            Err(problem) => Err(Problem::unprocessable(problem)),
        },
        Route::Act(action) => {
            let (body, _) = body::json(worker, fields.content_type, body, now).await?;
            Box::pin(admin::act(client, action, &body)).await
        }
        Route::Blocks => Ok(admin::list(&worker.shared)),
        Route::Health => Ok(plain("ok\n")),
        Route::OpenApi | Route::Metrics => {
            Ok(reply::text("application/json", include_str!("openapi.json")))
        }
        Route::Ready if worker.stopping.get() => {
            Err(Problem::unavailable("the server is shutting down"))
        }
        Route::Ready => match worker.shared.decider.store.not_ready(&worker.shared.config) {
            Some(why) => Err(Problem::unavailable(why)),
            None => Ok(plain("ready\n")),
        },
    };
    replied.map(|reply| reply.map(Either::Left))
}

/// Whether what is at `path` answers even clients beyond `--max-clients`.
fn is_health(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

/// Who may ask for it, as far as pages in browsers are concerned.
const fn audience(route: Option<Route>) -> Audience {
    match route {
        Some(Route::Health | Route::Ready) => Audience::Anybody,
        Some(Route::Gate) => Audience::Proxies,
        _ => Audience::Clients,
    }
}

/// Refuses a head that is too large: on HTTP/2 that was done before it came here.
fn check_size(body: &RequestBody) -> Result<(), Problem> {
    let (size, most) = (body.head_size(), usize::try_from(MAX_HEAD).unwrap_or(usize::MAX));
    if size <= most { Ok(()) } else { Err(Problem::head_too_large(size, most)) }
}

/// Refuses who does not give the token, where one is asked for.
pub(crate) fn authorize(worker: &Worker, head: &Parts) -> Result<(), Problem> {
    let Some(token) = &worker.shared.http_token else { return Ok(()) };
    let Some(given) = head.headers.get(AUTHORIZATION) else {
        return Err(Problem::unauthorized("missing token"));
    };
    let given = given.as_bytes();
    let bearer =
        given.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
    match bearer {
        Some((_, given)) if token.is(given.trim_ascii()) => Ok(()),
        _ => Err(Problem::unauthorized("invalid token")),
    }
}
