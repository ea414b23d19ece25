//! A store that becomes unavailable, as the first screen shows it.

use std::time::Duration;

use sluicegate_testing::{Engine, Server, eventually};

use super::browser::Browser;
use crate::{harness::any_port, store::on};

#[test]
fn page_store_outage_is_on_the_first_screen() {
    let mut store = Server::start(Engine::Redis70);
    let server = on(&store, |config, at| {
        config.http.address = Some(any_port());
        at.redis.deadline = Duration::from_millis(500);
    });
    server.connect().call("SG.TAKE a gcra:5/1h");
    let browser = Browser::start(1280, 900);
    browser.open(&format!("http://{}/", server.http.unwrap()));
    let state = "document.querySelector('#store-state').textContent";
    let is_bad = "document.querySelector('#store-tile').classList.contains('bad')";
    browser.until(&format!("{state} === 'up' && !{is_bad}"));
    let detail = "document.querySelector('#store-detail').textContent";
    let latency = format!("{detail}.startsWith('p50 ≤ ') && {detail}.includes('breaker closed')");
    let mut peer = server.connect();
    let mut number = 0;
    eventually("the latency of the store is shown", || {
        number += 1;
        peer.call(&format!("SG.TAKE {number} gcra:5/1h"));
        if browser.run(&latency) == true { Ok(()) } else { Err(browser.run(detail)) }
    });
    store.kill();
    browser.until(&format!("{state} === 'down' && {is_bad}"));
    let problem = browser.run("document.querySelector('#store-problem').textContent");
    let problem = problem.as_str().unwrap();
    assert!(problem.starts_with("The store is unavailable: "), "{problem}");
    assert!(problem.ends_with("Requests are denied (--on-error deny)."), "{problem}");
    let seen = "document.querySelector('#store-problem').getBoundingClientRect().bottom < 900";
    assert_eq!(browser.run(seen), true, "without scrolling");
    let colour = browser.run("getComputedStyle(document.querySelector('#store-state')).color");
    assert_eq!(colour, "rgb(207, 34, 46)");
    store.restart();
    browser.until(&format!("{state} === 'up' && document.querySelector('#store-problem').hidden"));
}
