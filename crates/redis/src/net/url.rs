//! URLs of stores.

use sluicegate_core::StoreError;

/// Default port of a server.
const PORT: u16 = 6379;
/// Default port of a sentinel.
const SENTINEL_PORT: u16 = 26379;

/// Address of a server. The host of a Unix socket is its path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// A parsed URL.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) kind: Kind,
    /// At least one.
    pub(crate) hosts: Vec<Address>,
    pub(crate) tls: bool,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
}

/// Kind of the hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Single,
    /// A server on this host.
    Unix,
    Cluster,
    /// Sentinels that monitor the primary of this name.
    Sentinel(String),
}

/// Schemes of the URLs of Redis and Valkey, without `+cluster` and `+sentinel`.
pub const SCHEMES: [&str; 5] = ["redis", "rediss", "valkey", "valkeys", "unix"];

/// Forms of these URLs, for error texts.
pub const URL_FORMS: &str = "redis://HOST, rediss://HOST, redis+cluster://HOST, redis+sentinel://HOST/NAME or unix:///PATH; \
     `valkey` means the same as `redis`";

/// Without the password.
impl std::fmt::Debug for Url {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, hosts, tls, user, password: _, database } = self;
        let mut debug = formatter.debug_struct("Url");
        debug.field("kind", kind).field("hosts", hosts).field("tls", tls);
        debug.field("user", user).field("database", database).finish_non_exhaustive()
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host, port } = self;
        if host.starts_with('/') {
            formatter.write_str(host)
        } else if host.contains(':') {
            write!(formatter, "[{host}]:{port}")
        } else {
            write!(formatter, "{host}:{port}")
        }
    }
}

impl Url {
    /// `redis[s][+cluster|+sentinel]://[[user]:password@]host[:port][,host[:port]...][/name][/database]`;
    /// a name, that of the primary, for sentinels only. Or `unix://[[user]:password@]/path[?db=database]`.
    pub(crate) fn parse(text: &str) -> Result<Self, StoreError> {
        if let Some(control) = text.chars().find(|it| it.is_control()) {
            let found = control.escape_debug();
            return Err(wrong(&format!(
                "invalid character `{found}`: expected it percent-encoded"
            )));
        }
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| wrong(&format!("missing `://`: expected {URL_FORMS}")))?;
        if scheme == "unix" {
            return Self::unix(rest);
        }
        let (tls, kind) = match scheme.split_once('+').unwrap_or((scheme, "")) {
            ("redis" | "valkey", kind) => (false, kind),
            ("rediss" | "valkeys", kind) => (true, kind),
            _ => {
                return Err(wrong(&format!("unknown scheme `{scheme}`: expected {URL_FORMS}")));
            }
        };
        let (endpoint, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, password, hosts) = login(endpoint)?;
        let (kind, database) = match kind {
            "" => (Kind::Single, path),
            "cluster" => (Kind::Cluster, path),
            "sentinel" => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                let name = decoded(name)?.ok_or_else(|| {
                    wrong("missing name of the primary: expected redis+sentinel://HOST/NAME")
                })?;
                (Kind::Sentinel(name), database)
            }
            _ => {
                return Err(wrong(&format!("unknown scheme `{scheme}`: expected {URL_FORMS}")));
            }
        };
        let database = number(database)?;
        if database != 0 && kind == Kind::Cluster {
            return Err(wrong("invalid database: a cluster has database 0 only"));
        }
        let port = if matches!(kind, Kind::Sentinel(_)) { SENTINEL_PORT } else { PORT };
        let hosts = hosts.split(',').map(|host| {
            address(host, port).ok_or_else(|| {
                wrong(&format!(
                    "invalid host `{host}`: expected HOST, HOST:PORT or [IPv6]:PORT, with a port from 0 to 65535"
                ))
            })
        });
        let hosts: Vec<_> = hosts.collect::<Result<_, _>>()?;
        if hosts.len() > 1 && kind == Kind::Single {
            return Err(wrong("several hosts: expected redis+cluster:// or redis+sentinel://"));
        }
        Ok(Self { kind, hosts, tls, user, password, database })
    }

    /// A Unix socket: the URL after its scheme.
    fn unix(rest: &str) -> Result<Self, StoreError> {
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let at = rest.find('/').unwrap_or(rest.len());
        let (user, password, host) = login(&rest[..at])?;
        let path = decoded(&rest[at..])?.filter(|path| host.is_empty() && path.len() > 1);
        let path = path.ok_or_else(|| wrong("missing path: expected unix:///PATH"))?;
        let database = match query.strip_prefix("db=") {
            Some(database) => number(database)?,
            None if query.is_empty() => 0,
            None => return Err(wrong(&format!("unknown option `{query}`: expected db=DATABASE"))),
        };
        let hosts = vec![Address { host: path, port: 0 }];
        Ok(Self { kind: Kind::Unix, hosts, tls: false, user, password, database })
    }
}

