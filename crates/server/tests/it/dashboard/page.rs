//! The page in a browser, as people see it.

use sluicegate_resp::Value;

use super::browser::Browser;
use crate::http::client::{Client, server};

#[test]
fn it_shows_what_happens() {
    let server = server(|_| {});
    let browser = Browser::start(1280, 900);
    browser.open(&format!("http://{}/", server.http.unwrap()));
    browser.until("document.querySelector('#status').dataset.state === 'live'");
    let so_far = "[...document.querySelectorAll('#process dt')]\
                  .find((it) => it.textContent === 'Decisions so far')?.nextSibling.textContent";
    browser.until(&format!("{so_far} === '0'"));

    // Numbers move when requests are sent, and agree with what is counted.
    let mut peer = server.connect();
    for _ in 0..30 {
        peer.say("SG.TAKE user:42 gcra:10/1h");
    }
    browser.until(&format!("{so_far} === '30'"));
    browser.until("document.querySelector('#denied').textContent > '0'");
    let metrics = String::from_utf8(Client::connect(&server).get("/metrics").body).unwrap();
    let line = r#"sluicegate_decisions_total{face="resp",outcome="denied",source="memory"} 20"#;
    assert!(metrics.contains(line), "{metrics}");
    browser.until("document.querySelector('#live-keys').textContent === '1'");

    // A key that is hot is found by a press on it.
    browser.until("document.querySelector('#refused button').textContent === 'user:42'");
    browser.run("document.querySelector('#asked button').click()");
    browser.until("document.querySelector('#look-told').textContent.startsWith('user:42 is free')");
    let level = "document.querySelector('#look-limits [role=meter]').ariaValueNow";
    assert_eq!(browser.until(level), "10");
    // And one that is typed, by the keyboard alone.
    browser.keys("#look-key", "\u{e009}a\u{e000}nobody\u{e007}");
    browser.until(
        "document.querySelector('#look-told').textContent === 'nobody is as if never used.'",
    );
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn the_playground_denies_when_it_should() {
    let server = server(|_| {});
    let browser = Browser::start(1280, 900);
    browser.open(&format!("http://{}/#playground", server.http.unwrap()));
    browser.until("document.querySelector('#play-vessels b')?.textContent === '0 of 10'");
    browser.keys("#play-policy", "\u{e009}a\u{e000}fixed-window:3/1h\u{e004}");
    browser.until("document.querySelector('#play-vessels b').textContent === '0 of 3'");
    for (pressed, expected) in [
        ("#play-one", "1 request: 1 allowed, 0 denied. 2 more would pass now."),
        ("#play-ten", "11 requests: 3 allowed, 8 denied. The next one passes in"),
    ] {
        browser.run(&format!("document.querySelector('{pressed}').click()"));
        browser.until(&format!(
            "document.querySelector('#play-told').textContent.startsWith('{expected}')"
        ));
    }
    browser.until("document.querySelector('#play-vessels b').textContent === '3 of 3'");
    // What is wrong is said, and what was there stays.
    browser.keys("#play-policy", "\u{e009}a\u{e000}fixed-window:3\u{e004}");
    browser.until("document.querySelector('#play-wrong').textContent.includes('fixed-window:3')");
    let complaints = browser.complaints();
    assert!(complaints.iter().all(|it| it.contains("422")), "{complaints:?}");
    let Value::Bulk(info) = server.connect().say("INFO stats") else { panic!("no text") };
    assert!(String::from_utf8(info).unwrap().contains("decisions:0\r\n"), "nothing is stored");
}

#[test]
fn it_fits_a_phone_and_names_all_that_can_be_used() {
    let server = server(|_| {});
    let browser = Browser::start(360, 780);
    browser.open(&format!("http://{}/", server.http.unwrap()));
    browser.until("document.querySelector('#status').dataset.state === 'live'");
    server.connect().say(&format!("SG.TAKE {} gcra:10/1h", "long".repeat(50)));
    browser.until("document.querySelector('#asked button').textContent.startsWith('long')");
    let wide = "document.documentElement.scrollWidth <= 360 ? 'fits' : document.documentElement.scrollWidth";
    assert_eq!(browser.until(wide), "fits");
    // What the browser's own tree of accessibility calls each thing that can be used.
    let tree = browser.tell("Accessibility.getFullAXTree", &serde_json::json!({}));
    let used = ["button", "textbox", "combobox", "slider", "link", "meter", "table", "image"];
    let mut named = 0;
    for node in tree["nodes"].as_array().unwrap() {
        let role = node["role"]["value"].as_str().unwrap_or_default();
        if node["ignored"] == false && used.contains(&role) {
            let name = node["name"]["value"].as_str().unwrap_or_default();
            assert!(!name.is_empty(), "{node}");
            named += 1;
        }
    }
    assert!(named >= 15, "{named}");
    let landmarks = ["banner", "main", "navigation", "contentinfo"];
    let roles: Vec<_> = tree["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|it| it["role"]["value"].as_str())
        .collect();
    for landmark in landmarks {
        assert!(roles.contains(&landmark), "{landmark}");
    }
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_token_is_asked_for_once() {
    let server = server(|config| config.http_token = Some("secret".to_owned()));
    let browser = Browser::start(1280, 900);
    browser.open(&format!("http://{}/", server.http.unwrap()));
    browser.until("document.querySelector('#token-dialog').open");
    browser.keys("#token", "wrong\u{e007}");
    browser.until("document.querySelector('#token-wrong').textContent !== ''");
    browser.keys("#token", "secret\u{e007}");
    browser.until("document.querySelector('#status').dataset.state === 'live'");
}
