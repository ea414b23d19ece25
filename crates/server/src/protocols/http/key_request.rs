//! The body of a request. Strings are borrowed from it where they have no escapes.

use std::{borrow::Cow, fmt, marker::PhantomData, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Unexpected, Visitor, value::MapAccessDeserializer},
};
use sluicegate_commands::{MAX_INDEPENDENT_TAKES, MAX_SPAN};
use sluicegate_core::{Operation, Timestamp};

use super::{json, problem::Problem, route::KeyOperationKind};
use crate::HeaderStyle;

/// A request about one key. The operation decides which members are valid.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyRequest<'a> {
    #[serde(borrow, default, deserialize_with = "key")]
    key: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "key_base64")]
    key_base64: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "policy")]
    policy: Option<Cow<'a, str>>,
    #[serde(default, deserialize_with = "cost")]
    cost: Option<u32>,
    #[serde(default, deserialize_with = "wait")]
    wait_us: Option<u64>,
    #[serde(default, deserialize_with = "max_wait")]
    max_wait_us: Option<u64>,
    #[serde(default, deserialize_with = "deserialize_time")]
    pub(super) at_us: Option<u64>,
    #[serde(default, deserialize_with = "headers")]
    /// The rate limit headers of the response, if the request chooses.
    pub(super) headers: Option<HeaderStyle>,
}

/// Several takes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TakeManyRequest<'a> {
    #[serde(borrow, default, deserialize_with = "requests")]
    requests: Vec<KeyRequest<'a>>,
    #[serde(default, deserialize_with = "deserialize_time")]
    pub(super) at_us: Option<u64>,
}

impl<'a> TakeManyRequest<'a> {
    /// The takes, at least one.
    pub(super) fn requests(&self) -> Result<&[KeyRequest<'a>], Problem> {
        REQUESTS.required(&self.requests)
    }
}

impl KeyRequest<'_> {
    /// The key, as bytes.
    #[inline]
    pub(super) fn key(&self) -> Result<Cow<'_, [u8]>, Problem> {
        key_bytes(self.key.as_deref(), self.key_base64.as_deref())
    }

    /// The policy, as text.
    #[inline]
    pub(super) fn policy(&self) -> Result<&[u8], Problem> {
        policy_text(self.policy.as_deref())
    }

    /// The operation, of the members that are valid for `kind`.
    #[inline]
    pub(super) fn operation(&self, kind: KeyOperationKind) -> Result<Operation<'static>, Problem> {
        let cost = self.cost.unwrap_or(1);
        check_place(
            &[("wait_us", self.wait_us.is_some() && kind != KeyOperationKind::Take)],
            "/v1/take",
        )?;
        let misplaced = self.max_wait_us.is_some() && kind != KeyOperationKind::Reserve;
        check_place(&[("max_wait_us", misplaced)], "/v1/reserve")?;
        Ok(match kind {
            KeyOperationKind::Take => Operation::Take(cost),
            KeyOperationKind::Peek => Operation::Peek(cost),
            KeyOperationKind::Charge => Operation::Charge(cost),
            KeyOperationKind::Refund => Operation::Refund(cost),
            KeyOperationKind::Reserve => {
                let max_wait = Duration::from_micros(self.max_wait_us.unwrap_or(MAX_SPAN));
                Operation::Reserve { cost, max_wait }
            }
        })
    }

    /// How long the request may wait, if it may.
    pub(super) fn wait(&self) -> Result<Option<Duration>, Problem> {
        wait_of(self.wait_us, self.at_us)
    }

    /// The cost, where it is not a part of the operation.
    pub(super) fn cost(&self) -> u32 {
        self.cost.unwrap_or(1)
    }

    /// Rejects members that have no meaning where only a key is expected.
    pub(super) fn only_key(&self) -> Result<(), Problem> {
        let others = [
            ("policy", self.policy.is_some()),
            ("cost", self.cost.is_some()),
            ("wait_us", self.wait_us.is_some()),
            ("max_wait_us", self.max_wait_us.is_some()),
            ("headers", self.headers.is_some()),
        ];
        check_place(&others, "requests with a decision")
    }

    /// Rejects members that have no meaning in one of several takes.
    pub(super) fn one_of_many(&self) -> Result<(), Problem> {
        let others = [
            ("wait_us", self.wait_us.is_some()),
            ("max_wait_us", self.max_wait_us.is_some()),
            ("at_us", self.at_us.is_some()),
            ("headers", self.headers.is_some()),
        ];
        check_place(&others, "a single request")
    }
}

