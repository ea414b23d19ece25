//! Requests, as rules match them.

use std::{borrow::Cow, fmt, net::IpAddr, rc::Rc};

use sluicegate_headers::{PathOptions, Reading, Readings};

use crate::{
    attribute::Attribute,
    long_values::LongValues,
    query::{Query, work},
};

/// The headers of a request.
pub trait Headers {
    /// The first value of the header `name`, which is in lower case.
    fn header(&self, name: &str) -> Option<&[u8]>;

    /// Whether the header `name`, which is in lower case, occurs several times with different values.
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

/// A request, with all attributes that rules can use.
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
    /// `None` if it is empty.
    query: Option<Rc<Query<'r>>>,
    /// Further readings of the target.
    others: Option<Rc<Others<'r>>>,
    /// Results for long values, if there are several readings or the path is long.
    pub(crate) long_values: Option<&'r LongValues>,
    headers: &'r dyn Headers,
    pub(crate) client: Option<IpAddr>,
    domain: Option<&'r str>,
    entries: &'r [(&'r str, &'r str)],
}

/// A path and a query, as one kind of server reads the target. Readings with the same query share it.
pub(crate) struct Target<'r> {
    path: Cow<'r, str>,
    query: Option<Rc<Query<'r>>>,
}

/// Readings of a target after the first.
pub(crate) struct Others<'r> {
    pub(crate) readings: Vec<Target<'r>>,
    /// The path as sent, where no reading equals it.
    pub(crate) as_sent: Option<Target<'r>>,
    /// All different queries but that of the path as sent.
    queries: Vec<Rc<Query<'r>>>,
}

impl<'r> Others<'r> {
    /// `query` is that of the first reading.
    fn new(others: sluicegate_headers::Others<'r>, query: Option<&Rc<Query<'r>>>) -> Self {
        let mut queries: Vec<_> = query.cloned().into_iter().collect();
        let readings =
            others.readings.into_iter().map(|reading| Target::new(reading, &mut queries)).collect();
        let as_sent = others.as_sent.map(|reading| Target::new(reading, &mut queries.clone()));
        Self { readings, as_sent, queries }
    }
}

impl<'r> Target<'r> {
    /// Adds its query to `queries`, or shares the equal one.
    fn new(Reading { path, query }: Reading<'r>, queries: &mut Vec<Rc<Query<'r>>>) -> Self {
        let known = queries.iter().find(|known| known.text() == query).cloned();
        let query = known.or_else(|| {
            let query = shared(query)?;
            queries.push(Rc::clone(&query));
            Some(query)
        });
        Self { path, query }
    }
}