fn wrong(what: &str) -> StoreError {
    StoreError::Settings(format!("invalid store URL: {what}"))
}

/// User, password and hosts of `[[user]:password@]hosts`.
fn login(endpoint: &str) -> Result<(Option<String>, Option<String>, &str), StoreError> {
    let Some((login, hosts)) = endpoint.rsplit_once('@') else { return Ok((None, None, endpoint)) };
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    Ok((decoded(user)?, decoded(password)?, hosts))
}

/// The number of a database; 0 if it is missing.
fn number(database: &str) -> Result<i64, StoreError> {
    if database.is_empty() {
        return Ok(0);
    }
    database.parse().ok().filter(|it| *it >= 0).ok_or_else(|| {
        wrong(&format!("invalid database `{database}`: expected a whole number from 0"))
    })
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`.
fn address(text: &str, default: u16) -> Option<Address> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = port.map_or(Some(default), |port| port.parse().ok())?;
    (!host.is_empty()).then(|| Address { host: host.to_owned(), port })
}

/// Decodes `%xx`; `None` for an empty string.
fn decoded(text: &str) -> Result<Option<String>, StoreError> {
    let wrong = || wrong("expected two hexadecimal digits after `%`, and UTF-8");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = behind;
        bytes.push(match first {
            b'%' => {
                let digits = behind.get(..2).and_then(|it| std::str::from_utf8(it).ok());
                rest = behind.get(2..).unwrap_or_default();
                digits.and_then(|it| u8::from_str_radix(it, 16).ok()).ok_or_else(wrong)?
            }
            byte => *byte,
        });
    }
    let text = String::from_utf8(bytes).map_err(|_| wrong())?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match Url::parse(text) {
            Ok(url) => {
                let hosts: Vec<_> = url.hosts.iter().map(ToString::to_string).collect();
                let login = format!("{:?} {:?}", url.user, url.password);
                format!(
                    "{:?} {} tls={} {login} {}",
                    url.kind,
                    hosts.join(","),
                    url.tls,
                    url.database
                )
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn url_parse_accepts_every_kind() {
        for (text, expected) in [
            ("redis://a", "Single a:6379 tls=false None None 0"),
            ("rediss://u:p%40ss@[::1]:7/3", r#"Single [::1]:7 tls=true Some("u") Some("p@ss") 3"#),
            ("redis://:p@a:1", r#"Single a:1 tls=false None Some("p") 0"#),
            ("valkey://u@a", r#"Single a:6379 tls=false Some("u") None 0"#),
            ("redis+cluster://a,b:2", "Cluster a:6379,b:2 tls=false None None 0"),
            (
                "redis+sentinel://a,b/main/2",
                r#"Sentinel("main") a:26379,b:26379 tls=false None None 2"#,
            ),
            ("unix:///run/sg.sock", "Unix /run/sg.sock tls=false None None 0"),
            ("unix://:p@/a%20b?db=3", r#"Unix /a b tls=false None Some("p") 3"#),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn url_invalid_is_an_error_that_names_what_is_expected() {
        for (text, part) in [
            ("localhost:6379", "missing `://`"),
            ("http://a", "unknown scheme `http`"),
            ("redis+ring://a", "unknown scheme `redis+ring`"),
            ("redis://\u{1b}ab", "invalid character `\\u{1b}`: expected it percent-encoded"),
            ("redis://", "invalid host ``"),
            (
                "redis://a:99999",
                "invalid host `a:99999`: expected HOST, HOST:PORT or [IPv6]:PORT, with a port from 0 to 65535",
            ),
            ("redis://a,b", "redis+cluster://"),
            ("redis://a/x", "invalid database `x`"),
            ("redis+cluster://a/1", "database 0 only"),
            ("redis+sentinel://a", "missing name of the primary"),
            ("unix://run/sg.sock", "expected unix:///PATH"),
            ("unix:///", "expected unix:///PATH"),
            ("unix:///a?db=x", "invalid database `x`"),
            ("unix:///a?tls", "unknown option `tls`"),
            ("redis://%4:x@a", "two hexadecimal digits"),
        ] {
            assert!(shown(text).contains(part), "{text}: {}", shown(text));
        }
    }

    #[test]
    fn url_debug_hides_the_password() {
        let url = Url::parse("redis://u:secret@a").unwrap();
        assert!(!format!("{url:?}").contains("secret"));
    }
}
