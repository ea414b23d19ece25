//! An operator resets, blocks and unblocks a key on the page.

use super::browser::Browser;
use crate::http::client::server;

#[test]
fn page_operator_blocks_unblocks_and_resets_a_key() {
    let server = server(|config| config.http.token = Some("secret".to_owned()));
    let mut peer = server.connect();
    for _ in 0..3 {
        peer.call("SG.TAKE user:42 gcra:2/1h");
    }
    let browser = Browser::start(1280, 900);
    browser.open(&format!("http://{}/", server.http.unwrap()));
    browser.until("document.querySelector('#token-dialog').open");
    browser.write("#token", "secret");
    browser.press("Enter");
    browser.until("document.querySelector('#status').dataset.state === 'live'");
    browser.write("#look-key", "user:42");
    browser.press("Enter");
    let actual = "document.querySelector('#look-result').textContent";
    browser.until(&format!("{actual}.startsWith('user:42 is denied by gcra:2/1h')"));
    let press = |id: &str| browser.run(&format!("document.querySelector('{id}').click()"));
    let question = "document.querySelector('#confirm-dialog').open && \
                 document.querySelector('#confirm-title').textContent";

    // A cancelled action changes nothing.
    browser.until("!document.querySelector('#look-actions').hidden");
    press("#reset-key");
    assert_eq!(browser.until(question), "Reset key?");
    press("#confirm-dialog .plain");
    assert_eq!(peer.integers("SG.PEEK user:42 gcra:2/1h")[0], 0);

    press("#reset-key");
    browser.until(question);
    press("#confirm-yes");
    browser.until(&format!("{actual}.startsWith('user:42 is unused')"));
    assert_eq!(peer.integers("SG.PEEK user:42 gcra:2/1h")[0], 1);

    press("#block-key");
    assert_eq!(browser.until(question), "Block key?");
    press("#confirm-yes");
    browser.until(&format!(
        "{actual}.startsWith('user:42 is blocked: can try again in 10 min') || \
                            {actual}.startsWith('user:42 is blocked: can try again in 9 min')"
    ));
    assert_eq!(peer.integers("SG.PEEK user:42 gcra:2/1h")[0], 0);
    let row = "document.querySelector('#blocked-keys tbody tr')";
    browser.until(&format!("{row}?.cells[0].textContent === 'user:42'"));
    peer.call("SG.TAKE user:42 gcra:2/1h");
    browser.until("document.querySelector('#denied-keys .by').textContent === 'blocked'");

    press("#blocked-keys button");
    assert_eq!(browser.until(question), "Unblock key?");
    press("#confirm-yes");
    browser.until("document.querySelector('#blocks').hidden");
    assert_eq!(peer.integers("SG.PEEK user:42 gcra:2/1h")[0], 1);
    let complaints = browser.complaints();
    assert!(complaints.iter().all(|it| it.contains("401")), "{complaints:?}");
}
