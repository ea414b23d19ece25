//! The history that the server keeps for the charts.

use serde_json::Value;
use sluicegate_server::DashboardMode;
use sluicegate_testing::eventually;

use super::browser::Browser;
use crate::http::client::{Client, server};

/// The samples, once there are enough.
fn samples(client: &mut Client, count: usize) -> Vec<Value> {
    eventually("the server has sampled its counters", || {
        let history = client.get("/dashboard/history").json();
        let samples = history["samples"].as_array().unwrap().clone();
        if samples.len() >= count { Ok(samples) } else { Err(history) }
    })
}

#[test]
fn history_without_viewers_is_recorded() {
    let server = server(|_| {});
    let mut client = Client::connect(&server);
    let mut peer = server.connect();
    let before = samples(&mut client, 1).len();
    for _ in 0..20 {
        peer.call("SG.TAKE a gcra:5/1h");
    }
    let samples = samples(&mut client, before + 2);
    let last = samples.last().unwrap();
    assert_eq!((&last[1], &last[2]), (&5.into(), &15.into()));
    assert!(samples.iter().any(|it| it[3].is_u64() && it[4].as_u64() >= it[3].as_u64()));
    let times: Vec<_> = samples.iter().map(|it| it[0].as_u64().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
}

#[test]
fn history_with_dashboard_off_is_absent() {
    let server = server(|config| config.dashboard = DashboardMode::Off);
    assert_eq!(Client::connect(&server).get("/dashboard/history").status, 404);
}

/// The number of points of the charts, and the seconds that they span, once the history has arrived.
const EXTENT: &str = "document.querySelector('#now').dataset.filled === 'true' && \
                      import('/dashboard/charts.js').then((it) => it.extent())";

#[test]
fn page_chart_is_full_after_opening_and_reload() {
    let server = server(|_| {});
    let mut client = Client::connect(&server);
    server.connect().call("SG.TAKE a gcra:5/1h");
    let kept = samples(&mut client, 6).len();
    let browser = Browser::start(1280, 900);
    for turn in ["opened", "reloaded"] {
        browser.open(&format!("http://{}/", server.http.unwrap()));
        let extent = browser.until(EXTENT);
        let (points, span) = (extent[0].as_u64().unwrap(), extent[1].as_f64().unwrap());
        println!("figure: {turn}, the chart has {points} points over {span:.1} s");
        // Two points make the first rate.
        assert!(points + 1 >= kept as u64, "{turn}: {points} of {kept}");
    }
    assert_eq!(browser.complaints(), [""; 0]);
}
