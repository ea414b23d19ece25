//! How servers read the target of a request: its path and its query.
//!
//! Servers read unusual spellings differently: whether `%2F` and `\` separate segments, whether `#` ends the path,
//! whether `//x` names a host, what `..` removes. A limiter cannot identify the server behind it. Therefore
//! [`Readings`] contains each path that a common server delivers. Nearly all targets are plain and have one reading,
//! which borrows.
//!
//! A path in a reading is canonical: only bytes that need an escape have one, in capital letters. Therefore two
//! spellings of one path are equal bytes. Reading a canonical path again changes nothing.

use std::borrow::Cow;

/// A path and a query, as one kind of server reads a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading<'t> {
    /// The path in canonical form. It begins with `/`.
    pub path: Cow<'t, str>,
    /// The text after the first `?`, as sent; empty if there is none.
    pub query: Cow<'t, str>,
}

/// All readings of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readings<'t> {
    /// The reading of RFC 3986: an escaped slash is data, repeated slashes are one, `.` and `..` are
    /// removed, and `#` ends the target.
    pub first: Reading<'t>,
    /// Different readings; `None` for nearly every target.
    pub others: Option<Box<Others<'t>>>,
}

/// Readings of a target that differ from the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Others<'t> {
    /// Different readings by other servers, up to ten; with `;` or `..` in an unusual target, a bounded number more.
    pub readings: Vec<Reading<'t>>,
    /// The path as sent, with its repeated slashes and dots; `None` if one of the readings equals it. Servers that
    /// resolve nothing deliver it.
    pub as_sent: Option<Reading<'t>>,
}

/// How a kind of server reads a target, as flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Server(u8);

impl Server {
    /// `#` ends the target, rather than being data.
    const HASH: Self = Self(1);
    /// `%2F` is a slash.
    const SLASH: Self = Self(2);
    /// `\` is a slash, and `%5C` is one where `%2F` is.
    const BACKSLASH: Self = Self(4);
    /// A host follows several slashes at the start.
    const HOST: Self = Self(8);
    /// Repeated slashes become one before `..` is resolved, instead of after it.
    const MERGE: Self = Self(16);
    /// A `.` or `..` at the end leaves no slash at the end.
    const CLEAN: Self = Self(32);
    /// Nothing is resolved: dots and repeated slashes stay.
    const AS_SENT: Self = Self(64);
    /// The target is decoded before it is read, as behind a server that forwards decoded targets.
    const TWICE: Self = Self(128);

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// RFC 3986, and servers that merge slashes.
const FIRST: Server = Server::HASH.and(Server::MERGE);
/// WSGI frameworks and routers that compare the text.
const AS_SENT: Server = Server::AS_SENT;

/// All others, by name.
const OTHERS: [Server; 10] = [
    // nginx `$uri`, WSGI servers with a normalising application.
    Server::HASH.and(Server::SLASH).and(Server::MERGE),
    // Go: `path.Clean(request.URL.Path)`, Caddy.
    Server::SLASH.and(Server::MERGE).and(Server::CLEAN),
    // Python: `posixpath.normpath(unquote(path))`.
    Server::HASH.and(Server::SLASH).and(Server::MERGE).and(Server::CLEAN),
    // Envoy and others that resolve dots before they merge slashes.
    Server::HASH,
    // WHATWG: `new URL(request.url, base)` in Node and others.
    Server::HASH.and(Server::BACKSLASH).and(Server::HOST),
    // The same, decoded by the application.
    Server::HASH.and(Server::SLASH).and(Server::BACKSLASH).and(Server::HOST).and(Server::MERGE),
    // Python: `urlsplit(target).path`, which recognises hosts and not backslashes.
    Server::HASH.and(Server::SLASH).and(Server::HOST).and(Server::MERGE),
    // Windows: IIS, ASP.NET.
    Server::HASH.and(Server::SLASH).and(Server::BACKSLASH).and(Server::MERGE),
    // A chain of two that both decode.
    Server::TWICE.and(Server::HASH).and(Server::SLASH).and(Server::BACKSLASH).and(Server::MERGE),
    Server::TWICE.and(Server::HASH).and(Server::SLASH).and(Server::BACKSLASH).and(Server::HOST),
];

impl<'t> Readings<'t> {
    /// All readings of a target as sent: a path with a query, or the absolute form with a host.
    ///
    /// ```
    /// use sluicegate_headers::Readings;
    ///
    /// let plain = Readings::of("/v2/items?page=3");
    /// assert_eq!((&*plain.first.path, &*plain.first.query), ("/v2/items", "page=3"));
    /// assert!(plain.others.is_none());
    ///
    /// let odd = Readings::of("/x%2f..%2flogin#top");
    /// assert!(odd.all().any(|reading| reading.path == "/login"));
    /// ```
    #[must_use]
    pub fn of(target: &'t str) -> Self {
        match plain(target) {
            Some((path, query)) => Self { first: Reading::borrowed(path, query), others: None },
            None => Self::unusual(target),
        }
    }

