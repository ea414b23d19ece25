//! A limit of requests in flight: Envoy reports the begin of a request, and its end by `apply_on_stream_done`.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use sluicegate_testing::eventually;

use super::{
    File, patient,
    proxy::{Client, Envoy, Upstream},
    serve,
};
use crate::server::Server;

const RULES: &str = "
rules:
  - name: in-flight
    match: {domain: shop}
    key: descriptor.user
    hold_id: descriptor.hold
    policy: concurrency:2/1h
";

const TAKES: &str = "                            rate_limits:
                              - actions:
                                  - request_headers: { header_name: x-plan, descriptor_key: plan }
                                  - request_headers: { header_name: x-user, descriptor_key: user }
";

/// Only rate limits of the filter have `hits_addend`: Envoy ignores it in those of a route.
const HOLDS: &str = "                          typed_per_filter_config:
                            envoy.filters.http.ratelimit:
                              \"@type\": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              rate_limits:
                                - actions:
                                    - request_headers: { header_name: x-user, descriptor_key: user }
                                    - request_headers: { header_name: x-hold, descriptor_key: hold }
                                - actions:
                                    - request_headers: { header_name: x-user, descriptor_key: user }
                                    - request_headers: { header_name: x-hold, descriptor_key: hold }
                                  hits_addend: { number: 1, is_negative_hits: true }
                                  apply_on_stream_done: true
";

/// Envoy names each request, whatever the client sends.
const NAMES: &str = "                http_filters:
                  - name: envoy.filters.http.header_mutation
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation
                      mutations:
                        request_mutations:
                          - append:
                              header: { key: x-hold, value: \"%STREAM_ID%\" }
                              append_action: OVERWRITE_IF_EXISTS_OR_ADD
";

fn with_holds(text: &str) -> String {
    let text = patient(text);
    assert!(text.contains(TAKES));
    text.replacen(TAKES, HOLDS, 1).replacen("                http_filters:\n", NAMES, 1)
}

/// An upstream that answers requests only while its gate is open.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
    requests: AtomicUsize,
}

impl Gate {
    fn start() -> (Arc<Self>, Upstream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let upstream = Upstream::at(listener.local_addr().unwrap().port());
        let gate = Arc::new(Self::default());
        let shared = Arc::clone(&gate);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let gate = Arc::clone(&shared);
                thread::spawn(move || gate.answer(stream));
            }
        });
        (gate, upstream)
    }

    fn answer(&self, mut stream: TcpStream) {
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        for _ in lines.map_while(Result::ok).filter(String::is_empty) {
            self.requests.fetch_add(1, Ordering::SeqCst);
            let closed = self.open.lock().unwrap();
            drop(self.changed.wait_while(closed, |open| !*open).unwrap());
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nwelcome\n";
            if stream.write_all(answer).is_err() {
                return;
            }
        }
    }

    fn set_open(&self, open: bool) {
        *self.open.lock().unwrap() = open;
        self.changed.notify_all();
    }

    fn wait_for_requests(&self, count: usize) {
        eventually("requests have arrived", || {
            let requests = self.requests.load(Ordering::SeqCst);
            if requests == count { Ok(()) } else { Err(requests.to_string()) }
        });
    }
}

fn get(envoy: &Envoy) -> u16 {
    Client::connect(&envoy.address).get("/", &[("x-user", "ada"), ("x-hold", "mine")]).code
}

/// Waits until `remaining` units are free.
fn wait_for_remaining(server: &Server, remaining: u32) {
    let address = server.address.strip_prefix("resp://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    eventually("units are free", || {
        stream.write_all(b"SG.PEEK rule:in-flight|ada concurrency:2/1h\r\n").unwrap();
        let reply: Vec<String> = lines.by_ref().take(8).map(Result::unwrap).collect();
        if reply[3] == format!(":{remaining}") { Ok(()) } else { Err(format!("{reply:?}")) }
    });
}

#[test]
fn envoy_requests_in_flight_are_held_until_their_streams_end() {
    let rules = File::new("in-flight", RULES);
    let (server, (gate, upstream)) = (serve(&rules), Gate::start());
    let envoy = Envoy::start("in-flight", &server.grpc, &upstream, with_holds);

    thread::scope(|scope| {
        let first = [(); 2].map(|()| scope.spawn(|| get(&envoy)));
        gate.wait_for_requests(2);
        // The streams of denied requests end as well, and give nothing back.
        for _ in 0..10 {
            assert_eq!(get(&envoy), 429);
        }
        wait_for_remaining(&server, 0);
        gate.set_open(true);
        assert_eq!(first.map(|it| it.join().unwrap()), [200, 200]);
    });
    wait_for_remaining(&server, 2);

    // A client that disconnects ends its stream.
    gate.set_open(false);
    let mut client = TcpStream::connect(&envoy.address).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: shop\r\nx-user: ada\r\n\r\n").unwrap();
    gate.wait_for_requests(3);
    wait_for_remaining(&server, 1);
    drop(client);
    wait_for_remaining(&server, 2);

    gate.set_open(true);
    for _ in 0..100 {
        assert_eq!(get(&envoy), 200);
        wait_for_remaining(&server, 2);
    }
    assert_eq!(envoy.counter("cluster.shop.ratelimit.error"), 0);
}
