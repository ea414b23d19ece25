//! The face for HTTP: JSON in, decisions out.

use std::{convert::Infallible, rc::Rc};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response, StatusCode, body::Incoming};

use crate::{shared::Seat, stream::Socket, web, worker::Worker};

/// Serves a client until it leaves, is closed, or the server stops.
pub(crate) async fn serve(socket: Socket, seat: Seat, worker: Rc<Worker>) {
    web::serve(socket, seat, worker, answer).await;
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::default();
    if request.uri().path() != "/healthz" {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    Ok(response)
}
