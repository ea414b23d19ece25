//! Responses of the dashboard, without a browser.

use std::{io::Read, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use flate2::read::GzDecoder;
use serde_json::json;
use sluicegate_core::{Operation, Timestamp, apply};
use sluicegate_server::DashboardMode;

use crate::{
    harness::root,
    http::client::{Client, server},
};

const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; object-src 'none'";

#[test]
fn dashboard_files_are_compressed_tagged_and_strict() {
    let server = server(|_| {});
    let mut client = Client::connect(&server);
    client.send_request("GET", "/", "Accept-Encoding: gzip\r\n");
    let packed = client.read_reply();
    assert_eq!((packed.status, packed.field("content-encoding")), (200, "gzip"));
    assert_eq!(packed.field("content-security-policy"), POLICY);
    assert_eq!(packed.field("x-content-type-options"), "nosniff");
    let mut page = String::new();
    GzDecoder::new(&*packed.body).read_to_string(&mut page).unwrap();
    let plain = client.get("/");
    assert_eq!((plain.field("content-encoding"), &*plain.body), ("", page.as_bytes()));
    let tags = [packed.field("etag"), plain.field("etag")].map(str::to_owned);
    assert!(tags[0] != tags[1] && !tags[0].starts_with("W/"), "{tags:?}");
    client.send_request(
        "GET",
        "/",
        &format!("Accept-Encoding: gzip\r\nIf-None-Match: {}\r\n", tags[0]),
    );
    let again = client.read_reply();
    assert_eq!((again.status, again.body.len()), (304, 0));

    // The page loads nothing from elsewhere, and has no inline script or style.
    for wrong in ["http:", "https:", "<style", "style=", "onclick", "javascript:"] {
        assert!(!page.contains(wrong), "{wrong}");
    }
    let parts = page.split('"').filter(|part| part.starts_with("/dashboard/"));
    let modules = ["request", "charts", "keys", "list", "live", "play", "rules", "words"]
        .map(|it| format!("/dashboard/{it}.js"));
    let mut wire = packed.body.len();
    for path in parts.chain(modules.iter().map(|it| &**it)) {
        client.send_request("GET", path, "Accept-Encoding: gzip\r\n");
        let part = client.read_reply();
        assert_eq!(part.status, 200, "{path}");
        wire += part.body.len();
    }
    println!("figure: the page and what it loads are {wire} bytes on the wire");
    assert!(wire < 100_000);
    assert_eq!(client.get("/dashboard/none.js").status, 404);
    assert_eq!(client.post("/", "{}").status, 405);
}

#[test]
fn dashboard_off_has_no_routes() {
    let server = server(|config| config.dashboard = DashboardMode::Off);
    let mut client = Client::connect(&server);
    for path in ["/", "/dashboard/page.css", "/dashboard/events"] {
        assert_eq!(client.get(path).status, 404, "{path}");
    }
}

#[test]
fn dashboard_key_lookup_shows_usage() {
    let server = server(|_| {});
    let mut client = Client::connect(&server);
    assert_eq!(client.post("/dashboard/key", r#"{"key":"nobody"}"#).json()["found"], false);
    server.connect().call("SG.TAKE user:7 gcra:30/1h,fixed-window:5/1d COST 3");
    let actual = client.post("/dashboard/key", r#"{"key":"user:7"}"#).json();
    assert_eq!((&actual["found"], &actual["mask"]), (&json!(true), &json!(null)));
    assert_eq!(actual["policy"], "gcra:30/1h,fixed-window:5/1d");
    let used = actual["limits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|limit| (limit["used"].as_u64().unwrap(), limit["capacity"].as_u64().unwrap()));
    assert_eq!(used.collect::<Vec<_>>(), [(3, 30), (3, 5)]);
    let wrong = client.post("/dashboard/key", r#"{"key":"a","cost":1}"#);
    assert_eq!(wrong.status, 422, "{}", wrong.detail());
}

#[test]
fn dashboard_key_lookup_shows_holds_with_masked_ids() {
    let server = server(|_| {});
    let mut client = Client::connect(&server);
    let mut resp = server.connect();
    for (id, cost, ttl) in [("secret-a", 2, 60_000_000), ("secret-b", 3, 1000)] {
        resp.integers(&format!("SG.HOLD k concurrency:9/1h {id} COST {cost} TTL {ttl}"));
    }
    let actual = sluicegate_testing::eventually("the second hold expires", || {
        let actual = client.post("/dashboard/key", r#"{"key":"k"}"#).json();
        if actual["holds"]["count"] == 1 { Ok(actual) } else { Err(actual) }
    });
    let (holds, limit) = (&actual["holds"], &actual["limits"][0]);
    assert_eq!(
        (&holds["units"], &limit["used"], &limit["remaining"]),
        (&json!(2), &json!(2), &json!(7))
    );
    let expires = holds["first_expires_after_us"].as_u64().unwrap();
    assert!((1..=60_000_000).contains(&expires), "{expires}");
    let id = holds["first"].as_str().unwrap();
    assert!(
        id.len() == 11 && id.starts_with('#') && !actual.to_string().contains("secret"),
        "{actual}"
    );
    server.connect().call("SG.TAKE other gcra:30/1h");
    let actual = client.post("/dashboard/key", r#"{"key":"other"}"#).json();
    assert_eq!((&actual["found"], &actual["holds"]), (&json!(true), &json!(null)));
}

#[test]
fn playground_decides_without_state() {
    let server = server(|_| {});
    let mut client = Client::connect(&server);
    let now = 1_800_000_000_000_000_u64;
    let mut query = json!({
        "policy": "fixed-window:2/1s", "now_us": now, "takes": vec![json!({"at_us": now, "cost": 1}); 3],
    });
    let first = client.post("/dashboard/play", query.to_string()).json();
    let allowed = first["decisions"].as_array().unwrap().iter().map(|it| &it["allowed"]);
    assert_eq!(allowed.collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(first["next"]["retry_after_us"], 1_000_000);
    query["state"] = first["state"].clone();
    query["now_us"] = json!(now + 1_000_000);
    query["takes"] = json!([]);
    let second = client.post("/dashboard/play", query.to_string()).json();
    assert_eq!(
        (&second["next"]["allowed"], &second["limits"][0]["used"]),
        (&json!(true), &json!(0))
    );
    assert_eq!(server.info_value("keys"), 0);
    assert_eq!(server.info_value("decisions"), 0);
    query["policy"] = json!("fixed-window:2");
    let wrong = client.post("/dashboard/play", query.to_string());
    assert_eq!(wrong.status, 422, "{}", wrong.detail());
    // No take of the playground opens a hold.
    let (policy, mut entry) = ("gcra:5/1h".parse().unwrap(), None);
    let hold = Operation::Hold { id: b"a", cost: 1, ttl: Some(Duration::from_secs(60)) };
    assert!(apply(&policy, &mut entry, Timestamp::from_micros(now).unwrap(), hold).is_ok());
    query["policy"] = json!("gcra:5/1h");
    query["state"] = json!(STANDARD.encode(entry.unwrap().encode()));
    let wrong = client.post("/dashboard/play", query.to_string());
    assert_eq!(wrong.status, 422, "{}", wrong.detail());
    assert_eq!(wrong.detail(), "invalid `state`: expected the state of an earlier answer");
}

#[test]
fn dashboard_data_needs_the_token() {
    let server = server(|config| config.http.token = Some("secret".to_owned()));
    let mut client = Client::connect(&server);
    assert_eq!(client.get("/").status, 200, "files without secrets need no token");
    assert_eq!(client.get("/dashboard/events").status, 401);
    assert_eq!(client.post("/dashboard/key", r#"{"key":"a"}"#).status, 401);
    assert_eq!(client.post("/dashboard/play", "{}").status, 401);
    client.send_request("GET", "/dashboard/events", "Authorization: Bearer secret\r\n");
    let received = client.read_reply();
    assert_eq!((received.status, received.field("content-type")), (200, "text/event-stream"));
}

/// The colours of a style sheet: the values of `names`, in light and in dark.
fn colours(style: &str, names: &[&str]) -> Vec<String> {
    let value = |name: &&str| {
        let name = format!("--{name}:");
        let parts = style.split(&name).skip(1);
        parts.map(|part| part.trim_start().chars().take(7).collect()).collect::<Vec<String>>()
    };
    names.iter().flat_map(value).collect()
}

#[test]
fn dashboard_colours_match_the_figures() {
    let read = |path| std::fs::read_to_string(root().join(path)).unwrap();
    let (page, plot) = (read("crates/server/assets/page.css"), read("crates/plot/src/svg.rs"));
    let page = colours(&page, &["allowed", "denied", "bad", "p50", "p99", "ink", "soft", "line"]);
    let plot =
        colours(&plot, &["allowed", "denied", "over", "sent", "delayed", "ink", "quiet", "grid"]);
    assert_eq!(page, plot);
    assert_eq!(page.len(), 16, "light and dark");
}
