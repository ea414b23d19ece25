//! Whom a request is about.

use std::{fmt, ops::Deref, sync::Arc};

use http::{HeaderName, HeaderValue};

use crate::{Address, Head};

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

    /// The same bytes, for more to follow.
    ///
    /// All of `place` is copied, as that takes no loop; who clones has nothing elsewhere most often.
    #[inline(always)]
    pub(crate) fn start(&self) -> Self {
        let elsewhere = if self.elsewhere.is_empty() { Vec::new() } else { self.elsewhere.clone() };
        Self { elsewhere, place: self.place, length: self.length }
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

/// One part of what a request is counted under. Parts are joined so that no two combinations of them are
/// the same key, whatever is in them.
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
    /// The first value of a header: a token, an account.
    #[must_use]
    pub const fn header(name: HeaderName) -> Self {
        Self(Kind::Header(name))
    }

    /// The method.
    #[must_use]
    pub const fn method() -> Self {
        Self(Kind::Method)
    }

    /// The path as it was sent, without the query. Who may choose it freely may choose a new key each time:
    /// better the name of a rule that [`Routes`](crate::Routes) finds.
    #[must_use]
    pub const fn path() -> Self {
        Self(Kind::Path)
    }

    /// What `find` finds, text or bytes.
    ///
    /// ```
    /// use sluicegate_tower::Part;
    ///
    /// struct Account(String); // attached by the middleware that checks who asks
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
    #[inline(always)]
    pub(crate) fn push(&self, head: &Head<'_>, key: &mut Bytes) {
        match &self.0 {
            Kind::Address(address) => address.push(head, key),
            _ => self.push_other(head, key),
        }
    }

    // Apart, so that the short way is short.
    #[inline(never)]
    fn push_other(&self, head: &Head<'_>, key: &mut Bytes) {
        let there = match &self.0 {
            Kind::Header(name) => head.headers.get(name).map(HeaderValue::as_bytes),
            Kind::Method => Some(head.method.as_str().as_bytes()),
            Kind::Path => Some(head.path().as_bytes()),
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
mod tests {
    use http::Request;
    use proptest::prelude::*;

    use super::*;

    fn key(request: &Request<()>, parts: &[Part]) -> String {
        let mut key = Bytes::new();
        parts.iter().for_each(|part| part.push(&Head::of(request), &mut key));
        String::from_utf8(key.to_vec()).unwrap()
    }

    #[test]
    fn parts_are_told_apart() {
        let request = Request::post("/a/b?c").header("x-user", "7").body(()).unwrap();
        let [user, other] =
            ["x-user", "x-other"].map(|it| Part::header(HeaderName::from_static(it)));
        let own = Part::own(|head| head.header("x-user").map(|it| it.repeat(2)));
        assert_eq!(
            key(
                &request,
                &[Part::method(), Part::path(), user, other, own, Address::peer().into()]
            ),
            "4:POST,4:/a/b,1:7,-,2:77,-,"
        );
        let empty = Request::get("/").header("x-other", "").body(()).unwrap();
        let part = Part::header(HeaderName::from_static("x-other"));
        assert_eq!(key(&empty, &[part]), "0:,");
    }

    #[test]
    fn a_part_is_written_in_place_behind_its_length() {
        for length in (0..=110).chain([PLACE * 3, 1000]) {
            for first in [0, 3, PLACE - 3, PLACE] {
                let text = "x".repeat(length);
                let mut expected = "p".repeat(first);
                expected += &format!("{length}:{text},-,1:y,");
                let mut key = Bytes::new();
                key.extend_from_slice(&vec![b'p'; first]);
                for part in [Some(text), None, Some("y".to_owned())] {
                    // One that gives up has written something before.
                    push_written(&mut key, |to| {
                        to.extend_from_slice(part.as_deref().unwrap_or("given up").as_bytes());
                        part.map(drop)
                    });
                }
                assert_eq!(String::from_utf8_lossy(&key), expected);
            }
        }
        let mut key = Bytes::new();
        push_written(&mut key, |to| {
            to.extend_from_slice(&[0; PLACE + 1]);
            None
        });
        assert_eq!(*key, *MISSING);
    }

    #[test]
    fn a_short_part_is_like_any_other() {
        let (halves, bytes) = ([*b"01234567", *b"89abcdef"], b"0123456789abcdef");
        for first in (0..4).chain(PLACE - 24..PLACE + 2) {
            for length in 0..=16 {
                let mut keys = [(); 2].map(|()| Bytes::new());
                keys.iter_mut().for_each(|key| key.extend_from_slice(&vec![b'p'; first]));
                let [short, any] = &mut keys;
                push_short(halves.map(u64::from_le_bytes), length, short);
                push(&bytes[..length.into()], any);
                keys.iter_mut().for_each(|key| push(b"next", key));
                assert_eq!(*keys[0], *keys[1], "{length} after {first}");
            }
        }
    }

    #[test]
    fn a_key_may_be_long() {
        for first in [0, 1, PLACE - 1, PLACE, PLACE + 1] {
            let (mut key, mut expected) = (Bytes::new(), vec![b'a'; first]);
            key.extend_from_slice(&expected);
            for byte in 0..3 {
                key.push(byte);
                key.extend_from_slice(&[byte; 2]);
                expected.extend_from_slice(&[byte; 3]);
            }
            assert_eq!(*key, *expected, "{first}");
        }
    }

    proptest! {
        #[test]
        fn no_two_tuples_are_one_key(
            one in prop::collection::vec(prop::option::of("[-0-2:,]{0,4}"), 0..4),
            two in prop::collection::vec(prop::option::of("[-0-2:,]{0,4}"), 0..4),
        ) {
            let request = Request::new(());
            let joined = |tuple: &[Option<String>]| {
                let own = |it: &Option<String>| {
                    let it = it.clone();
                    Part::own(move |_| it.clone())
                };
                key(&request, &tuple.iter().map(own).collect::<Vec<_>>())
            };
            prop_assert_eq!(joined(&one) == joined(&two), one == two);
        }
    }
}
