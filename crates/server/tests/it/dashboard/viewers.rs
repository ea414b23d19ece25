//! Viewers: their frames, their number, and viewers that do not read.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
};

use serde_json::Value;
use sluicegate_server::DashboardMode;

use crate::{
    harness::{Running, simple},
    http::client::{Client, server},
};

/// A viewer.
pub(crate) struct Viewer(BufReader<TcpStream>);

impl Viewer {
    pub(crate) fn new(server: &Running) -> Self {
        let mut client = Client::connect(server);
        client.send_request("GET", "/dashboard/events", "");
        let mut viewer = Self(BufReader::new(client.stream));
        assert_eq!(viewer.line(), "HTTP/1.1 200 OK");
        viewer
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).unwrap() > 0, "closed");
        line.trim_end().to_owned()
    }

    /// The next frame.
    pub(crate) fn frame(&mut self) -> Value {
        loop {
            if let Some(frame) = self.line().strip_prefix("data: ") {
                return serde_json::from_str(frame).unwrap();
            }
        }
    }

    /// The first frame for which `has` is true.
    pub(crate) fn until(&mut self, has: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..30 {
            let frame = self.frame();
            if has(&frame) {
                return frame;
            }
        }
        panic!("no frame has it");
    }
}

#[test]
fn frames_agree_with_info_and_list_keys() {
    let server = server(|_| {});
    let mut viewer = Viewer::new(&server);
    assert_eq!(viewer.frame()["number"], 1);
    let mut peer = server.connect();
    for _ in 0..20 {
        peer.call("SG.TAKE hot gcra:5/1h");
    }
    peer.call("SG.TAKE cold gcra:5/1h");
    let mut client = Client::connect(&server);
    client.post("/v1/take", r#"{"key":"cold","policy":"gcra:5/1h"}"#);
    let frame = viewer
        .until(|frame| frame["allowed"] == 7 && frame["hot"]["requested"][1]["key"] == "cold");
    assert_eq!(frame["denied"], server.info_value("denied"));
    assert_eq!(frame["allowed"], server.info_value("allowed"));
    assert_eq!(frame["protocols"][1]["allowed"], 1);
    assert_eq!(frame["store"]["keys"], server.info_value("keys"));
    // This client is one more; earlier ones may still be closing.
    server.until_exactly("connected_clients", frame["clients"].as_u64().unwrap() + 1);
    let (requested, denied) = (&frame["hot"]["requested"], &frame["hot"]["denied"]);
    assert_eq!((&requested[0]["key"], &denied[0]["key"]), (&"hot".into(), &"hot".into()));
    assert_eq!((&denied[1], &requested[0]["over"]), (&Value::Null, &0.0.into()));
    let rates = [&requested[0], &requested[1]].map(|key| key["rate"].as_f64().unwrap());
    let share = rates[0] / rates[1];
    assert!((9.9..10.1).contains(&share), "{rates:?}");
}

#[test]
fn frames_mask_or_omit_keys_by_setting() {
    for mode in [DashboardMode::Masked, DashboardMode::NoKeys] {
        let server = server(|config| config.dashboard = mode);
        let mut viewer = Viewer::new(&server);
        viewer.frame();
        server.connect().call("SG.TAKE secret gcra:5/1h");
        let frame = viewer.until(|frame| frame["allowed"] == 1);
        assert!(!frame.to_string().contains("secret"));
        let mut client = Client::connect(&server);
        let mask = &client.post("/dashboard/key", r#"{"key":"secret"}"#).json()["mask"];
        match mode {
            DashboardMode::Masked => assert_eq!(&frame["hot"]["requested"][0]["key"], mask),
            _ => assert_eq!(frame["hot"]["requested"], Value::Array(Vec::new())),
        }
    }
}

#[test]
fn viewers_are_bounded_and_a_hanging_one_costs_nothing() {
    let server = server(|_| {});
    let mut first = Viewer::new(&server);
    // These never take anything.
    let mut others: Vec<_> = (0..63).map(|_| Viewer::new(&server)).collect();
    let mut client = Client::connect(&server);
    let full = client.get("/dashboard/events");
    assert_eq!((full.status, full.field("retry-after")), (503, "1"));
    assert_eq!(full.detail(), "too many dashboard viewers (limit 64)");
    assert_eq!(first.until(|frame| frame["viewers"] == 64)["viewers"], 64);
    assert_eq!(server.connect().call("PING"), simple("PONG"));
    let number = first.frame()["number"].as_u64().unwrap();
    assert_eq!(first.frame()["number"].as_u64(), Some(number + 1));
    // When one leaves, another may look.
    drop(others.pop());
    first.until(|frame| frame["viewers"] == 63);
    let mut last = Viewer::new(&server);
    assert!(last.frame()["number"].as_u64() >= Some(number));
}

#[test]
fn stop_ends_the_stream_of_frames() {
    let mut server = server(|_| {});
    let mut viewer = Viewer::new(&server);
    viewer.frame();
    server.begin_to_stop();
    let mut line = String::new();
    while viewer.0.read_line(&mut line).is_ok_and(|count| count > 0) {}
    assert!(viewer.0.get_mut().write_all(b"GET / HTTP/1.1\r\n\r\n").is_ok() || !line.is_empty());
}