/// `None` if `query` is empty.
fn shared(query: Cow<'_, str>) -> Option<Rc<Query<'_>>> {
    (!query.is_empty()).then(|| Rc::new(Query::new(query)))
}

impl<'r> Request<'r> {
    /// An HTTP request. `target` is the path with the query as sent, in any form and spelling. If servers read it
    /// differently, [`RuleSet::matches`](crate::RuleSet::matches) finds the rules for every reading. Therefore no
    /// spelling escapes a rule.
    #[must_use]
    pub fn http(method: &'r str, target: &'r str, headers: &'r dyn Headers) -> Self {
        let Readings { first: Reading { path, query }, others } = Readings::of(target);
        let query = shared(query);
        let others = others.map(|others| Rc::new(Others::new(*others, query.as_ref())));
        // Some servers treat `post` as `POST`.
        let method = match method.bytes().any(|byte| byte.is_ascii_lowercase()) {
            true => Cow::Owned(method.to_ascii_uppercase()),
            false => Cow::Borrowed(method),
        };
        Self {
            method: Some(method),
            path: Some(path),
            query,
            long_values: None,
            others,
            headers,
            client: None,
            domain: None,
            entries: &[],
        }
    }

    /// One of Envoy's descriptors.
    #[must_use]
    pub const fn descriptor(domain: &'r str, entries: &'r [(&'r str, &'r str)]) -> Self {
        Self {
            method: None,
            path: None,
            query: None,
            others: None,
            long_values: None,
            headers: &(),
            client: None,
            domain: Some(domain),
            entries,
        }
    }

    /// Sets the address of the client. An IPv4 address mapped into IPv6 is that IPv4 address.
    #[must_use]
    pub fn from(self, address: IpAddr) -> Self {
        Self { client: Some(address.to_canonical()), ..self }
    }

    /// Readings of the target after the first.
    pub(crate) fn others(&self) -> Option<&Others<'r>> {
        self.others.as_deref()
    }

    /// The same request with another reading of its target, if `target` is given. `long_values` caches results and
    /// must be used for this request only.
    pub(crate) fn read_as<'t>(
        &'t self,
        target: Option<&'t Target<'r>>,
        long_values: &'t LongValues,
    ) -> Request<'t> {
        let (path, query) = match target {
            Some(target) => (Some(&*target.path), &target.query),
            None => (self.path.as_deref(), &self.query),
        };
        Request {
            method: self.method.as_deref().map(Cow::Borrowed),
            path: path.map(Cow::Borrowed),
            query: query.clone(),
            others: None,
            long_values: Some(long_values),
            ..*self
        }
    }

    /// Whether the request contains `attribute` several times, with different values.
    pub(crate) fn is_ambiguous(&self, attribute: &Attribute) -> bool {
        match attribute {
            Attribute::Header(name) => self.headers.is_ambiguous(name),
            Attribute::Query(name) => {
                let queries = match &self.others {
                    Some(others) => &others.queries[..],
                    None => self.query.as_slice(),
                };
                queries.iter().any(|query| query.is_ambiguous(name))
            }
            _ => false,
        }
    }

    /// Whether its path is long enough to cache results for it.
    pub(crate) fn has_long_path(&self) -> bool {
        self.path().len() >= LongValues::MIN_LENGTH
    }

    /// The path without the differences that `options` ignore.
    pub(crate) fn loose_path(&self, options: PathOptions) -> Cow<'_, str> {
        match self.long_values {
            Some(known) if self.has_long_path() && !options.is_strict() => {
                Cow::Borrowed(known.loose_paths.get(self.path(), options))
            }
            _ => {
                work::add(self.path().len());
                options.apply(self.path())
            }
        }
    }

    /// The path in canonical form, as most servers read it; empty if there is none.
    #[must_use]
    pub fn path(&self) -> &str {
        self.path.as_deref().unwrap_or_default()
    }

    /// The value of an attribute, if the request has it.
    pub(crate) fn value(&self, attribute: &Attribute) -> Option<Cow<'_, [u8]>> {
        let text = |text: &'r str| Cow::Borrowed(text.as_bytes());
        match attribute {
            Attribute::Method => self.method.as_ref().map(|it| Cow::Borrowed(it.as_bytes())),
            Attribute::Path => self.path.as_ref().map(|path| Cow::Borrowed(path.as_bytes())),
            Attribute::LoosePath(options) => {
                self.path.as_ref().map(|_| match self.loose_path(*options) {
                    Cow::Borrowed(path) => Cow::Borrowed(path.as_bytes()),
                    Cow::Owned(path) => Cow::Owned(path.into_bytes()),
                })
            }
            Attribute::Header(name) => self.headers.header(name).map(Cow::Borrowed),
            Attribute::Query(name) => self.query.as_ref()?.value(name).map(Cow::Borrowed),
            Attribute::Domain => self.domain.map(text),
            Attribute::Descriptor(name) => {
                self.entries.iter().find(|(key, _)| *key == &**name).map(|(_, value)| text(value))
            }
            Attribute::Client => self.client.map(|it| Cow::Owned(it.to_string().into_bytes())),
            Attribute::Capture(_) => None,
        }
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Request")
            .field("method", &self.method)
            .field("path", &self.path)
            .field("query", &self.query.as_ref().map(|query| query.text()))
            .field("client", &self.client)
            .field("domain", &self.domain)
            .field("entries", &self.entries)
            .finish_non_exhaustive()
    }
}
