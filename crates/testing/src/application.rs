use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::TEST_TIMEOUT;

/// Targets that some servers or applications interpret as `/login`.
pub const LOGIN_SPELLINGS: [&str; 38] = [
    "/login",
    "/login#x",
    "/login#",
    "/login#?x",
    "/login?x",
    "/login?x#y",
    "/%2flogin",
    "/%2Flogin",
    "/%6Cogin",
    "/%6c%6f%67%69%6e",
    "/x%2f..%2flogin",
    "/x/..%2flogin",
    "/x/%2e%2e/login",
    "/x/%2e%2e%2flogin",
    "/%2e/login",
    "/./login",
    "/x/../login",
    "//login",
    "///login",
    "//h/login",
    "/x//../../login",
    "/login/.",
    "/login/x/..",
    "http://h/login",
    "HTTP://h:80/login",
    "http://h//login",
    "http:/login",
    "\\login",
    "/\\login",
    "/\\h/login",
    "/x\\..\\login",
    "/x/..\\login",
    "/x%5c..%5clogin",
    "/%256cogin",
    "/lo\tgin",
    "/login%00",
    "/login%20",
    "/x#/../login",
];

/// Targets that differ from `/login` for a rule, unless its options merge them.
pub const LOGIN_VARIANTS: [&str; 6] =
    ["/LOGIN", "/Login", "/login/", "/login;x", "/login/;x", "/LOGIN;x=y/"];

/// An application in another language, which runs until it is dropped. Its replies list the paths that its language
/// derives from the target, one per line.
#[derive(Debug)]
pub struct Application {
    child: Child,
    /// The address of its listener.
    pub address: SocketAddr,
}

impl Application {
    /// An application in Python, with `urllib.parse` and `posixpath`.
    #[must_use]
    pub fn python() -> Self {
        Self::start("python3", "app.py")
    }

    /// An application in Node, with `new URL` and `url.parse`.
    #[must_use]
    pub fn node() -> Self {
        Self::start("node", "app.mjs")
    }

    fn start(program: &str, file: &str) -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("applications").join(file);
        // It ends with the test, even if that is killed.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", program])
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port: u16 =
            line.trim().parse().unwrap_or_else(|_| panic!("{program} printed `{line}`"));
        Self { child, address: SocketAddr::from(([127, 0, 0, 1], port)) }
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Status and body of the reply to a GET of the unchanged `target`, on a new connection; status 0 without a reply.
#[must_use]
pub fn get(server: SocketAddr, target: &str, fields: &str) -> (u16, String) {
    let answer = || {
        let mut stream = TcpStream::connect(server)?;
        stream.set_read_timeout(Some(TEST_TIMEOUT))?;
        let head = format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{fields}\r\n");
        stream.write_all(head.as_bytes())?;
        let (mut answer, mut chunk) = (Vec::new(), [0; 4096]);
        // Envoy keeps connections open for some time after its last reply.
        while !is_complete(&answer) {
            match stream.read(&mut chunk)? {
                0 => break,
                count => answer.extend_from_slice(&chunk[..count]),
            }
        }
        std::io::Result::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = answer().unwrap_or_default();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|it| it.parse().ok()).unwrap_or(0);
    (status, body.to_owned())
}

/// Whether a reply is as long as its `Content-Length`; `false` without that header.
fn is_complete(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    length.and_then(|it| it.trim().parse().ok()).is_some_and(|length: usize| body.len() >= length)
}