/// How long a request with these members may wait, if it may.
pub(super) fn wait_of(
    wait_us: Option<u64>,
    at_us: Option<u64>,
) -> Result<Option<Duration>, Problem> {
    if wait_us.is_some() && at_us.is_some() {
        return Err(Problem::unprocessable(
            "both `wait_us` and `at_us` are given: expected one of them, because requests wait by the \
             clock of the server",
        ));
    }
    Ok(wait_us.map(Duration::from_micros))
}

/// The key that one of the two members has, as bytes.
#[inline]
pub(super) fn key_bytes<'a>(
    key: Option<&'a str>,
    base64: Option<&str>,
) -> Result<Cow<'a, [u8]>, Problem> {
    let key = given_key(key, base64)?;
    sluicegate_commands::key(&key)?;
    Ok(key)
}

/// The key that one of the two members has, of any length.
#[inline]
pub(crate) fn given_key<'a>(
    key: Option<&'a str>,
    base64: Option<&str>,
) -> Result<Cow<'a, [u8]>, Problem> {
    match (key, base64) {
        (Some(key), None) => Ok(Cow::Borrowed(key.as_bytes())),
        (None, Some(text)) => decode_base64("key_base64", text).map(Cow::Owned),
        (None, None) => Err(Problem::unprocessable(
            "missing `key`: expected a string, or bytes in Base64 as `key_base64`",
        )),
        (Some(_), Some(_)) => Err(Problem::unprocessable(
            "both `key` and `key_base64` are given: expected one of them",
        )),
    }
}

/// The text of the policy that the member has.
#[inline]
pub(super) fn policy_text(policy: Option<&str>) -> Result<&[u8], Problem> {
    policy.map(str::as_bytes).ok_or_else(|| {
        Problem::unprocessable("missing `policy`: expected a policy such as `gcra:30/1m`")
    })
}

/// An object. The derived deserialization would also accept an array of the values.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = Object<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(members)).map(Object)
            }
        }

        from.deserialize_map(Members(PhantomData))
    }
}

pub(super) fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    let read = match str::from_utf8(body) {
        // UTF-8 is checked once, not for each string.
        Ok(text) => serde_json::from_str(text),
        // Its error names the position.
        Err(_) => serde_json::from_slice(body),
    };
    read.map(|Object(it)| it).map_err(|error| json::problem(&error, body))
}

pub(super) fn time(at_us: Option<u64>, test_clock: bool) -> Result<Option<Timestamp>, Problem> {
    match at_us {
        Some(_) if !test_clock => Err(Problem::unprocessable(
            "invalid `at_us`: expected a server with --test-clock; remove the member",
        )),
        at => Ok(at.map(Timestamp::saturating_from_micros)),
    }
}

/// Rejects the first of the members that is given; they are only valid for `place`.
#[inline]
pub(super) fn check_place(members: &[(&str, bool)], place: &str) -> Result<(), Problem> {
    let Some((name, _)) = members.iter().find(|(_, is_given)| *is_given) else { return Ok(()) };
    Err(Problem::unprocessable(format!("unexpected `{name}`: it is only valid for {place}")))
}

/// The bytes of the member `name`.
pub(super) fn decode_base64(name: &str, text: &str) -> Result<Vec<u8>, Problem> {
    STANDARD.decode(text).map_err(|_| {
        let expected = "expected standard Base64 with padding";
        Problem::unprocessable(format!("invalid `{name}`: {expected}"))
    })
}

// A member must have a value; null is rejected.

pub(super) fn key<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Cow<'de, str>>, D::Error> {
    from.deserialize_str(Str { expected: "`key`, a string" }).map(Some)
}

pub(super) fn key_base64<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Cow<'de, str>>, D::Error> {
    from.deserialize_str(Str { expected: "`key_base64`, a string" }).map(Some)
}

pub(super) fn policy<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Cow<'de, str>>, D::Error> {
    from.deserialize_str(Str { expected: "`policy`, a string" }).map(Some)
}