    /// Every reading except for that of the path as sent.
    pub fn all(&self) -> impl Iterator<Item = &Reading<'t>> {
        let others = self.others.iter().flat_map(|others| &others.readings);
        std::iter::once(&self.first).chain(others)
    }

    #[cold]
    fn unusual(target: &'t str) -> Self {
        // Browsers and Python remove these first; others keep them as data.
        let is_blank = |char: char| matches!(char, '\t' | '\r' | '\n');
        let trimmed = target.trim_matches(|char: char| char <= ' ');
        let clean = match trimmed.contains(is_blank) {
            true => Cow::Owned(trimmed.replace(is_blank, "")),
            false => Cow::Borrowed(trimmed),
        };
        let read = |server| match &clean {
            Cow::Borrowed(text) => Reading::by(server, text),
            Cow::Owned(text) => Reading::by(server, text).into_owned(),
        };
        let first = read(FIRST);
        let mut readings: Vec<Reading<'t>> = Vec::new();
        let mut add = |reading: Reading<'t>| {
            if reading != first && !readings.contains(&reading) {
                readings.push(reading);
            }
        };
        OTHERS.into_iter().for_each(|server| add(read(server)));
        if clean != target {
            add(Reading::by(FIRST, target));
        }
        let path = clean.split(['?', '#']).next().unwrap_or_default();
        add_other_orders(path, &first, &mut readings);
        let as_sent = Reading::by(AS_SENT, target);
        let as_sent = (as_sent != first && !readings.contains(&as_sent)).then_some(as_sent);
        let others = !readings.is_empty() || as_sent.is_some();
        Self { first, others: others.then(|| Box::new(Others { readings, as_sent })) }
    }
}

impl<'t> Reading<'t> {
    const fn borrowed(path: &'t str, query: &'t str) -> Self {
        Self { path: Cow::Borrowed(path), query: Cow::Borrowed(query) }
    }

    fn into_owned(self) -> Reading<'static> {
        Reading {
            path: Cow::Owned(self.path.into_owned()),
            query: Cow::Owned(self.query.into_owned()),
        }
    }

    fn by(server: Server, target: &'t str) -> Self {
        let target = match target.split_once('#') {
            Some((before, _)) if server.has(Server::HASH) => before,
            _ => target,
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path = match server.has(Server::TWICE) {
            true => {
                // The second server finds these in the decoded text; C strings end at a zero.
                let decoded = unescaped(path.as_bytes()).map(|(byte, _)| byte);
                Cow::Owned(decoded.take_while(|byte| !b"?#\0".contains(byte)).collect())
            }
            false => Cow::Borrowed(path.as_bytes()),
        };
        let path = resolved(server, &separated(server, without_host(server, &path)));
        Self { path: Cow::Owned(path), query: Cow::Borrowed(query) }
    }
}

/// Adds the readings in other orders. A path from which parameters were removed ends in `;`, so that only a rule with
/// `parameters: strip` matches it. It is not added if such a rule finds the same path in another reading.
fn add_other_orders<'t>(path: &str, first: &Reading<'t>, readings: &mut Vec<Reading<'t>>) {
    let strip =
        |reading: &Reading<'_>| canonical_path(&without_parameters(&reading.path)).into_owned();
    let known = std::iter::once(first).chain(&*readings).filter(|it| it.query == first.query);
    let mut known: Vec<String> = known.map(strip).collect();
    for (mut path, stripped) in in_other_orders(path) {
        if stripped {
            path.push(';');
        }
        let reading = Reading { path: path.into(), query: first.query.clone() };
        let loose = strip(&reading);
        let is_known = if stripped {
            known.contains(&loose)
        } else {
            readings.contains(&reading) || reading == *first
        };
        if !is_known {
            add(&mut known, loose);
            readings.push(reading);
        }
    }
}

