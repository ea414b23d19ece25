//! Limits a gRPC server: `RESOURCE_EXHAUSTED` for clients that make too many calls.
//!
//! `cargo run -p sluicegate-tower --example tonic` serves the health service on 127.0.0.1:50051. Each caller, named
//! in `x-caller`, has five calls a minute.

use sluicegate::Limiter;
use sluicegate_redis::{Options, RedisStore};
use sluicegate_tower::{ClientAddress, Grpc, KeyPart, NamedPolicy, RateLimitLayer};
use tonic::transport::{
    Server,
    server::{TcpConnectInfo, TcpIncoming},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = match std::env::args().nth(1) {
        Some(url) => Limiter::new(RedisStore::new(&url, Options::default())?),
        None => Limiter::in_memory(),
    };
    let incoming = TcpIncoming::bind(([127, 0, 0, 1], 50051).into())?;
    serve(incoming, limiter, "gcra:5/1m").await
}

/// Serves health, with a limit.
pub async fn serve(
    incoming: TcpIncoming,
    limiter: Limiter,
    policy: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    let layer = RateLimitLayer::new(limiter, NamedPolicy::new("calls", policy.parse()?))
        .by(ClientAddress::peer().found_by(|it| it.get::<TcpConnectInfo>()?.remote_addr()))
        .by(KeyPart::own(|head| head.header("x-caller").map(str::to_owned)))
        .by(KeyPart::path())
        .on_rejection(Grpc);
    let (_reporter, health) = tonic_health::server::health_reporter();
    Ok(Server::builder().layer(layer).add_service(health).serve_with_incoming(incoming).await?)
}
