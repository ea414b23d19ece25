//! Pages of other sites, in a browser on the server's machine.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    thread,
};

use sluicegate_resp::Value;

use super::browser::Browser;
use crate::{
    harness::{Running, TempDir},
    http::client::{Client, server},
};

/// All names resolve to this machine, as that of an attacker's page does.
const REBOUND: &str = "MAP * 127.0.0.1";

/// Another site: an empty page at every path.
fn site() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // It ends with the process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                let page = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\
                            Content-Length: 20\r\n\r\n<body>a page</body>\n";
                let _ = stream.write_all(page.as_bytes());
            });
        }
    });
    address
}

/// The requests that a page tries in sequence, and their results.
const TRIES: &str = r#"(async () => {
    const read = [];
    const text = (it) => new TextEncoder().encode(it);
    const attempt = async (name, promise) => {
        const late = new Promise((done) => setTimeout(done, 3000, null));
        const actual = await Promise.race([promise, late]).catch(() => null);
        if (actual) read.push(`${name}: ${actual}`);
    };
    const textOf = async (response) => (response.ok ? await response.text() : null);
    const bodies = {
        "/v1/reset": '{"key":"victim"}',
        "/v1/charge": '{"key":"victim","policy":"gcra:9/1h","cost":5}',
        "/v1/take": '{"key":"victim","policy":"gcra:9/1h"}',
        "/v1/take_many": '{"requests":[{"key":"victim","policy":"gcra:9/1h"}]}',
        "/admin/reload": "",
        "/dashboard/key": '{"key":"victim"}',
    };
    for (const [path, body] of Object.entries(bodies)) {
        for (const mode of ["no-cors", "cors"]) {
            const post = (body, headers) => fetch(HTTP + path, {method: "POST", mode, body, headers}).then(textOf);
            await attempt(`bytes ${path}`, post(text(body)));
            await attempt(`text ${path}`, post(body));
            await attempt(`json ${path}`, post(body, {"content-type": "application/json"}));
        }
        navigator.sendBeacon(HTTP + path, text(body));
        const form = document.createElement("form");
        const frame = document.createElement("iframe");
        frame.name = `to ${path}`;
        [form.method, form.action, form.enctype, form.target] = ["post", HTTP + path, "text/plain", frame.name];
        const field = document.createElement("input");
        [field.name, field.value] = [body.slice(0, -1) + ',"x":"', '"}'];
        form.append(field);
        document.body.append(form, frame);
        const loaded = new Promise((done) => { frame.onload = () => done(null); });
        form.submit();
        await attempt(`form ${path}`, loaded);
    }
    for (const path of ["/", "/metrics", "/dashboard/rules", "/dashboard/events", "/v1/gate", "/openapi.json"]) {
        await attempt(`fetch ${path}`, fetch(HTTP + path).then(textOf));
        await attempt(`gate ${path}`, fetch(HTTP + path, {headers: {"x-forwarded-uri": "/login"}}).then(textOf));
        await attempt(`no-cors ${path}`, fetch(HTTP + path, {mode: "no-cors"})
            .then((it) => (it.type === "opaque" ? it.text() : textOf(it))));
        for (const kind of ["img", "script"]) {
            await attempt(`${kind} ${path}`, new Promise((done, failed) => {
                const it = document.createElement(kind);
                [it.onload, it.onerror] = [() => done("loaded"), failed];
                it.src = HTTP + path;
                document.body.append(it);
            }));
        }
        const frame = document.createElement("iframe");
        const loaded = new Promise((done) => { frame.onload = () => done(null); });
        frame.src = HTTP + path;
        document.body.append(frame);
        await attempt(`frame ${path}`, loaded);
        try {
            if (frame.contentDocument?.body.innerText.includes("victim")) read.push(`frame ${path}`);
        } catch { /* of another origin */ }
    }
    await attempt("events", new Promise((done, failed) => {
        const events = new EventSource(HTTP + "/dashboard/events");
        [events.onmessage, events.onerror] = [(it) => done(it.data), failed];
    }));
    await attempt("socket", new Promise((done, failed) => {
        const socket = new WebSocket(HTTP.replace("http", "ws") + "/dashboard/events");
        [socket.onopen, socket.onerror] = [() => done("open"), failed];
    }));
    for (const body of ["SG.RESET victim\r\n", "SG.CHARGE victim gcra:9/1h 5\r\n"]) {
        await attempt("resp", fetch(RESP, {method: "POST", mode: "no-cors", body}).then(() => null));
    }
    return read;
})()"#;

/// The data that a page at `page` can read from `server`, which it calls `name`, by all means of a browser.
fn read(browser: &Browser, page: &str, name: &str, server: &Running) -> Vec<String> {
    browser.open(page);
    let (http, resp) = (server.http.unwrap().port(), server.address.port());
    let tries = TRIES
        .replace("HTTP", &format!("\"http://{name}:{http}\""))
        .replace("RESP", &format!("\"http://{name}:{resp}/\""));
    let read = browser.run(&tries);
    let read = read.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned());
    read.collect()
}

#[test]
fn browser_pages_of_other_sites_are_rejected() {
    let folder = TempDir::new();
    let rules = folder.file("rules.yaml");
    let text = "rules: [{name: login, match: {path: /login}, key: path, policy: 'gcra:9/1h'}]\n";
    std::fs::write(&rules, text).unwrap();
    let server = server(|config| config.rules = vec![rules]);
    let mut client = Client::connect(&server);
    for _ in 0..3 {
        let take = r#"{"key":"victim","policy":"gcra:9/1h"}"#;
        assert_eq!(client.post("/v1/take", take).status, 200);
    }
    let browser = Browser::with_names(800, 600, REBOUND);
    let site = site();
    // Of another origin, by the server's address and by a name of this machine.
    for name in ["127.0.0.1", "localhost"] {
        let page = format!("http://evil.example:{}/", site.port());
        assert_eq!(read(&browser, &page, name, &server), Vec::<String>::new(), "{name}");
    }
    // A page that its browser takes for the server's own origin: its name resolves to this address.
    let page = format!("http://evil.example:{}/healthz", server.http.unwrap().port());
    let actual = read(&browser, &page, "evil.example", &server);
    assert_eq!(actual, Vec::<String>::new(), "by a name that points here");

    let Value::Array(peeked) = server.connect().call("SG.PEEK victim gcra:9/1h") else { panic!() };
    assert_eq!(peeked[2], Value::Integer(6), "the victim is as it was: {peeked:?}");
    client.send_request("GET", "/v1/gate", "X-Forwarded-Uri: /login\r\n");
    assert_eq!(
        client.read_reply().field("ratelimit"),
        "\"login\";r=8;t=400",
        "nothing was charged"
    );
    println!(
        "figure: a page of another origin, and one by a name that points here: nothing read or changed"
    );
}
