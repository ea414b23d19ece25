//! A limiter over a Redis on a free port of the loopback, which ends with the test.

use sluicegate::Limiter;
use sluicegate_redis::{Options, RedisStore};
use sluicegate_testing::Server;

/// A limiter over that server.
pub(crate) async fn limiter(server: &Server) -> Limiter {
    let mut options = Options::default();
    // A deadline that a busy machine keeps.
    options.deadline = std::time::Duration::from_secs(5);
    options.connect_timeout = options.deadline;
    Limiter::new(RedisStore::connect_with(&server.url(), options).await.unwrap())
}
