//! A Chromium without a window, driven by the protocol of WebDriver: only what is needed here.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::harness::{Folder, now};

/// What a page does not do within this time it does not do at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// A browser with one page, until dropped.
pub(crate) struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    _profile: Folder,
}

impl Browser {
    /// A browser whose page is so wide and so high.
    pub(crate) fn start(width: u32, height: u32) -> Self {
        // It ends its browser when it ends, and it ends with the test, however that does.
        let mut driver = Command::new("setpriv")
            .args(["--pdeathsig", "TERM", "--", "chromedriver"])
            .args(["--port=0", "--allowed-ips=127.0.0.1"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver, of Debian's package chromium-driver");
        let mut lines = BufReader::new(driver.stdout.as_mut().unwrap()).lines();
        let mut ports = lines.by_ref().map_while(Result::ok).filter_map(|line| {
            line.strip_suffix('.')?.rsplit_once("successfully on port ")?.1.parse::<u16>().ok()
        });
        let port = ports.next().expect("a driver that listens");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let profile = Folder::new();
        let flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            &format!("--user-data-dir={}", profile.file("").display()),
            &format!("--window-size={width},{height}"),
        ];
        let mut browser = Self { driver, address, session: String::new(), _profile: profile };
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": "/usr/bin/chromium", "args": flags},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let session = browser.call("POST", "/session", &wanted);
        browser.session = format!("/session/{}", session["sessionId"].as_str().unwrap());
        let view = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
        });
        browser.tell("Emulation.setDeviceMetricsOverride", &view);
        browser
    }

    /// Opens a page.
    pub(crate) fn open(&self, url: &str) {
        self.post("/url", &json!({"url": url}));
    }

    /// What a script of the page gives back.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Asks again and again until a script gives back something that is true, and gives that back.
    pub(crate) fn until(&self, script: &str) -> Value {
        self.until_within(script, PATIENCE)
    }

    /// The same, for so long.
    pub(crate) fn until_within(&self, script: &str, patience: Duration) -> Value {
        let start = now();
        loop {
            let value = self.run(&format!("return {script}"));
            if !matches!(value, Value::Null | Value::Bool(false)) && value != "" {
                return value;
            }
            assert!(start.elapsed() < patience, "never was: {script}\n{}", self.text("body"));
        }
    }

    /// The text that stands in an element.
    pub(crate) fn text(&self, selector: &str) -> String {
        let script = format!("return document.querySelector({selector:?}).innerText");
        self.run(&script).as_str().unwrap_or_default().to_owned()
    }

    /// Types into an element, as a keyboard does.
    pub(crate) fn keys(&self, selector: &str, text: &str) {
        let found = self.post("/element", &json!({"using": "css selector", "value": selector}));
        let id = found.as_object().unwrap().values().next().unwrap().as_str().unwrap();
        self.post(&format!("/element/{id}/value"), &json!({"text": text}));
    }

    /// Light or dark, as if the system said so.
    pub(crate) fn scheme(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.tell("Emulation.setEmulatedMedia", &json!({"features": features}));
    }

    /// Lets the page draw what has changed.
    pub(crate) fn settle(&self) {
        let drawn =
            "const [told] = arguments; requestAnimationFrame(() => requestAnimationFrame(told))";
        self.post("/execute/async", &json!({"script": drawn, "args": []}));
    }

    /// What the page has complained about since this was asked last.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.post("/se/log", &json!({"type": "browser"}));
        let log = log.as_array().unwrap().iter();
        log.filter(|it| it["level"] != "INFO").map(|it| it["message"].to_string()).collect()
    }

    /// A picture of what can be seen, as PNG.
    pub(crate) fn picture(&self) -> Vec<u8> {
        let picture = self.call("GET", &format!("{}/screenshot", self.session), &Value::Null);
        STANDARD.decode(picture.as_str().unwrap()).unwrap()
    }

    /// Tells the browser something in its own words.
    pub(crate) fn tell(&self, command: &str, parameters: &Value) -> Value {
        self.post("/goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.call("POST", &format!("{}{path}", self.session), body)
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        // It does not close, whatever it is told.
        let mut stream = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            assert!(stream.read_line(&mut line).unwrap() > 0, "the driver has closed");
            match line.trim_end().split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.parse().unwrap();
                }
                None if line.trim_end().is_empty() => break,
                _ => {}
            }
        }
        let mut heard = vec![0; length];
        stream.read_exact(&mut heard).unwrap();
        let told: Value = serde_json::from_slice(&heard).unwrap();
        assert!(told["value"].get("error").is_none(), "{method} {path} {body}: {told}");
        told["value"].clone()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.call("DELETE", &self.session.clone(), &Value::Null);
        }
        // SIGTERM has it end its browser, which a kill would not.
        let id = self.driver.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &id]).status();
        let _ = self.driver.wait();
    }
}
