//! Attributes of requests, by name.

use std::{fmt, sync::Arc};

use sluicegate_core::{closest, one_of};
use sluicegate_headers::PathOptions;

/// A property of a request: a rule matches it, builds keys from it, or takes a cost from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Attribute {
    /// `method`, as `GET`.
    Method,
    /// `path`, in canonical form, without the query.
    Path,
    /// `path`, without the differences that a rule ignores.
    LoosePath(PathOptions),
    /// `path.NAME`: the segment that `{NAME}` in the path of the rule captures.
    Capture(Arc<str>),
    /// `header.NAME`, in lower case.
    Header(Arc<str>),
    /// `query.NAME`: a query parameter, decoded.
    Query(Arc<str>),
    /// `client`: the address of the client.
    Client,
    /// `descriptor.NAME`: the value of an entry of Envoy's descriptor.
    Descriptor(Arc<str>),
    /// `domain`: the domain of Envoy's rate limit filter.
    Domain,
}

/// Names of all attributes.
pub(crate) const KNOWN: [&str; 7] =
    ["method", "path", "header.NAME", "query.NAME", "client", "descriptor.NAME", "domain"];
/// Families of attributes: `header: {NAME: ...}` is `header.NAME: ...`.
pub(crate) const FAMILIES: [&str; 3] = ["header", "query", "descriptor"];
/// Common wrong names, with the attributes that they mean.
const OTHER_NAMES: [(&str, &str); 10] = [
    ("ip", "client"),
    ("address", "client"),
    ("remoteaddr", "client"),
    ("remoteaddress", "client"),
    ("clientip", "client"),
    ("url", "path"),
    ("uri", "path"),
    ("host", "header.host"),
    ("useragent", "header.user-agent"),
    ("authorization", "header.authorization"),
];

/// What is expected as the name of a header.
pub(crate) const HEADER_NAME: &str = "expected a header name of up to 256 letters, digits and `-`";

/// The name of a header in lower case, if it is one (`token` in RFC 9110): no request could have another.
pub(crate) fn header_name(name: &str) -> Option<String> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let fits = !name.is_empty() && name.len() <= 256 && name.bytes().all(is_valid);
    fits.then(|| name.to_ascii_lowercase())
}

/// The text after "expected" for `name`, which is not an attribute.
pub(crate) fn expected(name: &str) -> String {
    let plain: String = name.chars().filter(|it| it.is_alphanumeric()).collect();
    let other = OTHER_NAMES.iter().find(|(other, _)| plain.eq_ignore_ascii_case(other));
    if let Some(("header", rest)) = name.split_once('.')
        && !rest.is_empty()
    {
        return HEADER_NAME.to_owned();
    }
    let similar = match (other, name.split_once('.')) {
        (Some((_, similar)), _) => Some((*similar).to_owned()),
        (None, Some((family, rest))) if !rest.is_empty() => closest(family, &FAMILIES)
            .filter(|similar| *similar != family)
            .map(|similar| format!("{similar}.{rest}")),
        (None, _) if name.len() > 2 && name.to_ascii_lowercase().starts_with("x-") => {
            Some(format!("header.{}", name.to_ascii_lowercase()))
        }
        (None, _) => closest(name, &["method", "path", "client", "domain"]).map(ToOwned::to_owned),
    };
    match similar {
        Some(similar) => format!("did you mean `{similar}`?"),
        None => format!("expected {}", one_of(&KNOWN)),
    }
}

impl Attribute {
    /// The attribute called `name`, if there is one.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "method" => Self::Method,
            "path" => Self::Path,
            "client" => Self::Client,
            "domain" => Self::Domain,
            _ => {
                let (family, name) = name.split_once('.')?;
                Self::of_family(family, name)?
            }
        })
    }

    /// The path without the differences that `options` ignore.
    pub(crate) const fn path(options: PathOptions) -> Self {
        if options.is_strict() { Self::Path } else { Self::LoosePath(options) }
    }

    /// The differences between paths that it ignores.
    pub(crate) fn path_options(&self) -> PathOptions {
        match self {
            Self::LoosePath(options) => *options,
            _ => PathOptions::default(),
        }
    }

    /// Whether clients choose its value freely: a header, or a query parameter.
    pub(crate) const fn is_set_by_clients(&self) -> bool {
        matches!(self, Self::Header(_) | Self::Query(_))
    }

    /// Whether only requests from Envoy have it.
    pub(crate) const fn is_of_envoy(&self) -> bool {
        matches!(self, Self::Descriptor(_) | Self::Domain)
    }

    /// The attribute `name` of a family, such as `header` and `x-plan`.
    pub(crate) fn of_family(family: &str, name: &str) -> Option<Self> {
        if name.is_empty() || name.len() > 256 {
            return None;
        }
        Some(match family {
            "header" => Self::Header(header_name(name)?.into()),
            "query" => Self::Query(name.into()),
            "descriptor" => Self::Descriptor(name.into()),
            "path" => Self::Capture(name.into()),
            _ => return None,
        })
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Method => formatter.write_str("method"),
            Self::Path | Self::LoosePath(_) => formatter.write_str("path"),
            Self::Client => formatter.write_str("client"),
            Self::Domain => formatter.write_str("domain"),
            Self::Capture(name) => write!(formatter, "path.{name}"),
            Self::Header(name) => write!(formatter, "header.{name}"),
            Self::Query(name) => write!(formatter, "query.{name}"),
            Self::Descriptor(name) => write!(formatter, "descriptor.{name}"),
        }
    }
}
