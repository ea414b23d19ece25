//! The dashboard: what the server does, to be looked at with a browser.
//!
//! A page of a few files ([`assets`]) shows frames that come once a second ([`hub`], [`frame`]),
//! tells the [`rules`] in words, looks up keys ([`key`]) and has a playground ([`play`]). It changes nothing: what is asked here
//! is read, or decided on state that the one who asks brings along.
//!
//! Invariants:
//! - while nobody looks, nothing is computed, and a batch of requests pays one plain load for it;
//! - the page itself asks for no token, where one is set; whatever it shows does;
//! - a browser loads nothing from elsewhere, and runs nothing but these files.

mod assets;
mod cause;
mod frame;
mod history;
mod hot;
mod hub;
mod key;
mod known;
mod play;
mod rules;
mod sketch;
mod store;
mod watch;

use std::{convert::Infallible, pin::Pin, rc::Rc};

use bytes::Bytes;
use http_body_util::{Either, Full, StreamBody};
use hyper::{
    Method, Response,
    body::Frame,
    header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue},
    http::request::Parts,
};
use serde::Serialize;

use self::{
    assets::{ASSETS, Asset, harden},
    hub::MOST,
};
pub(crate) use self::{
    cause::Cause,
    hub::{Hub, list_keys},
    known::{KeyFilter, KeyPage},
    watch::Watch,
};
use crate::{
    DashboardMode,
    http::{Problem, authorize, key_of, read_json},
    web::RequestBody,
    worker::Worker,
};

/// The body of a response, whether all of it is there or it goes on.
pub(crate) type Body = Either<Full<Bytes>, StreamBody<Stream>>;
/// The parts of a body that goes on.
pub(crate) type Stream =
    Pin<Box<dyn futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>>>>;

/// What is asked of the dashboard.
#[derive(Clone, Copy)]
pub(crate) enum Page {
    File(&'static Asset),
    Events,
    History,
    Rules,
    Key,
    Keys,
    Play,
}

impl Page {
    /// Whether it is the same for everybody.
    pub(crate) const fn is_open(self) -> bool {
        matches!(self, Self::File(_))
    }
}

/// What stands at `path`, if the dashboard does.
#[inline]
pub(crate) fn find(worker: &Worker, path: &str) -> Option<Page> {
    // Whatever is asked often is elsewhere.
    if path != "/" && !path.starts_with("/dashboard/") {
        return None;
    }
    if worker.shared.dashboard.mode == DashboardMode::Off {
        return None;
    }
    match path {
        "/dashboard/events" => Some(Page::Events),
        "/dashboard/history" => Some(Page::History),
        "/dashboard/rules" => Some(Page::Rules),
        "/dashboard/key" => Some(Page::Key),
        "/dashboard/keys" => Some(Page::Keys),
        "/dashboard/play" => Some(Page::Play),
        path => ASSETS.iter().find(|asset| asset.path == path).map(Page::File),
    }
}

/// Answers what is asked of the dashboard.
pub(crate) async fn answer(
    worker: &Rc<Worker>,
    page: Page,
    head: &Parts,
    body: &mut RequestBody,
) -> Result<Response<Body>, Problem> {
    let takes = match page {
        Page::File(_) | Page::Events | Page::History | Page::Rules => Method::GET,
        Page::Key | Page::Keys | Page::Play => Method::POST,
    };
    if head.method != takes && !(head.method == Method::HEAD && takes == Method::GET) {
        return Err(Problem::no_method(&head.method, &takes));
    }
    if let Page::File(asset) = page {
        return Ok(asset.reply(&head.headers).await.map(Either::Left));
    }
    authorize(worker, head)?;
    match page {
        Page::Events => events(worker),
        Page::History => json(&worker.shared.dashboard.history.report()),
        Page::Rules => json(&rules::said(&worker.shared)),
        Page::Key => {
            let key = key_of(worker, head, body).await?;
            json(&key::look_up(&worker.shared, &key).await?)
        }
        Page::Keys => {
            let wanted = read_json(worker, head, body).await?;
            json(&hot::listed(&worker.shared, &wanted))
        }
        Page::Play => {
            let asked = read_json(worker, head, body).await?;
            json(&play::play(&asked).map_err(Problem::unprocessable)?)
        }
        Page::File(_) => unreachable!("files were answered"),
    }
}

/// Frames from now on.
fn events(worker: &Rc<Worker>) -> Result<Response<Body>, Problem> {
    let Some(events) = hub::look(worker) else {
        return Err(Problem::unavailable(format!("too many dashboard viewers (limit {MOST})")));
    };
    let mut reply = Response::new(Either::Right(StreamBody::new(events)));
    let fields = reply.headers_mut();
    harden(fields);
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(reply)
}

fn json(told: &impl Serialize) -> Result<Response<Body>, Problem> {
    let body = serde_json::to_vec(told).map_err(|error| Problem::malformed(error.to_string()))?;
    let mut reply = Response::new(Either::Left(body.into()));
    let fields = reply.headers_mut();
    harden(fields);
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(reply)
}
