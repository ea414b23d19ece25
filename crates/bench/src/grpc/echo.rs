//! The baseline service: it replies without rules, with tonic and hyper on one thread. It decodes the request and
//! encodes one status per descriptor. The difference between Sluicegate's service and this baseline is the cost of
//! matching and deciding.

use std::{convert::Infallible, io, net::TcpListener};

use hyper::{rt::Executor, server::conn::http2};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use sluicegate_proto::rls::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit},
    rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
};
use tokio::{runtime, task::spawn_local};
use tonic::{Request, Response, Status, async_trait};

struct Echo;

#[async_trait]
impl RateLimitService for Echo {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let status = |_| DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(RateLimit {
                name: "name".to_owned(),
                requests_per_unit: 100,
                unit: Unit::Minute.into(),
            }),
            limit_remaining: 99,
            duration_until_reset: Some(prost_types::Duration { seconds: 60, nanos: 0 }),
            quota: None,
        };
        Ok(Response::new(RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: request.get_ref().descriptors.iter().map(status).collect(),
            ..RateLimitResponse::default()
        }))
    }
}

/// Runs the tasks of a connection on its thread.
#[derive(Clone, Copy)]
struct LocalExecutor;

impl<F: Future<Output: 'static> + 'static> Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        spawn_local(future);
    }
}

/// Serves all clients, forever.
pub(super) fn serve(listener: TcpListener) -> io::Result<Infallible> {
    listener.set_nonblocking(true)?;
    let runtime =
        runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            let service = TowerToHyperService::new(RateLimitServiceServer::new(Echo));
            // An error only means that the client has disconnected.
            spawn_local(
                http2::Builder::new(LocalExecutor).serve_connection(TokioIo::new(socket), service),
            );
        }
    })
}
