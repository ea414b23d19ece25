use http::Request;
use proptest::prelude::*;

use super::*;
use crate::key_bytes::{INLINE_BYTES, push_short};

fn key(request: &Request<()>, parts: &[KeyPart]) -> String {
    let mut key = Bytes::new();
    parts.iter().for_each(|part| part.push(&Head::of(request), &mut key));
    String::from_utf8(key.to_vec()).unwrap()
}

#[test]
fn push_different_parts_are_distinct() {
    let request = Request::post("/a/b?c").header("x-user", "7").body(()).unwrap();
    let [user, other] =
        ["x-user", "x-other"].map(|it| KeyPart::header(HeaderName::from_static(it)));
    let own = KeyPart::own(|head| head.header("x-user").map(|it| it.repeat(2)));
    assert_eq!(
        key(
            &request,
            &[KeyPart::method(), KeyPart::path(), user, other, own, ClientAddress::peer().into()]
        ),
        "4:POST,4:/a/b,1:7,-,2:77,-,"
    );
    let path = |path: &str| key(&Request::get(path).body(()).unwrap(), &[KeyPart::path()]);
    for spelling in ["/a/b", "/a/./b", "//a/b", "/a/%62", "/a/c/../b"] {
        assert_eq!(path(spelling), "4:/a/b,", "{spelling}");
    }
    let twice = |one: &str, other: &str| {
        let request = Request::get("/").header("x-user", one).header("x-user", other);
        key(&request.body(()).unwrap(), &[KeyPart::header(HeaderName::from_static("x-user"))])
    };
    assert_eq!([twice("7", "7"), twice("7", "8"), twice("8", "7")], ["1:7,", "*,", "*,"]);
    let empty = Request::get("/").header("x-other", "").body(()).unwrap();
    let part = KeyPart::header(HeaderName::from_static("x-other"));
    assert_eq!(key(&empty, &[part]), "0:,");
}

#[test]
fn push_part_of_any_length_is_a_netstring() {
    let request = Request::new(());
    for length in (0..=110).chain([INLINE_BYTES * 3, 1000]) {
        for first in [0, 3, INLINE_BYTES - 3, INLINE_BYTES] {
            let text = "x".repeat(length);
            let mut expected = "p".repeat(first);
            expected += &format!("{length}:{text},-,1:y,");
            let mut key = Bytes::new();
            key.extend_from_slice(&vec![b'p'; first]);
            for part in [Some(text), None, Some("y".to_owned())] {
                KeyPart::own(move |_| part.clone()).push(&Head::of(&request), &mut key);
            }
            assert_eq!(String::from_utf8_lossy(&key), expected);
        }
    }
}

#[test]
fn push_short_equals_push() {
    let (halves, bytes) = ([*b"01234567", *b"89abcdef"], b"0123456789abcdef");
    for first in (0..4).chain(INLINE_BYTES - 24..INLINE_BYTES + 2) {
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
fn write_key_is_independent_of_previous_key() {
    let named = |name: &str| crate::NamedPolicy::new(name, "gcra:1/1s".parse().expect("a policy"));
    // The third is longer than the inline buffer, and the last is another policy of the same name.
    let policies = ["a", "b", &"c".repeat(INLINE_BYTES), "a"].map(named);
    let proxied = ClientAddress::x_forwarded_for(1);
    let user = KeyPart::header(HeaderName::from_static("x-user"));
    let lists: [&[KeyPart]; 7] = [
        &[],
        &[ClientAddress::peer().into()],
        &[ClientAddress::peer().prefixes(24, 56).into()],
        &[ClientAddress::peer().into(), user.clone()],
        &[user.clone(), ClientAddress::peer().into()],
        &[proxied.into(), proxied.prefixes(32, 128).into()],
        &[KeyPart::path(), KeyPart::method()],
    ];
    let requests = [None, Some("10.0.0.1:1"), Some("10.0.0.2:1"), Some("[2001:db8::1]:1")]
        .into_iter()
        .flat_map(|peer| ["7", &"8".repeat(INLINE_BYTES)].map(|user| (peer, user.to_owned())))
        .map(|(peer, user)| {
            let mut request = Request::builder().header("x-user", user);
            if let Some(peer) = peer {
                let peer: std::net::SocketAddr = peer.parse().expect("an address");
                request = request.extension(peer).header("x-forwarded-for", "::ffff:10.0.0.1");
            }
            request.body(()).expect("a request")
        });
    let requests: Vec<_> = requests.collect();
    let mut cases = Vec::new();
    for policy in &policies {
        for parts in lists {
            cases.extend(requests.iter().map(|request| (policy.inner(), parts, request)));
        }
    }
    let written = |key: &mut Key, (policy, parts, request): (&Named, &[KeyPart], &Request<()>)| {
        key.write(policy, parts, &Head::of(request));
        key.to_vec()
    };
    let alone: Vec<_> = cases.iter().map(|cases| written(&mut Key::new(), *cases)).collect();
    for (before, _) in cases.iter().zip(&alone) {
        for (cases, alone) in cases.iter().zip(&alone) {
            let mut key = Key::new();
            written(&mut key, *before);
            for _ in 0..2 {
                assert_eq!(written(&mut key, *cases), *alone, "after {before:?}: {cases:?}");
            }
        }
    }
    assert_eq!(alone.iter().filter(|key| key.starts_with(b"1:a,8:10.0.0.1,")).count(), 20);
}

#[test]
fn take_key_twice_returns_two_keys() {
    let policy = crate::NamedPolicy::new("a", "gcra:1/1s".parse().expect("a policy"));
    let request = Request::new(());
    let mut outer = Key::take();
    outer.write(policy.inner(), &[KeyPart::path()], &Head::of(&request));
    let mut inner = Key::take();
    inner.write(policy.inner(), &[KeyPart::method()], &Head::of(&request));
    assert_eq!([&**outer, &**inner], [&b"1:a,1:/,"[..], b"1:a,3:GET,"]);
    outer.leave();
    inner.leave();
    assert_eq!(**Key::take(), *b"1:a,3:GET,");
}

#[test]
fn write_long_key_is_complete() {
    for first in [0, 1, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1] {
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
    fn push_different_tuples_make_different_keys(
        one in prop::collection::vec(prop::option::of("[-0-2:,]{0,4}"), 0..4),
        two in prop::collection::vec(prop::option::of("[-0-2:,]{0,4}"), 0..4),
    ) {
        let request = Request::new(());
        let joined = |tuple: &[Option<String>]| {
            let own = |it: &Option<String>| {
                let it = it.clone();
                KeyPart::own(move |_| it.clone())
            };
            key(&request, &tuple.iter().map(own).collect::<Vec<_>>())
        };
        prop_assert_eq!(joined(&one) == joined(&two), one == two);
    }
}
