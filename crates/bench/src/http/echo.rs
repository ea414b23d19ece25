//! The baseline server: hyper on one core, as in Sluicegate's server. It reads each request to its end and sends the
//! same reply to all. The difference between a server and this baseline is the cost of its JSON, decisions and
//! headers.

use std::{convert::Infallible, io, net::TcpListener};

use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};

/// As long as a real body.
const BODY: &[u8] = br#"{"allowed":true,"limit":10000,"remaining":9999,"retry_after_us":0,"reset_after_us":3600000000,"delay_us":0,"binding":0}"#;

/// Serves all clients, forever.
pub(super) fn serve(listener: TcpListener) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            tokio::spawn(async move {
                let mut builder = Builder::new(TokioExecutor::new());
                builder.http1().timer(TokioTimer::new()).header_read_timeout(None);
                // An error only means that the client has disconnected.
                let _ = builder.serve_connection(TokioIo::new(socket), service_fn(answer)).await;
            });
        }
    })
}

/// A reply with the headers of a real one.
async fn answer(mut request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    while let Some(Ok(_)) = request.body_mut().frame().await {}
    let mut response = Response::new(Full::new(Bytes::from_static(BODY)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let policy = HeaderValue::from_static(r#""default";q=10000;w=36000000"#);
    headers.insert(HeaderName::from_static("ratelimit-policy"), policy);
    let left = HeaderValue::from_static(r#""default";r=9999;t=3600"#);
    headers.insert(HeaderName::from_static("ratelimit"), left);
    Ok(response)
}
