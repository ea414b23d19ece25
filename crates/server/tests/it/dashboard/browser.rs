//! A Chromium without a window, controlled through a pair of pipes by its own protocol (CDP): the part that these
//! tests need.

use std::{
    cell::{Cell, RefCell},
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use sluicegate_testing::eventually_within;

use crate::harness::{TEST_TIMEOUT, TempDir};

/// The flags of the browser: what it needs, and no requests to other hosts.
const FLAGS: [&str; 10] = [
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

/// A browser with one page, until dropped.
pub(crate) struct Browser {
    process: Child,
    asks: RefCell<Option<ChildStdin>>,
    messages: Receiver<Value>,
    session: String,
    last: Cell<u64>,
    complaints: RefCell<Vec<String>>,
    _profile: TempDir,
}

impl Browser {
    /// A browser whose page is so wide and so high.
    pub(crate) fn start(width: u32, height: u32) -> Self {
        Self::with_names(width, height, "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    }

    /// The same, which resolves names by these rules.
    pub(crate) fn with_names(width: u32, height: u32, names: &str) -> Self {
        let profile = TempDir::new();
        // It reads from descriptor 3 and writes to 4, and ends when they are closed: with the test,
        // however that ends.
        let mut process = Command::new("setpriv")
            .args(["--pdeathsig", "TERM", "--", "sh", "-c"])
            .args([r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null"#, "sh", "chromium"])
            .args(FLAGS)
            .arg(format!("--host-resolver-rules={names}"))
            .arg(format!("--user-data-dir={}", profile.file("data").display()))
            .env("HOME", profile.file(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("setpriv, of util-linux");
        let mut received = BufReader::new(process.stdout.take().unwrap());
        let (hear, messages) = mpsc::channel();
        thread::spawn(move || {
            let mut message = Vec::new();
            while received.read_until(0, &mut message).is_ok_and(|count| count > 0) {
                message.pop();
                if hear.send(serde_json::from_slice(&message).unwrap()).is_err() {
                    break;
                }
                message.clear();
            }
        });
        let mut browser = Self {
            asks: RefCell::new(process.stdin.take()),
            process,
            messages,
            session: String::new(),
            last: Cell::new(0),
            complaints: RefCell::default(),
            _profile: profile,
        };
        let target = browser.command("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.command("Target.attachToTarget", &attach);
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            browser.command(&format!("{domain}.enable"), &json!({}));
        }
        let view = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
        });
        browser.command("Emulation.setDeviceMetricsOverride", &view);
        browser
    }

    /// Opens a page.
    pub(crate) fn open(&self, url: &str) {
        let opened = self.command("Page.navigate", &json!({"url": url}));
        assert!(opened.get("errorText").is_none(), "{url}: {opened}");
        self.until("document.readyState === 'complete'");
    }

    /// The value of an expression in the page.
    pub(crate) fn run(&self, expression: &str) -> Value {
        let expression = json!({
            "expression": expression, "awaitPromise": true, "returnByValue": true,
            "userGesture": true,
        });
        let actual = self.command("Runtime.evaluate", &expression);
        assert!(actual.get("exceptionDetails").is_none(), "{expression}: {actual}");
        actual["result"]["value"].clone()
    }

    /// Asks again and again until an expression comes to something that is true, and gives that back.
    pub(crate) fn until(&self, expression: &str) -> Value {
        self.until_within(expression, TEST_TIMEOUT)
    }

    /// The same, with a time limit.
    pub(crate) fn until_within(&self, expression: &str, patience: Duration) -> Value {
        eventually_within(patience, expression, || {
            let value = self.run(expression);
            if !matches!(value, Value::Null | Value::Bool(false)) && value != "" {
                return Ok(value);
            }
            Err(self.run("document.body?.innerText"))
        })
    }

    /// Replaces the value of a field by `text`, as by typing.
    pub(crate) fn write(&self, field: &str, text: &str) {
        let it = format!("document.querySelector({field:?})");
        self.run(&format!("({it}.focus(), {it}.select())"));
        self.command("Input.insertText", &json!({"text": text}));
    }

    /// Presses a key: `Tab`, `Enter` or ` `.
    pub(crate) fn press(&self, key: &str) {
        let (code, number, text) = match key {
            "Tab" => ("Tab", 9, ""),
            "Enter" => ("Enter", 13, "\r"),
            " " => ("Space", 32, " "),
            other => panic!("no key is called {other}"),
        };
        let mut event = json!({
            "type": "keyDown", "key": key, "code": code, "windowsVirtualKeyCode": number,
        });
        if !text.is_empty() {
            event["text"] = json!(text);
        }
        self.command("Input.dispatchKeyEvent", &event);
        event["type"] = json!("keyUp");
        self.command("Input.dispatchKeyEvent", &event);
    }

    /// Emulates the system's setting of light or dark.
    pub(crate) fn scheme(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.command("Emulation.setEmulatedMedia", &json!({"features": features}));
    }

    /// Waits until the page has drawn its changes.
    pub(crate) fn settle(&self) {
        self.run("new Promise((it) => requestAnimationFrame(() => requestAnimationFrame(it))).then(() => 1)");
    }

    /// Errors of the page since the last call.
    pub(crate) fn complaints(&self) -> Vec<String> {
        // Events that were sent before this answer have arrived by then.
        self.run("1");
        self.complaints.take()
    }

    /// A picture of the visible part, as PNG.
    pub(crate) fn picture(&self) -> Vec<u8> {
        let picture = self.command("Page.captureScreenshot", &json!({"format": "png"}));
        STANDARD.decode(picture["data"].as_str().unwrap()).unwrap()
    }

    /// Sends a command of the DevTools protocol, and returns its result.
    pub(crate) fn command(&self, method: &str, parameters: &Value) -> Value {
        let id = self.last.get() + 1;
        self.last.set(id);
        let mut message = json!({"id": id, "method": method, "params": parameters});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.asks.borrow_mut().as_mut().unwrap().write_all(&bytes).expect(
            "a browser that runs: `chromium`, of Debian's package, which `cargo xtask test --all` installs",
        );
        loop {
            let mut received =
                self.messages.recv_timeout(TEST_TIMEOUT).expect("a browser that answers");
            if received["id"] == id {
                assert!(received.get("error").is_none(), "{message}: {received}");
                return received["result"].take();
            }
            self.note(&received);
        }
    }

    /// Records the complaint of an event.
    fn note(&self, event: &Value) {
        let actual = &event["params"];
        let complaint = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => &actual["exceptionDetails"],
            Some("Log.entryAdded") if actual["entry"]["level"] != "verbose" => &actual["entry"],
            Some("Runtime.consoleAPICalled") if actual["type"] != "log" => actual,
            _ => return,
        };
        self.complaints.borrow_mut().push(complaint.to_string());
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.asks.take();
        let _ = self.process.wait();
    }
}
