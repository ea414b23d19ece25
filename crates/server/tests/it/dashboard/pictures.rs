//! Pictures of the page, for the README: `cargo xtask screenshots` keeps them.

use std::{
    env, fs,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use sluicegate_testing::SetOnDrop;

use super::{browser::Browser, rules::ruled};
use crate::{
    harness::{Random, Running, TempDir, now, size},
    http::client::Client,
};

const RULES: &str = "
rules:
  - {name: login, match: {path: /login}, key: client, policy: 'sliding-log:12/1m'}
  - {name: search, match: {path: /search}, key: client, policy: 'gcra:300/1m:burst=20'}
  - {name: export, match: {path: /export}, key: client, policy: 'fixed-window:30/1m', shadow: true}
";

/// Traffic that looks like that of people: a few keys are frequent, others rare, and the rate goes up and down. The keys
/// are fewer than a sampler counts, so that the rates in the picture are exact.
fn traffic(server: &Running, until: &AtomicBool) {
    let mut peer = server.connect();
    let mut client = Client::connect(server);
    let mut random = Random(7);
    let start = now();
    let mut turn = 0_u32;
    while !until.load(Ordering::Relaxed) {
        turn += 1;
        // The number in each twentieth of a second.
        let wave = (start.elapsed().as_secs_f64() / 9.0).sin() * 0.35 + 1.0;
        let burst = if (turn / 20) % 23 > 18 { 2.4 } else { 1.0 };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some hundred")]
        let count = (wave * burst * 90.0) as u64 + random.below(30);
        let keys = (0..count).map(|_| {
            let part = random.below(1000);
            match random.below(10) {
                0..=4 => format!("user:{}", 1000 + part * part * part / 25_000_000),
                5..=7 => format!("api-key:{:04x}", part * part / 25_000 * 37 + 4096),
                _ => format!("ip:203.0.113.{}", part % 20),
            }
        });
        // One by one, as many clients send them.
        for key in keys {
            peer.send(format!("SG.TAKE {key} gcra:1200/1m:burst=40\r\n"));
            peer.read_reply();
        }
        // And a proxy whose requests the rules decide.
        let path = ["/login", "/search", "/search", "/export"][(turn % 4) as usize];
        let address = format!("X-Forwarded-For: 198.51.100.{}", random.below(9));
        client.send_request(
            "GET",
            "/v1/gate",
            &format!("X-Forwarded-Uri: {path}\r\n{address}\r\n"),
        );
        client.read_reply();
        while start.elapsed() < Duration::from_millis(50) * turn {
            thread::park_timeout(Duration::from_millis(5));
        }
    }
}

#[test]
fn pictures_of_the_page_under_traffic_are_written() {
    let seconds = size("SLUICEGATE_PICTURE_SECONDS", 2);
    // In an ordinary run it is enough that the pictures exist.
    let (keys, plays) = if seconds > 2 { (9, 60) } else { (1, 3) };
    let folder = TempDir::new();
    let server = ruled(&folder, RULES);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| traffic(&server, &over));
        let done = SetOnDrop(&over);
        let browser = Browser::start(1280, 1010);
        browser.command("Emulation.setScrollbarsHidden", &serde_json::json!({"hidden": true}));
        browser.open(&format!("http://{}/", server.http.unwrap()));
        let points = format!(
            "document.querySelectorAll('#requested-keys button:not([hidden])').length > {keys} && \
             performance.now() > {seconds} * 1000"
        );
        browser.until_within(&points, Duration::from_secs(60 + seconds as u64));
        let mut pictures = Vec::new();
        for scheme in ["light", "dark"] {
            browser.scheme(scheme);
            browser.run("scrollTo({top: 0, behavior: 'instant'})");
            browser.settle();
            pictures.push((format!("dashboard-{scheme}.png"), browser.picture()));
        }
        browser.run("document.querySelector('#play-run').click()");
        let played = "Number(document.querySelector('#play-status').textContent.split(' ')[0])";
        browser.until(&format!("{played} > {plays}"));
        if seconds > 2 {
            // Paused, the bucket fills again. The page itself waits until it is half full.
            browser.run("document.querySelector('#play-run').click()");
            browser.run(
                "new Promise((done) => {
                    const bucket = document.querySelector('#play-vessels b');
                    const look = () => /^[4-7]/.test(bucket.textContent)
                        ? done(1) : requestAnimationFrame(look);
                    look();
                })",
            );
        }
        for scheme in ["light", "dark"] {
            browser.scheme(scheme);
            browser.run("document.querySelector('#server').scrollIntoView({behavior: 'instant'})");
            browser.settle();
            pictures.push((format!("playground-{scheme}.png"), browser.picture()));
        }
        assert_eq!(browser.complaints(), [""; 0]);
        drop(done);
        for (name, picture) in &pictures {
            assert!(picture.starts_with(b"\x89PNG"), "{name}");
            println!("figure: {name} has {} bytes", picture.len());
            if let Some(folder) = env::var_os("SLUICEGATE_PICTURES") {
                fs::write(PathBuf::from(folder).join(name), picture).unwrap();
            }
        }
        assert_ne!(pictures[0].1, pictures[1].1, "light is not dark");
    });
}
