//! What is known of a request.

use std::{borrow::Cow, fmt, net::IpAddr};

use crate::{
    attribute::Attribute,
    path::{decoded, normal},
};

/// The headers of a request, asked by name.
pub trait Headers {
    /// The value of the header `name`, which is in lower case; of several, the first.
    fn header(&self, name: &str) -> Option<&[u8]>;
}

/// No headers.
impl Headers for () {
    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }
}

/// Headers as pairs of a name, in any case, and a value.
impl<N: AsRef<str>, V: AsRef<[u8]>, const COUNT: usize> Headers for [(N, V); COUNT] {
    fn header(&self, name: &str) -> Option<&[u8]> {
        first(self, name)
    }
}

/// Headers as pairs of a name, in any case, and a value.
impl<N: AsRef<str>, V: AsRef<[u8]>> Headers for Vec<(N, V)> {
    fn header(&self, name: &str) -> Option<&[u8]> {
        first(self, name)
    }
}

fn first<'h, N: AsRef<str>, V: AsRef<[u8]>>(pairs: &'h [(N, V)], name: &str) -> Option<&'h [u8]> {
    let found = pairs.iter().find(|(known, _)| known.as_ref().eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.as_ref())
}

/// What is known of a request: all that rules can ask for.
///
/// ```
/// use sluicegate_rules::Request;
///
/// let headers = [("X-Plan", "gold")];
/// let request = Request::http("GET", "/v2//items?page=3", &headers)
///     .from("203.0.113.7".parse()?);
/// assert_eq!(request.path(), "/v2/items");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone)]
pub struct Request<'r> {
    method: Option<&'r str>,
    path: Option<Cow<'r, str>>,
    query: &'r str,
    headers: &'r dyn Headers,
    client: Option<IpAddr>,
    domain: Option<&'r str>,
    entries: &'r [(&'r str, &'r str)],
}

impl<'r> Request<'r> {
    /// An HTTP request. `target` is the path with the query, as it came; the path is normalised
    /// (`//`, `.`, `..` and `%` escapes of what needs none), so that no spelling of it escapes a
    /// rule.
    #[must_use]
    pub fn http(method: &'r str, target: &'r str, headers: &'r dyn Headers) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = query.split('#').next().unwrap_or_default();
        Self {
            method: Some(method),
            path: Some(normal(path)),
            query,
            headers,
            client: None,
            domain: None,
            entries: &[],
        }
    }

    /// The entries of one of Envoy's descriptors.
    #[must_use]
    pub const fn descriptor(domain: &'r str, entries: &'r [(&'r str, &'r str)]) -> Self {
        Self {
            method: None,
            path: None,
            query: "",
            headers: &(),
            client: None,
            domain: Some(domain),
            entries,
        }
    }

    /// The same, from the client at `address`. An IPv4 address inside an IPv6 one is that of IPv4.
    #[must_use]
    pub fn from(self, address: IpAddr) -> Self {
        Self { client: Some(address.to_canonical()), ..self }
    }

    /// The same, with entries besides.
    #[must_use]
    pub fn with_entries(self, entries: &'r [(&'r str, &'r str)]) -> Self {
        Self { entries, ..self }
    }

    /// The path as rules see it; empty where there is none.
    #[must_use]
    pub fn path(&self) -> &str {
        self.path.as_deref().unwrap_or_default()
    }

    pub(crate) const fn client(&self) -> Option<IpAddr> {
        self.client
    }

    /// The value of an attribute that is no address, if the request has one.
    pub(crate) fn value(&self, attribute: &Attribute) -> Option<Cow<'_, [u8]>> {
        let text = |text: &'r str| Cow::Borrowed(text.as_bytes());
        match attribute {
            Attribute::Method => self.method.map(text),
            Attribute::Path => self.path.as_ref().map(|path| Cow::Borrowed(path.as_bytes())),
            Attribute::Header(name) => self.headers.header(name).map(Cow::Borrowed),
            Attribute::Query(name) => self.query(name),
            Attribute::Domain => self.domain.map(text),
            Attribute::Descriptor(name) => {
                self.entries.iter().find(|(key, _)| *key == &**name).map(|(_, value)| text(value))
            }
            Attribute::Client => self.client.map(|it| Cow::Owned(it.to_string().into_bytes())),
            Attribute::Capture(_) => None,
        }
    }

    /// The value of the first parameter `name` of the query.
    fn query(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        self.query.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let same = key == name || key.contains(['%', '+']) && *decoded(key) == *name.as_bytes();
            same.then(|| decoded(value))
        })
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Request")
            .field("method", &self.method)
            .field("path", &self.path)
            .field("query", &self.query)
            .field("client", &self.client)
            .field("domain", &self.domain)
            .field("entries", &self.entries)
            .finish_non_exhaustive()
    }
}
