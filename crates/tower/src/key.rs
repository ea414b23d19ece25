//! Keys of requests.

use std::{cell::Cell, fmt, ops::Deref, sync::Arc};

use http::{HeaderName, HeaderValue};
use sluicegate_headers::{Network, canonical_path};

use crate::{
    ClientAddress, Head,
    address::push_network,
    key_bytes::{Bytes, push, push_missing},
    rules::Named,
};

/// The key of a request, whose start is reused if the next request has the same. Each thread has one, because requests
/// of one connection follow each other.
#[derive(Debug)]
pub(crate) struct Key {
    bytes: Bytes,
    start: Start,
    /// Length of the start in bytes.
    started: usize,
}

/// Identifies the start of a key: the number of the policy, and the numbers of the client if that is the first part.
#[derive(Clone, Copy, Debug)]
struct Start([u64; 4]);

impl Start {
    /// No policy.
    const NONE: Self = Self([0; 4]);

    #[inline]
    fn of(policy: &Named, client: Option<Option<Network>>) -> Self {
        let [kind, high, low] = match client {
            None => [0; 3],
            Some(None) => [1, 0, 0],
            Some(Some(network)) => network.numbers(),
        };
        Self([policy.number, kind, high, low])
    }

    /// Whether both are equal. A derived comparison would go through memory, which is slower.
    #[inline]
    fn is(&self, other: &Self) -> bool {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        (a ^ e) | (b ^ f) | (c ^ g) | (d ^ h) == 0
    }
}

thread_local! {
    static LAST: Cell<Option<Box<Key>>> = const { Cell::new(None) };
}

impl Key {
    const fn new() -> Self {
        Self { bytes: Bytes::new(), start: Start::NONE, started: 0 }
    }

    /// Takes the key of this thread, or a new one while that is in use.
    #[inline]
    pub(crate) fn take() -> Box<Self> {
        LAST.try_with(Cell::take).ok().flatten().unwrap_or_else(|| Box::new(Self::new()))
    }

    /// Returns it for the next request of the thread.
    #[inline]
    pub(crate) fn leave(self: Box<Self>) {
        // A thread that ends needs no key.
        let _ = LAST.try_with(|last| last.set(Some(self)));
    }

    /// Writes the key of a request.
    #[inline]
    pub(crate) fn write(&mut self, policy: &Named, parts: &[KeyPart], head: &Head<'_>) {
        let (client, rest) = match parts {
            [KeyPart(Kind::ClientAddress(address)), rest @ ..] => {
                (Some(address.network(head)), rest)
            }
            _ => (None, parts),
        };
        let start = Start::of(policy, client);
        if self.start.is(&start) {
            self.bytes.cut(self.started);
        } else {
            self.begin(policy, client);
            // A start that is not inline is written each time.
            self.start = if self.bytes.is_inline() { start } else { Start::NONE };
            self.started = self.bytes.len();
        }
        for part in rest {
            part.push(head, &mut self.bytes);
        }
    }

    #[inline]
    fn begin(&mut self, policy: &Named, client: Option<Option<Network>>) {
        self.bytes.cut(0);
        self.bytes.extend_from_slice(&policy.start);
        if let Some(client) = client {
            push_network(client, &mut self.bytes);
        }
    }
}

impl Deref for Key {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// One part of a key. Parts are joined unambiguously: two different combinations never make the same key.
#[derive(Clone, Debug)]
pub struct KeyPart(Kind);

#[derive(Clone)]
enum Kind {
    ClientAddress(ClientAddress),
    Header(HeaderName),
    Method,
    Path,
    Own(Arc<OwnPart>),
}

/// Adds the part to a key.
type OwnPart = dyn Fn(&Head<'_>, &mut Bytes) + Send + Sync;

impl KeyPart {
    /// The value of a header, such as a token or an account. Requests with several different values share one key,
    /// separate from all others: the service may use any of the values, and a client must not get a new key by
    /// adding one.
    #[must_use]
    pub const fn header(name: HeaderName) -> Self {
        Self(Kind::Header(name))
    }

    /// The method.
    #[must_use]
    pub const fn method() -> Self {
        Self(Kind::Method)
    }

    /// The path in canonical form, without the query. A client that can choose the path freely can use a new key
    /// for each request: use [`Routes`](crate::Routes) there.
    #[must_use]
    pub const fn path() -> Self {
        Self(Kind::Path)
    }

    /// The string or bytes that `find` returns.
    ///
    /// ```
    /// use sluicegate_tower::KeyPart;
    ///
    /// struct Account(String); // set by the authentication middleware
    ///
    /// let part = KeyPart::own(|head| head.extensions.get::<Account>().map(|it| it.0.clone()));
    /// ```
    #[must_use]
    pub fn own<F, T>(find: F) -> Self
    where
        F: Fn(&Head<'_>) -> Option<T> + Send + Sync + 'static,
        T: AsRef<[u8]>,
    {
        Self(Kind::Own(Arc::new(move |head, key| match find(head) {
            Some(value) => push(value.as_ref(), key),
            None => push_missing(key),
        })))
    }

    /// Adds the part to a key, as its length and its bytes, or a mark that it is missing, which equals no value.
    #[inline(never)]
    fn push(&self, head: &Head<'_>, key: &mut Bytes) {
        let value = match &self.0 {
            Kind::Header(name) => {
                let mut values = head.headers.get_all(name).iter();
                let first = values.next();
                if values.any(|value| Some(value) != first) {
                    return key.extend_from_slice(AMBIGUOUS);
                }
                first.map(HeaderValue::as_bytes)
            }
            Kind::Method => Some(head.method.as_str().as_bytes()),
            Kind::Path => return push(canonical_path(head.path()).as_bytes(), key),
            Kind::ClientAddress(address) => return address.push(head, key),
            Kind::Own(own) => return own(head, key),
        };
        match value {
            Some(bytes) => push(bytes, key),
            None => push_missing(key),
        }
    }
}

/// Instead of a header with several different values.
const AMBIGUOUS: &[u8] = b"*,";

impl From<ClientAddress> for KeyPart {
    fn from(address: ClientAddress) -> Self {
        Self(Kind::ClientAddress(address))
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientAddress(address) => address.fmt(formatter),
            Self::Header(name) => write!(formatter, "header {name}"),
            Self::Method => formatter.write_str("method"),
            Self::Path => formatter.write_str("path"),
            Self::Own(_) => formatter.write_str("own"),
        }
    }
}

#[cfg(test)]
mod tests;
