//! The face for gRPC: the rate limit service of Envoy.

use std::{convert::Infallible, future::ready, rc::Rc};

use hyper::{
    Response,
    header::{CONTENT_TYPE, HeaderValue},
};

use crate::{shared::Seat, stream::Socket, web, worker::Worker};

/// Serves a client until it leaves, is closed, or the server stops.
pub(crate) async fn serve(socket: Socket, seat: Seat, worker: Rc<Worker>) {
    // No service is there yet: each call is answered that it is not implemented (12).
    let answer = |_| {
        let mut response = Response::new(String::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from_static("12"));
        ready(Ok::<_, Infallible>(response))
    };
    web::serve(socket, seat, worker, answer).await;
}