pub(super) fn headers<'de, D: Deserializer<'de>>(from: D) -> Result<Option<HeaderStyle>, D::Error> {
    let expected = "`headers`, `ietf`, `x-ratelimit` or `none`";
    match &*from.deserialize_str(Str { expected })? {
        "ietf" => Ok(Some(HeaderStyle::Ietf)),
        "x-ratelimit" => Ok(Some(HeaderStyle::XRateLimit)),
        "none" => Ok(Some(HeaderStyle::None)),
        other => Err(D::Error::invalid_value(Unexpected::Str(other), &expected)),
    }
}

/// The string of the member `name`.
pub(crate) struct Str {
    pub(crate) expected: &'static str,
}

impl<'de> Visitor<'de> for Str {
    type Value = Cow<'de, str>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.expected)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

pub(super) fn cost<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let cost = from.deserialize_u64(Number { name: "cost", most: u32::MAX.into() })?;
    u32::try_from(cost).map(Some).map_err(D::Error::custom)
}

pub(super) fn wait<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    from.deserialize_u64(Number { name: "wait_us", most: MAX_SPAN }).map(Some)
}

fn max_wait<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    from.deserialize_u64(Number { name: "max_wait_us", most: MAX_SPAN }).map(Some)
}

pub(super) fn deserialize_time<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<u64>, D::Error> {
    from.deserialize_u64(Number { name: "at_us", most: Timestamp::MAX.as_micros() }).map(Some)
}

/// A whole number of `0..=most`.
pub(super) struct Number {
    pub(super) name: &'static str,
    pub(super) most: u64,
}

impl Visitor<'_> for Number {
    type Value = u64;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "`{}`, a whole number from 0 to {}", self.name, self.most)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        if number <= self.most {
            return Ok(number);
        }
        Err(E::invalid_value(Unexpected::Unsigned(number), &self))
    }
}

fn requests<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<KeyRequest<'de>>, D::Error> {
    list(from, REQUESTS)
}

const REQUESTS: List = List { name: "requests", most: MAX_INDEPENDENT_TAKES, items: "takes" };

/// An array with a bound: 1 to `most` items.
pub(super) struct List {
    pub(super) name: &'static str,
    pub(super) most: usize,
    /// What the items are, in plural.
    pub(super) items: &'static str,
}

impl List {
    /// The items of a member that a body must have. None are those of a missing member, because [`list`] rejects an
    /// empty array.
    pub(super) fn required<'a, T>(&self, items: &'a [T]) -> Result<&'a [T], Problem> {
        if items.is_empty() {
            let Self { name, most, items } = self;
            let text = format!("missing `{name}`: expected 1 to {most} {items}");
            return Err(Problem::unprocessable(text));
        }
        Ok(items)
    }
}

