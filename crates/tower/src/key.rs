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
    pub(crate) fn push(&self, head: &Head<'_>, key: &mut Bytes) {
        let there = match &self.0 {
            Kind::Header(name) => head.headers.get(name).map(HeaderValue::as_bytes),
            Kind::Method => Some(head.method.as_str().as_bytes()),
            Kind::Path => Some(head.path().as_bytes()),
            Kind::Address(address) => return push_written(key, |to| address.write(head, to)),
            Kind::Own(own) => return push_written(key, |to| own(head, to)),
        };
        match there {
            Some(bytes) => push(bytes, key),
            None => key.extend_from_slice(MISSING),
        }
    }
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

fn push_written(key: &mut Bytes, write: impl FnOnce(&mut Bytes) -> Option<()>) {
    let mut written = Bytes::new();
    match write(&mut written) {
        Some(()) => push(&written, key),
        None => key.extend_from_slice(MISSING),
    }
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