/// Paths that servers deliver which decode, remove `;parameters` and resolve dots in other orders, or behind a proxy that
/// normalizes or decodes; and whether parameters were removed.
fn in_other_orders(path: &str) -> Vec<(String, bool)> {
    const PLAIN: Server = Server(0);
    const BOTH: Server = Server::SLASH.and(Server::BACKSLASH);
    const ALL: &[Server] = &[BOTH, Server::SLASH, Server::BACKSLASH, PLAIN];
    let twice = decoded(path);
    let is_odd = |text: &str| text.contains(';') || text.contains("..");
    if !is_odd(&twice) && !is_odd(&decoded(&twice)) {
        return Vec::new();
    }
    // What the last server receives, and how it decodes that. Servers that decode it and then treat `\` as a slash do so
    // even if they keep `%2F`.
    let behind_host = |server| {
        let path = without_host(server, path.as_bytes());
        String::from_utf8_lossy(path).into_owned()
    };
    let mut received = vec![(behind_host(PLAIN), false, ALL)];
    let normalized = normalized(&received[0].0);
    add(&mut received, (normalized, false, ALL));
    for (path, stripped) in [
        (behind_host(Server::SLASH.and(Server::HOST)), false),
        (behind_host(BOTH.and(Server::HOST)), false),
        (twice, false),
        (decoded(&without_parameters(path)), path.contains(';')),
    ] {
        if received.iter().all(|(known, ..)| *known != path) {
            received.push((path, stripped, &ALL[..2]));
        }
    }
    let mut separate = Vec::new();
    for (path, stripped, servers) in received {
        let path = path.replace("%5c", "\\").replace("%5C", "\\");
        for &server in servers {
            let whole = separated(server, path.as_bytes());
            if path.contains(';') {
                let early = separated(server, without_parameters(&path).as_bytes());
                add(&mut separate, (early, true));
            }
            if whole.contains(';') {
                add(&mut separate, (without_parameters(&whole), true));
                add(&mut separate, (without_parameters(&resolved(Server::MERGE, &whole)), true));
            }
            add(&mut separate, (whole, stripped));
        }
    }
    let mut paths = Vec::new();
    for (path, stripped) in separate {
        let merged = resolved(Server::MERGE, &path);
        if path.ends_with("/.") || path.ends_with("/..") {
            let clean = merged.strip_suffix('/').filter(|it| !it.is_empty());
            add(&mut paths, (clean.unwrap_or("/").to_owned(), stripped));
        }
        if path.contains("//") {
            add(&mut paths, (resolved(PLAIN, &path), stripped));
        }
        add(&mut paths, (merged, stripped));
    }
    paths
}

/// Adds `item` unless it is there.
fn add<T: PartialEq>(items: &mut Vec<T>, item: T) {
    if !items.contains(&item) {
        items.push(item);
    }
}

/// The path that a proxy forwards that decodes it.
fn decoded(path: &str) -> String {
    let mut decoded = String::with_capacity(path.len());
    for (byte, _) in unescaped(path.as_bytes()) {
        match byte {
            // As for servers that decode twice.
            b'?' | b'#' | 0 => break,
            b' '..=b'~' => decoded.push(byte.into()),
            _ => decoded.push_str(&format!("%{byte:02X}")),
        }
    }
    decoded
}

/// The path that a proxy forwards that resolves dots and keeps all escapes but those of dots, as Envoy does.
fn normalized(path: &str) -> String {
    let path = path.replace("%2e", ".").replace("%2E", ".").replace('\\', "/");
    resolved(Server(0), &path)
}

/// The path without a `;`, and everything after it, in each segment.
pub(crate) fn without_parameters(path: &str) -> String {
    let segments = path.split('/').map(|it| it.split(';').next().unwrap_or_default());
    segments.collect::<Vec<_>>().join("/")
}

/// `path` in the canonical form of the first reading, without recognizing a host or a query.
#[must_use]
pub fn canonical_path(path: &str) -> Cow<'_, str> {
    match plain(path) {
        Some((whole, _)) if whole.len() == path.len() => Cow::Borrowed(path),
        _ => Cow::Owned(resolved(FIRST, &separated(FIRST, path.as_bytes()))),
    }
}

/// Path and query of a target that all servers read equally; `None` for any other.
fn plain(target: &str) -> Option<(&str, &str)> {
    let bytes = target.as_bytes();
    let mut before = 0;
    let mut end = bytes.len();
    for (at, &byte) in bytes.iter().enumerate() {
        match CLASS[usize::from(byte)] {
            PLAIN => {}
            // `//` and `/.`
            SLASH | DOT if before == b'/' => return None,
            SLASH | DOT => {}
            QUERY => {
                end = at;
                break;
            }
            _ => return None,
        }
        before = byte;
    }
    if bytes.first() != Some(&b'/') {
        return None;
    }
    let query = target.get(end + 1..).unwrap_or_default();
    let plain = query.bytes().all(|byte| byte > b' ' && byte != b'#' && byte != 0x7f);
    plain.then_some((&target[..end], query))
}

const PLAIN: u8 = 0;
const SLASH: u8 = 1;
const DOT: u8 = 2;
const QUERY: u8 = 3;
const ODD: u8 = 4;

