//! What is known of a request.

use std::{borrow::Cow, fmt, net::IpAddr};

use sluicegate_headers::{Others, Reading, Readings};

use crate::{attribute::Attribute, path::decoded};

/// The headers of a request, asked by name.
pub trait Headers {
    /// The value of the header `name`, which is in lower case; of several, the first.
    fn header(&self, name: &str) -> Option<&[u8]>;

    /// Whether the header `name`, which is in lower case, is there several times with different values.
    fn is_ambiguous(&self, name: &str) -> bool;
}

/// No headers.
impl Headers for () {
    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }

    fn is_ambiguous(&self, _: &str) -> bool {
        false
    }
}

/// Headers as pairs of a name, in any case, and a value.
impl<N: AsRef<str>, V: AsRef<[u8]>, const COUNT: usize> Headers for [(N, V); COUNT] {
    fn header(&self, name: &str) -> Option<&[u8]> {
        values(self, name).next()
    }

    fn is_ambiguous(&self, name: &str) -> bool {
        differ(values(self, name))
    }
}

/// Headers as pairs of a name, in any case, and a value.
impl<N: AsRef<str>, V: AsRef<[u8]>> Headers for Vec<(N, V)> {
    fn header(&self, name: &str) -> Option<&[u8]> {
        values(self, name).next()
    }

    fn is_ambiguous(&self, name: &str) -> bool {
        differ(values(self, name))
    }
}

fn values<'h, N: AsRef<str>, V: AsRef<[u8]>>(
    pairs: &'h [(N, V)],
    name: &str,
) -> impl Iterator<Item = &'h [u8]> {
    let found = pairs.iter().filter(move |(known, _)| known.as_ref().eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.as_ref())
}

fn differ<T: PartialEq>(mut values: impl Iterator<Item = T>) -> bool {
    values.next().is_some_and(|first| values.any(|value| value != first))
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
    method: Option<Cow<'r, str>>,
    path: Option<Cow<'r, str>>,
    query: Cow<'r, str>,
    /// What some servers make of the target besides.
    others: Option<Box<Others<'r>>>,
    headers: &'r dyn Headers,
    client: Option<IpAddr>,
    domain: Option<&'r str>,
    entries: &'r [(&'r str, &'r str)],
}

impl<'r> Request<'r> {
    /// An HTTP request. `target` is the path with the query as it came, in any form and spelling. Where
    /// servers read it differently, [`RuleSet::matches`](crate::RuleSet::matches) finds the rules for every
    /// reading, so that no spelling escapes a rule.
    #[must_use]
    pub fn http(method: &'r str, target: &'r str, headers: &'r dyn Headers) -> Self {
        let Readings { first: Reading { path, query }, others } = Readings::of(target);
        // Some servers take `post` for `POST`.
        let method = match method.bytes().any(|byte| byte.is_ascii_lowercase()) {
            true => Cow::Owned(method.to_ascii_uppercase()),
            false => Cow::Borrowed(method),
        };
        Self {
            method: Some(method),
            path: Some(path),
            query,
            others,
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
            query: Cow::Borrowed(""),
            others: None,
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

    /// What servers make of the target besides the path and query of this request.
    pub(crate) const fn others(&self) -> Option<&Others<'r>> {
        match &self.others {
            Some(others) => Some(others),
            None => None,
        }
    }

    /// The same request, with its target as another server reads it.
    pub(crate) fn read_as(&self, reading: &Reading<'r>) -> Self {
        let Reading { path, query } = reading.clone();
        Self { path: Some(path), query, others: None, ..self.clone() }
    }

    /// Whether the request gives `attribute` several times, with different values: applications then differ
    /// in which one they use.
    pub(crate) fn is_ambiguous(&self, attribute: &Attribute) -> bool {
        match attribute {
            Attribute::Header(name) => self.headers.is_ambiguous(name),
            Attribute::Query(name) => {
                let others = self.others().into_iter().flat_map(|others| &others.readings);
                let mut queries = others.map(|it| &it.query).chain([&self.query]);
                queries.any(|query| differ(parameters(query, name)))
            }
            _ => false,
        }
    }

    /// The path in canonical form, as most servers read it; empty where there is none.
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
            Attribute::Method => self.method.as_ref().map(|it| Cow::Borrowed(it.as_bytes())),
            Attribute::Path => self.path.as_ref().map(|path| Cow::Borrowed(path.as_bytes())),
            Attribute::LoosePath(options) => {
                self.path.as_ref().map(|path| match options.apply(path) {
                    Cow::Borrowed(path) => Cow::Borrowed(path.as_bytes()),
                    Cow::Owned(path) => Cow::Owned(path.into_bytes()),
                })
            }
            Attribute::Header(name) => self.headers.header(name).map(Cow::Borrowed),
            Attribute::Query(name) => parameters(&self.query, name).next(),
            Attribute::Domain => self.domain.map(text),
            Attribute::Descriptor(name) => {
                self.entries.iter().find(|(key, _)| *key == &**name).map(|(_, value)| text(value))
            }
            Attribute::Client => self.client.map(|it| Cow::Owned(it.to_string().into_bytes())),
            Attribute::Capture(_) => None,
        }
    }
}

/// The values of the parameters `name` of a query, decoded.
fn parameters<'q>(query: &'q str, name: &str) -> impl Iterator<Item = Cow<'q, [u8]>> {
    query.split('&').filter_map(move |pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let same = key == name || key.contains(['%', '+']) && *decoded(key) == *name.as_bytes();
        same.then(|| decoded(value))
    })
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
