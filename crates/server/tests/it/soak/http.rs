//! Clients of HTTP/1.1, of the gate, and a viewer of the dashboard.

use std::sync::atomic::{AtomicBool, Ordering};

use super::ProtocolCounts;
use crate::{
    dashboard::Viewer,
    harness::{Random, Running},
    http::client::Client,
};

/// One client until `stop`, now and then on a new connection.
pub(super) fn client(server: &Running, seed: u64, stop: &AtomicBool) -> ProtocolCounts {
    let mut seen = ProtocolCounts::default();
    let mut random = Random(seed);
    let mut client = Client::connect(server);
    while !stop.load(Ordering::Relaxed) {
        if random.below(500) == 0 {
            client = Client::connect(server);
        }
        let key = random.below(200);
        let take = |policy: &str| format!(r#"{{"key":"h{key}","policy":"{policy}"}}"#);
        let answer = match random.below(10) {
            0 => client.post("/v1/take", take("gcra:0/1s")),
            1 => client.post("/v1/take", "{"),
            2 => client.post("/v1/take", take("sliding-log:20/10s")),
            3..6 => {
                let fields = format!(
                    "X-Forwarded-Uri: /p{key}\r\nX-Forwarded-For: 10.0.0.{}\r\n",
                    key % 200
                );
                client.send_request("GET", "/v1/gate", &fields);
                client.read_reply()
            }
            _ => client.post("/v1/take", take("fixed-window:3/10s")),
        };
        seen.requests += 1;
        match answer.status {
            200 => seen.decided(true),
            429 => seen.decided(false),
            400 | 422 => seen.errors += 1,
            other => panic!("{other}: {answer:?}"),
        }
    }
    seen
}

/// Reads the dashboard's frames until `stop`; one request in all.
pub(super) fn viewer(server: &Running, stop: &AtomicBool) -> ProtocolCounts {
    let mut viewer = Viewer::new(server);
    while !stop.load(Ordering::Relaxed) {
        viewer.frame();
    }
    ProtocolCounts { requests: 1, other: 1, ..ProtocolCounts::default() }
}
