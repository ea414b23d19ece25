//! Keys of requests.

use std::{cell::Cell, fmt, ops::Deref, sync::Arc};

use http::{HeaderName, HeaderValue};
use sluicegate_headers::canonical_path;

use crate::{
    Address, Head,
    address::{Network, push_network},
    rules::Named,
};

/// A key while it is written: in place, as it is seldom longer, and elsewhere if it is.
#[derive(Clone, Debug)]
pub(crate) struct Bytes {
    place: [u8; PLACE],
    /// How many there are in place.
    length: usize,
    /// All of them, once they are more.
    elsewhere: Vec<u8>,
}

const PLACE: usize = 96;

impl Bytes {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self { place: [0; PLACE], length: 0, elsewhere: Vec::new() }
    }

    #[inline]
    pub(crate) fn push(&mut self, byte: u8) {
        match self.place.get_mut(self.length) {
            Some(free) if self.elsewhere.is_empty() => {
                *free = byte;
                self.length += 1;
            }
            _ => self.extend_from_slice(&[byte]),
        }
    }

    #[inline]
    pub(crate) fn extend_from_slice(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        match self.place.get_mut(self.length..end) {
            Some(free) if self.elsewhere.is_empty() => {
                free.copy_from_slice(bytes);
                self.length = end;
            }
            _ => self.extend_elsewhere(bytes),
        }
    }

    /// All but so many of the first, which were in place before others followed, is taken back.
    #[inline(always)]
    fn cut(&mut self, length: usize) {
        self.length = length;
        if !self.elsewhere.is_empty() {
            self.elsewhere = Vec::new();
        }
    }

    /// So many free bytes in place, where what is added goes.
    #[inline(always)]
    fn free<const COUNT: usize>(&mut self) -> Option<&mut [u8; COUNT]> {
        let free = self.place.get_mut(self.length..)?.first_chunk_mut()?;
        self.elsewhere.is_empty().then_some(free)
    }

    /// Takes back what was added last: all but so many.
    fn truncate(&mut self, length: usize) {
        // What is elsewhere stays there, unless there is nothing.
        if self.elsewhere.is_empty() || length == 0 {
            self.length = self.length.min(length);
        }
        self.elsewhere.truncate(length);
    }

    fn as_mut(&mut self) -> &mut [u8] {
        if self.elsewhere.is_empty() { &mut self.place[..self.length] } else { &mut self.elsewhere }
    }

    #[cold]
    fn extend_elsewhere(&mut self, bytes: &[u8]) {
        if self.elsewhere.is_empty() {
            self.elsewhere.extend_from_slice(&self.place[..self.length]);
        }
        self.elsewhere.extend_from_slice(bytes);
    }
}

impl Deref for Bytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        if self.elsewhere.is_empty() { &self.place[..self.length] } else { &self.elsewhere }
    }
}

/// The key of a request, and what its start was written for: whoever asks again finds that written. Each thread has
/// one, as requests of one connection follow each other.
#[derive(Debug)]
pub(crate) struct Key {
    bytes: Bytes,
    start: Start,
    /// How many bytes that is.
    started: usize,
}

/// What a key starts with, as numbers that are compared at once: that of the policy, and those of the client where
/// that is the first part.
#[derive(Clone, Copy, Debug)]
struct Start([u64; 4]);

impl Start {
    /// That of no policy.
    const NONE: Self = Self([0; 4]);

    #[inline(always)]
    fn of(policy: &Named, client: Option<Option<Network>>) -> Self {
        let [kind, high, low] = match client {
            None => [0; 3],
            Some(None) => [1, 0, 0],
            Some(Some(network)) => network.numbers(),
        };
        Self([policy.number, kind, high, low])
    }

    /// Whether they are the same. Derived, it would put one of them into memory and wait for it.
    #[inline(always)]
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

    /// Takes this thread's, or a new one while somebody has it.
    #[inline(always)]
    pub(crate) fn take() -> Box<Self> {
        LAST.try_with(Cell::take).ok().flatten().unwrap_or_else(|| Box::new(Self::new()))
    }

    /// Leaves it to the next request.
    #[inline(always)]
    pub(crate) fn leave(self: Box<Self>) {
        // A thread that ends needs none.
        let _ = LAST.try_with(|last| last.set(Some(self)));
    }