/// The items of `bound`. Those beyond the bound are not even parsed.
pub(super) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
    bound: List,
) -> Result<Vec<T>, D::Error> {
    struct Items<T>(List, PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
        type Value = Vec<T>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            let List { name, most, items } = self.0;
            write!(formatter, "`{name}`, 1 to {most} {items}")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
            let List { name, most, .. } = self.0;
            let mut all = Vec::new();
            loop {
                let next = from.next_element();
                let next = next.map_err(|error| {
                    A::Error::custom(format_args!("{name}[{}]: {error}", all.len()))
                })?;
                let Some(Object(one)) = next else { break };
                if all.len() == most {
                    return Err(A::Error::invalid_length(most + 1, &self));
                }
                all.push(one);
            }
            if all.is_empty() { Err(A::Error::invalid_length(0, &self)) } else { Ok(all) }
        }
    }

    from.deserialize_seq(Items(bound, PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_request_plain_strings_are_borrowed() {
        let body = br#"{"key":"user7","policy":"gcra:30/1m","cost":2}"#;
        let request = read::<KeyRequest<'_>>(body).unwrap();
        assert!(matches!(request.key, Some(Cow::Borrowed("user7"))));
        assert_eq!(request.policy().unwrap(), b"gcra:30/1m");
        assert_eq!(request.operation(KeyOperationKind::Take).unwrap(), Operation::Take(2));
        let request = read::<KeyRequest<'_>>(br#"{"key":"\u00e9","policy":""}"#).unwrap();
        assert_eq!(&*request.key().unwrap(), "\u{e9}".as_bytes());
        let request = read::<KeyRequest<'_>>(br#"{"key_base64":"AP8="}"#).unwrap();
        assert_eq!(&*request.key().unwrap(), b"\0\xff");
    }

    #[test]
    fn body_invalid_names_the_member() {
        for (body, expected) in [
            (r#"{"cost":-1}"#, "invalid `cost` `-1`: expected a whole number from 0 to 4294967295"),
            (r#"{"cost":4294967296}"#, "invalid `cost` `4294967296`: expected a whole number"),
            (r#"{"cost":1.5}"#, "invalid `cost` `1.5`: expected a whole number"),
            (
                r#"{"cost":"2"}"#,
                "invalid `cost`: expected a whole number from 0 to 4294967295, not the string `2`",
            ),
            (r#"{"cost":1e3}"#, "invalid `cost` `1e3`: expected a whole number"),
            (
                "{\n \"key\":\"1.5\",\n \"cost\":-1.50E+1 }",
                "invalid `cost` `-1.50E+1`: expected a whole number",
            ),
            (r#"{"cost":null}"#, "invalid `cost` `null`: expected a whole number"),
            (r#"{"wait_us":"1s"}"#, "invalid `wait_us`: expected a whole number"),
            (r#"{"key":null}"#, "invalid `key` `null`: expected a string"),
            (r#"{"key":1}"#, "invalid `key` `1`: expected a string"),
            (r#"{"key":["a"]}"#, "invalid `key`: expected a string, not an array"),
            (r#"{"policy":{}}"#, "invalid `policy`: expected a string, not an object"),
            (r#"{"policy":true}"#, "invalid `policy` `true`: expected a string"),
            (r#"{"kye":"x"}"#, "unknown member `kye`: expected `key`, `key_base64`, `policy`"),
            (r#"{"key":"x","key":"y"}"#, "duplicate member `key`"),
            (
                r#"{"headers":"all"}"#,
                "invalid `headers` `all`: expected `ietf`, `x-ratelimit` or `none`",
            ),
            (r#"{"headers":1}"#, "invalid `headers` `1`: expected `ietf`, `x-ratelimit` or `none`"),
            ("[]", "invalid body: expected a JSON object, not an array"),
            ("7", "invalid body `7`: expected a JSON object"),
            ("\"foo\"", "invalid body: expected a JSON object, not the string `foo`"),
            (r#"{"key":"x""#, "the body is not valid JSON: it ends early (line 1, column 10)"),
            (r#"{"key":"x"#, "the body is not valid JSON: it ends early (line 1, column 9)"),
            ("foo", "the body is not valid JSON: unexpected character (line 1, column 2)"),
            (
                "{\n\"key\":?}",
                "the body is not valid JSON: unexpected character (line 2, column 7)",
            ),
            (r#"{"key" 1}"#, "the body is not valid JSON: expected `:` (line 1, column 8)"),
            ("", "the body is empty: expected a JSON object"),
            (r#"{"cost":1e400}"#, "invalid number `1e400`: expected a smaller one"),
            (
                r#"{"key":"x"} x"#,
                "the body is not valid JSON: trailing characters (line 1, column 13)",
            ),
        ] {
            let problem = read::<KeyRequest<'_>>(body.as_bytes()).unwrap_err().to_string();
            assert!(problem.starts_with(expected), "{body}: {problem}");
        }
    }

    #[test]
    fn take_many_request_is_bounded() {
        let many = |count| format!(r#"{{"requests":[{}]}}"#, vec!["{}"; count].join(","));
        assert!(read::<TakeManyRequest<'_>>(many(MAX_INDEPENDENT_TAKES).as_bytes()).is_ok());
        for count in [0, MAX_INDEPENDENT_TAKES + 1] {
            let error =
                read::<TakeManyRequest<'_>>(many(count).as_bytes()).unwrap_err().to_string();
            assert_eq!(error, format!("invalid `requests`: expected 1 to 256 takes, not {count}"));
        }
        let error =
            read::<TakeManyRequest<'_>>(br#"{"requests":[{"key":"a"},{"key":1}]}"#).unwrap_err();
        assert_eq!(error.to_string(), "requests[1]: invalid `key` `1`: expected a string");
    }
}
