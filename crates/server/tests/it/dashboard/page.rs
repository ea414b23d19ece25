//! The page in a browser, as people see it.

use sluicegate_resp::Value;

use super::{
    browser::Browser,
    rules::{gate, ruled},
};
use crate::{
    harness::TempDir,
    http::client::{Client, server},
};

#[test]
fn page_shows_decisions() {
    let server = server(|_| {});
    let browser = Browser::start(1280, 900);
    browser.open(&format!("http://{}/", server.http.unwrap()));
    browser.until("document.querySelector('#status').dataset.state === 'live'");
    let so_far = "[...document.querySelectorAll('#process dt')]\
                  .find((it) => it.textContent === 'Decisions since start')?.nextSibling.textContent";
    browser.until(&format!("{so_far} === '0'"));

    // Numbers change when requests are sent, and agree with the counters.
    let mut peer = server.connect();
    for _ in 0..30 {
        peer.call("SG.TAKE user:42 gcra:10/1h");
    }
    browser.until(&format!("{so_far} === '30'"));
    browser.until("document.querySelector('#denied').textContent > '0'");
    let metrics = String::from_utf8(Client::connect(&server).get("/metrics").body).unwrap();
    let line = r#"sluicegate_decisions_total{protocol="resp",outcome="denied",source="memory"} 20"#;
    assert!(metrics.contains(line), "{metrics}");
    browser.until("document.querySelector('#store-state').textContent === '1'");

    // All sampled keys are in a list.
    browser.run("document.querySelector('#list').open = true");
    browser.until("document.querySelector('#listed-keys button')?.textContent === 'user:42'");

    // A key that is hot is found by a press on it.
    browser.until("document.querySelector('#denied-keys button').textContent === 'user:42'");
    browser.run("document.querySelector('#requested-keys button').click()");
    let actual = "document.querySelector('#look-result').textContent";
    let sentence = "document.querySelector('#look-announcement').textContent";
    let denied = "user:42 is denied by gcra:10/1h: can try again in ";
    browser.until(&format!(
        "{actual}.startsWith('{denied}') && {actual}.includes('fully recovered in')"
    ));
    // The sentence counts down with the card; the announcement for a screen reader does not.
    let first = browser.run(actual);
    browser.until(&format!("{actual} !== {first} && {actual}.startsWith('{denied}')"));
    assert_eq!(browser.run(sentence), first);
    browser.until("document.querySelector('#denied-keys .by').textContent === 'gcra:10/1h'");
    assert_eq!(browser.run("document.querySelector('#look-actions').hidden"), true);
    let level = "document.querySelector('#look-limits [role=meter]').ariaValueNow";
    assert_eq!(browser.until(level), "10");
    // And one that is typed, by the keyboard alone.
    browser.write("#look-key", "nobody");
    browser.press("Enter");
    browser
        .until("document.querySelector('#look-result').textContent.startsWith('nobody is unused')");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn page_opened_after_a_denial_says_since_when_keys_are_recorded() {
    let server = server(|_| {});
    let mut peer = server.connect();
    for _ in 0..3 {
        peer.call("SG.TAKE early gcra:1/1h");
    }
    let browser = Browser::start(1280, 900);
    browser.open(&format!("http://{}/", server.http.unwrap()));
    let note = "document.querySelector('#keys-note').textContent";
    browser.until(&format!("/^Keys are recorded since \\d\\d:\\d\\d:\\d\\d, /.test({note})"));
    let denied = "document.querySelector('#denied-keys .tag').textContent";
    let actual = browser.run(denied);
    let actual = actual.as_str().unwrap();
    assert!(actual.starts_with("No denials since ") && actual.ends_with('.'), "{actual}");
    // The next request of the key is recorded.
    peer.call("SG.TAKE early gcra:1/1h");
    browser.until("document.querySelector('#denied-keys button').textContent === 'early'");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn page_key_rate_within_its_error_is_not_listed() {
    let server = server(|_| {});
    let browser = Browser::start(1280, 900);
    browser.open(&format!("http://{}/", server.http.unwrap()));
    browser.until("document.querySelector('#status').dataset.state === 'live'");
    let mut peer = server.connect();
    peer.call("SG.TAKE often gcra:10/1h");
    browser.until("document.querySelector('#requested-keys button').textContent === 'often'");
    // More rare keys than the sampler counts: each takes over the count of another one.
    let rare: String = (0..2000).map(|key| format!("SG.TAKE rare:{key} gcra:1/1h\r\n")).collect();
    let often = "SG.TAKE often gcra:9/1h\r\n".repeat(500);
    peer.send(rare + &often);
    for _ in 0..2500 {
        peer.read_reply();
    }
    let keys = "[...document.querySelectorAll('#requested-keys button:not([hidden])')]\
                .map((it) => it.textContent).join()";
    browser.until(&format!(
        "Number(document.querySelector('#requested-keys td.number').textContent) > 10 && {keys} === 'often'"
    ));
}

#[test]
fn page_without_its_server_shows_no_rates() {
    let server = server(|_| {});
    let browser = Browser::start(1280, 900);
    browser.open(&format!("http://{}/", server.http.unwrap()));
    let tiles = "[...document.querySelectorAll('.tile b')].map((it) => it.textContent).join()";
    browser.until(&format!("!{tiles}.slice(0, 3).includes('–')"));
    drop(server);
    browser.until(&format!("{tiles} === '–,–,–,–,–'"));
}

#[test]
fn page_look_up_shows_open_holds_without_their_ids() {
    let server = server(|_| {});
    let mut peer = server.connect();
    for id in ["request-1", "request-2"] {
        peer.call(&format!("SG.HOLD tenant:7 concurrency:9/1h {id} COST 2"));
    }
    let browser = Browser::start(1280, 900);
    browser.open(&format!("http://{}/", server.http.unwrap()));
    browser.until("document.querySelector('#status').dataset.state === 'live'");
    browser.write("#look-key", "tenant:7");
    browser.press("Enter");
    let actual = browser.until(
        "document.querySelector('#look-result').textContent.includes('4 units held by 2 holds') && \
         document.querySelector('#look-result').textContent",
    );
    let actual = actual.as_str().unwrap();
    assert!(actual.contains("the first of them (#") && !actual.contains("request-1"), "{actual}");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn page_playground_denies_above_the_limit() {
    let server = server(|_| {});
    let browser = Browser::start(1280, 900);
    browser.open(&format!("http://{}/#playground", server.http.unwrap()));
    browser
        .until("document.querySelector('#play-vessels b')?.textContent === '10 of 10 tokens left'");
    browser.write("#play-policy", "fixed-window:3/1h");
    browser.press("Tab");
    browser.until("document.querySelector('#play-vessels b').textContent === '0 of 3 used'");
    for (pressed, expected) in [
        ("#play-one", "1 request: 1 allowed, 0 denied. 2 more allowed now."),
        ("#play-ten", "11 requests: 3 allowed, 8 denied. Next request allowed in"),
    ] {
        browser.run(&format!("document.querySelector('{pressed}').click()"));
        browser.until(&format!(
            "document.querySelector('#play-status').textContent.startsWith('{expected}')"
        ));
    }
    browser.until("document.querySelector('#play-vessels b').textContent === '3 of 3 used'");
    // Another policy begins with counts of its own.
    browser.write("#play-policy", "fixed-window:4/1h");
    browser.press("Tab");
    let status = "document.querySelector('#play-status').textContent";
    browser.until(&format!("{status} === '1 more allowed now.'"));
    browser.write("#play-policy", "fixed-window:3/1h");
    browser.press("Tab");
    browser.until("document.querySelector('#play-vessels b').textContent === '3 of 3 used'");
    // An error is shown, and the previous result stays.
    browser.write("#play-policy", "fixed-window:3");
    browser.press("Tab");
    browser.until("document.querySelector('#play-wrong').textContent !== ''");
    let wrong = browser.run("document.querySelector('#play-wrong').textContent");
    assert!(!wrong.as_str().unwrap().contains("SGPOLICY"), "{wrong}");
    let complaints = browser.complaints();
    assert!(complaints.iter().all(|it| it.contains("422")), "{complaints:?}");
    let Value::Bulk(info) = server.connect().call("INFO stats") else { panic!("no text") };
    assert!(String::from_utf8(info).unwrap().contains("decisions:0\r\n"), "nothing is stored");
}

#[test]
fn page_fits_a_phone_and_labels_all_controls() {
    let folder = TempDir::new();
    let long = "name".repeat(16);
    let rule = format!("name: {long}, match: {{path: /a}}, key: client, policy: 'gcra:1/1h'");
    let server = ruled(&folder, &format!("rules: [{{{rule}}}]"));
    gate(&mut Client::connect(&server), "/a", 3);
    let browser = Browser::start(360, 780);
    browser.open(&format!("http://{}/", server.http.unwrap()));
    browser.until("document.querySelector('#status').dataset.state === 'live'");
    server.connect().call(&format!("SG.TAKE {} gcra:10/1h", "long".repeat(50)));
    browser
        .until("document.querySelector('#requested-keys button').textContent.startsWith('long')");
    browser.until("document.querySelector('#decided tbody')?.textContent.startsWith('name')");
    browser.run("document.querySelector('#list').open = true");
    browser.until("document.querySelector('#listed-keys button')?.textContent");
    browser.run("document.querySelector('#active-rules').open = true");
    browser.until("document.querySelector('#active-rules-list h4')?.offsetParent !== null");
    let wide = "document.documentElement.scrollWidth <= 360 ? 'fits' : document.documentElement.scrollWidth";
    assert_eq!(browser.until(wide), "fits");
    // The names of all controls in the browser's own tree of accessibility.
    let tree = browser.command("Accessibility.getFullAXTree", &serde_json::json!({}));
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

/// All visible controls, by their names.
const USABLE: &str = "[...document.querySelectorAll('a[href], button, input, summary')]\
                      .filter((it) => it.offsetParent && it.checkVisibility()).map((it) => it.id || it.textContent)";

#[test]
fn page_controls_work_by_keyboard() {
    let server = server(|_| {});
    let browser = Browser::start(1280, 900);
    browser.open(&format!("http://{}/", server.http.unwrap()));
    browser.until("document.querySelector('#status').dataset.state === 'live'");
    let usable = browser.run(USABLE);
    let usable = usable.as_array().unwrap();
    assert!(usable.len() >= 12, "{usable:?}");
    let mut reached = Vec::new();
    for _ in 0..usable.len() {
        browser.press("Tab");
        let (id, outline) = (
            browser.run("document.activeElement.id || document.activeElement.textContent"),
            browser.run("getComputedStyle(document.activeElement).outlineStyle"),
        );
        assert_eq!(outline, "solid", "{id}");
        reached.push(id);
    }
    assert_eq!(&reached, usable, "each in the order of the page");
    browser.run("document.querySelector('#play-ten').focus()");
    browser.press(" ");
    browser.until("document.querySelector('#play-status').textContent.startsWith('10 requests')");
    assert_eq!(browser.complaints(), [""; 0]);
}

/// The least contrast of any visible text with its background, and that text.
const CONTRAST: &str = r#"(() => {
    const parts = (colour) => colour.match(/[\d.]+/g).map(Number);
    const light = ([r, g, b]) => {
        const [x, y, z] = [r, g, b].map((it) => it / 255)
            .map((it) => (it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4));
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const behind = (element) => {
        if (!element) return [255, 255, 255];
        const [r, g, b, a = 1] = parts(getComputedStyle(element).backgroundColor);
        if (a === 1) return [r, g, b];
        return behind(element.parentElement).map((it, at) => it * (1 - a) + [r, g, b][at] * a);
    };
    const texts = [...document.querySelectorAll('body *')].filter((it) => it.offsetParent
        && [...it.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()));
    const all = texts.map((it) => {
        const [one, other] = [light(parts(getComputedStyle(it).color)), light(behind(it))];
        return [(Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05), it.textContent];
    });
    return all.sort(([one], [other]) => one - other)[0];
})()"#;

#[test]
fn page_text_has_contrast_in_light_and_dark() {
    let server = server(|_| {});
    let browser = Browser::start(1280, 900);
    browser.open(&format!("http://{}/", server.http.unwrap()));
    browser.until("document.querySelector('#status').dataset.state === 'live'");
    server.connect().call("SG.TAKE a gcra:10/1h");
    browser.until("document.querySelector('#requested-keys button').textContent === 'a'");
    for scheme in ["light", "dark"] {
        browser.scheme(scheme);
        let least = browser.run(CONTRAST);
        println!("figure: in {scheme}, the least contrast of a text is {least}");
        assert!(least[0].as_f64().unwrap() >= 4.5, "{least}");
    }
}

#[test]
fn page_without_a_token_prompts_once() {
    let server = server(|config| config.http.token = Some("secret".to_owned()));
    let browser = Browser::start(1280, 900);
    browser.open(&format!("http://{}/", server.http.unwrap()));
    browser.until("document.querySelector('#token-dialog').open");
    browser.write("#token", "wrong");
    browser.press("Enter");
    browser.until("document.querySelector('#token-wrong').textContent !== ''");
    browser.write("#token", "secret");
    browser.press("Enter");
    browser.until("document.querySelector('#status').dataset.state === 'live'");
}
