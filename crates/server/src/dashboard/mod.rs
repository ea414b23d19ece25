//! The dashboard, for browsers.
//!
//! A page of a few files ([`assets`]) shows one frame a second ([`broadcaster`], [`frame`]), describes the [`rules`],
//! looks up keys ([`key`]) and has a playground ([`playground`]). Its routes are read-only: they read state of the server, or decide
//! on state in the request.
//!
//! Invariants:
//! - without viewers nothing is computed, and a batch of requests pays one relaxed load;
//! - the files of the page need no token; all data does, if a token is set;
//! - a browser loads nothing from other origins, and runs only these files.

mod assets;
mod broadcaster;
mod frame;
mod hot;
mod key;
mod playground;
mod rules;
mod sources;
mod store;

use std::sync::Arc;

use futures_util::future::{LocalBoxFuture, ready};
use http_body_util::{Either, StreamBody};
use hyper::{
    Method, Response,
    header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue},
};
use serde::Serialize;

use self::{
    assets::{ASSETS, Asset, harden},
    broadcaster::MAX_VIEWERS,
};
pub(crate) use self::{broadcaster::Broadcaster, sources::Sources};
use crate::{
    DashboardMode,
    protocols::http::{Access, Handler, Mount, MountedRequest, Problem, ReplyBody},
};

type PageResult = Result<Response<ReplyBody>, Problem>;

/// Answers the requests of a page.
type Page = for<'a> fn(Arc<Broadcaster>, MountedRequest<'a>) -> LocalBoxFuture<'a, PageResult>;

/// The routes of the dashboard; none where it is off.
pub(crate) fn mounts(dashboard: &Arc<Broadcaster>) -> Vec<Mount> {
    if dashboard.mode() == DashboardMode::Off {
        return Vec::new();
    }
    let page = |path, method, page: Page| {
        let dashboard = Arc::clone(dashboard);
        let handler: Handler = Box::new(move |call| page(Arc::clone(&dashboard), call));
        Mount { path, method, access: Access::Clients, is_documented: false, handler }
    };
    let mut mounts = vec![
        page("/dashboard/events", Method::GET, |dashboard, call| {
            Box::pin(ready(events(&dashboard, &call)))
        }),
        page("/dashboard/history", Method::GET, |dashboard, _| {
            Box::pin(ready(json(&dashboard.history.report())))
        }),
        page("/dashboard/rules", Method::GET, |dashboard, _| {
            Box::pin(ready(json(&rules::listing(&dashboard.sources))))
        }),
        page("/dashboard/key", Method::POST, |dashboard, mut call| {
            Box::pin(async move {
                let key = call.read_key().await?;
                json(&key::look_up(&dashboard.sources, &key).await?)
            })
        }),
        page("/dashboard/keys", Method::POST, |dashboard, mut call| {
            Box::pin(
                async move { json(&hot::listed(&dashboard.sources, &call.read_json().await?)) },
            )
        }),
        page("/dashboard/play", Method::POST, |_, mut call| {
            Box::pin(async move {
                json(&playground::play(&call.read_json().await?).map_err(Problem::unprocessable)?)
            })
        }),
    ];
    mounts.extend(ASSETS.iter().map(file));
    mounts
}

/// A file of the page, which is the same for everybody.
fn file(asset: &'static Asset) -> Mount {
    Mount {
        path: asset.path,
        method: Method::GET,
        access: Access::Visitors,
        is_documented: false,
        handler: Box::new(move |call| {
            Box::pin(async move { Ok(asset.reply(&call.head.headers).await.map(Either::Left)) })
        }),
    }
}

/// A stream of frames.
fn events(dashboard: &Arc<Broadcaster>, call: &MountedRequest<'_>) -> PageResult {
    let Some(events) = dashboard.subscribe(call.stop.subscribe()) else {
        let text = format!("too many dashboard viewers (limit {MAX_VIEWERS})");
        return Err(Problem::unavailable(text));
    };
    Ok(reply("text/event-stream", Either::Right(StreamBody::new(events))))
}

fn json(value: &impl Serialize) -> PageResult {
    let body = serde_json::to_vec(value).map_err(|error| Problem::malformed(error.to_string()))?;
    Ok(reply("application/json", Either::Left(body.into())))
}

fn reply(kind: &'static str, body: ReplyBody) -> Response<ReplyBody> {
    let mut reply = Response::new(body);
    let fields = reply.headers_mut();
    harden(fields);
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    reply
}