    /// Writes what a request is counted under.
    #[inline(always)]
    pub(crate) fn write(&mut self, policy: &Named, parts: &[Part], head: &Head<'_>) {
        let (client, rest) = match parts {
            [Part(Kind::Address(address)), rest @ ..] => (Some(address.network(head)), rest),
            _ => (None, parts),
        };
        let start = Start::of(policy, client);
        if self.start.is(&start) {
            self.bytes.cut(self.started);
        } else {
            self.begin(policy, client);
            // What is elsewhere is written each time.
            self.start = if self.bytes.elsewhere.is_empty() { start } else { Start::NONE };
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
pub struct Part(Kind);

#[derive(Clone)]
enum Kind {
    Address(Address),
    Header(HeaderName),
    Method,
    Path,
    Own(Arc<OwnPart>),
}

/// Writes the part, or nothing if there is none.
type OwnPart = dyn Fn(&Head<'_>, &mut Bytes) -> Option<()> + Send + Sync;

impl Part {
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
    /// use sluicegate_tower::Part;
    ///
    /// struct Account(String); // set by the authentication middleware
    ///
    /// let part = Part::own(|head| head.extensions.get::<Account>().map(|it| it.0.clone()));
    /// ```
    #[must_use]
    pub fn own<F, T>(find: F) -> Self
    where
        F: Fn(&Head<'_>) -> Option<T> + Send + Sync + 'static,
        T: AsRef<[u8]>,
    {
        Self(Kind::Own(Arc::new(move |head, to| {
            to.extend_from_slice(find(head)?.as_ref());
            Some(())
        })))
    }

    /// Adds the part to a key, as its length and what it is; or that it is missing, which is like nothing
    /// that is there.
    #[inline(never)]
    fn push(&self, head: &Head<'_>, key: &mut Bytes) {
        let there = match &self.0 {
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
            Kind::Address(address) => return address.push(head, key),
            Kind::Own(own) => return push_written(key, |to| own(head, to)),
        };
        match there {
            Some(bytes) => push(bytes, key),
            None => push_missing(key),
        }
    }
}

/// Adds that a part is missing.
#[inline]
pub(crate) fn push_missing(key: &mut Bytes) {
    key.extend_from_slice(MISSING);
}

/// In place of a part that is not there.
const MISSING: &[u8] = b"-,";

/// In place of a header that has several different values.
const AMBIGUOUS: &[u8] = b"*,";

impl From<Address> for Part {
    fn from(address: Address) -> Self {
        Self(Kind::Address(address))
    }
}

/// As a netstring: `5:login,`.
#[inline]
pub(crate) fn push(bytes: &[u8], key: &mut Bytes) {
    match u8::try_from(bytes.len()) {
        Ok(length @ ..10) => key.push(b'0' + length),
        _ => key.extend_from_slice(itoa::Buffer::new().format(bytes.len()).as_bytes()),
    }
    key.push(b':');
    key.extend_from_slice(bytes);
    key.push(b',');
}

/// As [`push`], of the first `length` of sixteen bytes, which come as two numbers, the first byte the lowest.
/// All of them are written, as that takes no loop, and each number as it comes.
#[inline(always)]
pub(crate) fn push_short(halves: [u64; 2], length: u8, key: &mut Bytes) {
    let count = usize::from(length.min(16));
    let [low, high] = halves.map(u64::to_le_bytes);
    let Some(free) = key.free::<20>() else { return push(&[low, high].concat()[..count], key) };
    let (digits, head) = match length {
        ..10 => (2, [b'0' + length, b':', 0]),
        10.. => (3, [b'1', b'0' + length - 10, b':']),
    };
    free[..3].copy_from_slice(&head);
    free[digits..digits + 8].copy_from_slice(&low);
    free[digits + 8..digits + 16].copy_from_slice(&high);
    free[digits + count] = b',';
    key.length += digits + count + 1;
}

/// Adds what `write` writes: in its place at once, behind room for a length of one digit, as most have.
#[inline]
pub(crate) fn push_written(key: &mut Bytes, write: impl FnOnce(&mut Bytes) -> Option<()>) {
    let before = key.len();
    key.extend_from_slice(b"0:");
    let start = key.len();
    if write(key).is_none() {
        key.truncate(before);
        return push_missing(key);
    }
    let length = key.len() - start;
    match u8::try_from(length) {
        Ok(digit @ ..10) => key.as_mut()[before] = b'0' + digit,
        Ok(two @ ..100) => {
            key.push(b'0');
            let bytes = key.as_mut();
            bytes.copy_within(start..start + length, start + 1);
            bytes[before..=start].copy_from_slice(&[b'0' + two / 10, b'0' + two % 10, b':']);
        }
        _ => {
            let written = key[start..].to_vec();
            key.truncate(before);
            return push(&written, key);
        }
    }
    key.push(b',');
}

impl fmt::Debug for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(formatter),
            Self::Header(name) => write!(formatter, "header {name}"),
            Self::Method => formatter.write_str("method"),
            Self::Path => formatter.write_str("path"),
            Self::Own(_) => formatter.write_str("own"),
        }
    }
}

#[cfg(test)]
mod tests;