/// The meaning of each byte in a path.
const CLASS: [u8; 256] = {
    let (mut class, mut byte) = ([PLAIN; 256], 0_u8);
    loop {
        class[byte as usize] = match byte {
            b'/' => SLASH,
            b'.' => DOT,
            b'?' => QUERY,
            b'#' | b'%' | b'\\' | ..=b' ' | 0x7f.. => ODD,
            _ => PLAIN,
        };
        if byte == u8::MAX {
            break class;
        }
        byte += 1;
    }
};

/// The path without the scheme and the host before it.
fn without_host(server: Server, path: &[u8]) -> &[u8] {
    let is_slash = |byte: u8| byte == b'/' || byte == b'\\' && server.has(Server::BACKSLASH);
    let slashes = |path: &[u8]| path.iter().take_while(|&&byte| is_slash(byte)).count();
    let behind_host = |rest: &'_ [u8]| rest.iter().position(|&byte| is_slash(byte));
    let (scheme, rest) = match scheme(path) {
        Some(length) => (&path[..length], &path[length + 1..]),
        None => (&path[..0], path),
    };
    let count = slashes(rest);
    let skipped = match (scheme.is_empty(), server.has(Server::HOST)) {
        // `http://host/path`, for all servers.
        (false, false) if rest.starts_with(b"//") => 2,
        // `//host/path`, and with any number of slashes; `http:/host/path` if the server has another scheme.
        (_, true) if count >= 2 => count,
        (false, true) if count == 1 && server.has(Server::SLASH) => count,
        // `http:/path` and `http:path`.
        (false, _) if count == 1 || is_web(scheme) => return rest,
        _ => return path,
    };
    let rest = &rest[skipped..];
    behind_host(rest).map_or(&[], |at| &rest[at..])
}

/// Length of the scheme at the start of `path`, without its colon.
fn scheme(path: &[u8]) -> Option<usize> {
    let length = path
        .iter()
        .take_while(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte))
        .count();
    let named = path.first().is_some_and(u8::is_ascii_alphabetic);
    (named && path.get(length) == Some(&b':')).then_some(length)
}

/// Whether a path may follow this scheme without a slash.
fn is_web(scheme: &[u8]) -> bool {
    ["http", "https", "ws", "wss"].iter().any(|web| web.as_bytes().eq_ignore_ascii_case(scheme))
}

/// The path with every separator as `/`, and every other byte that is not plain as `%XX`.
fn separated(server: Server, path: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = String::with_capacity(path.len() + 8);
    for (byte, escaped) in unescaped(path) {
        let decodes = !escaped || server.has(Server::SLASH);
        let separates = byte == b'/' || byte == b'\\' && server.has(Server::BACKSLASH);
        if separates && decodes {
            out.push('/');
        } else if byte.is_ascii_graphic() && !b"/\\%?#".contains(&byte) {
            out.push(byte.into());
        } else {
            out.push('%');
            out.push(DIGITS[usize::from(byte >> 4)].into());
            out.push(DIGITS[usize::from(byte & 15)].into());
        }
    }
    out
}

/// The path with dots and repeated slashes resolved as by the server.
fn resolved(server: Server, path: &str) -> String {
    let path = path.strip_prefix('/').unwrap_or(path);
    if server.has(Server::AS_SENT) {
        return format!("/{path}");
    }
    let mut segments: Vec<&str> = Vec::new();
    let mut ends_in_slash = false;
    for segment in path.split('/') {
        ends_in_slash = true;
        match segment {
            ".." => {
                segments.pop();
                ends_in_slash = !server.has(Server::CLEAN);
            }
            "." => ends_in_slash = !server.has(Server::CLEAN),
            "" if server.has(Server::MERGE) => {}
            _ => {
                segments.push(segment);
                ends_in_slash = segment.is_empty();
            }
        }
    }
    segments.retain(|segment| !segment.is_empty());
    let mut out = String::with_capacity(path.len() + 1);
    for segment in &segments {
        out.push('/');
        out.push_str(segment);
    }
    if ends_in_slash || segments.is_empty() {
        out.push('/');
    }
    out
}

/// The bytes of `text`, with `%XX` as one byte, and whether each was escaped. Any other `%` is a byte like others.
pub fn unescaped(text: &[u8]) -> impl Iterator<Item = (u8, bool)> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
    let mut rest = text;
    std::iter::from_fn(move || {
        let (&first, after) = rest.split_first()?;
        let digits = after.split_first_chunk().filter(|_| first == b'%');
        let escaped = digits
            .and_then(|([high, low], after)| Some((16 * digit(*high)? + digit(*low)?, after)));
        let (byte, after) = escaped.unwrap_or((first, after));
        rest = after;
        Some((byte, escaped.is_some()))
    })
}

#[cfg(test)]
mod tests;
