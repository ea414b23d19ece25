//! The policy of a request.

use std::{
    borrow::Cow,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use http::Method;
use sluicegate_core::{OnError, Policy, PreparedPolicy};
use sluicegate_headers::{PathOptions, RateLimitHeaders, Readings, canonical_path};

use crate::{Head, key_bytes};

/// A policy with a name. Response headers contain the name, and keys begin with it: policies with different names
/// never share a count. Create it once; clones are cheap.
#[derive(Clone, Debug)]
pub struct NamedPolicy(Arc<Named>);

#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) name: Box<str>,
    pub(crate) policy: PreparedPolicy,
    /// Its response headers.
    pub(crate) fields: RateLimitHeaders,
    /// The start of keys.
    pub(crate) start: Box<[u8]>,
    /// A unique number, not 0.
    pub(crate) number: u64,
}

/// The next number.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

impl NamedPolicy {
    /// Gives `policy` a name. Use printable ASCII, because headers contain it. Every decision comes from the store:
    /// while it is unavailable, no decision is made.
    #[must_use]
    pub fn new(name: &str, policy: Policy) -> Self {
        Self::prepared(name, PreparedPolicy::from(policy).on_error(OnError::Fail))
    }

    /// Gives a policy with settings a name: leases, and the answer while the store is unavailable.
    ///
    /// ```
    /// use sluicegate::{OnError, PreparedPolicy};
    /// use sluicegate_tower::NamedPolicy;
    ///
    /// let policy: PreparedPolicy = "gcra:1000/1s".parse()?;
    /// let policy = NamedPolicy::prepared("api", policy.lease(100)?.on_error(OnError::Allow));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn prepared(name: &str, policy: PreparedPolicy) -> Self {
        let fields = RateLimitHeaders::new(name, policy.policy());
        let mut start = key_bytes::Bytes::new();
        key_bytes::push(name.as_bytes(), &mut start);
        Self(Arc::new(Named {
            name: name.into(),
            policy,
            fields,
            start: Box::from(&*start),
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
        }))
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        self.0.policy.policy()
    }

    #[inline]
    pub(crate) fn inner(&self) -> &Named {
        &self.0
    }
}

/// A policy without a name is called `default`.
impl From<Policy> for NamedPolicy {
    fn from(policy: Policy) -> Self {
        Self::new("default", policy)
    }
}

/// Policies by method and path. The first route that matches is used.
///
/// Servers read some paths differently (`/x%2f..%2flogin`). Such a path matches a limited route if any reading
/// does, and an unlimited route only if all do. The case of letters, a trailing slash and `;parameters` count,
/// unless [`ignoring`](Self::ignoring) excludes them.
///
/// ```
/// use http::Method;
/// use sluicegate_tower::{NamedPolicy, Routes};
///
/// let routes = Routes::new()
///     .unlimited("/health")
///     .on(Method::POST, "/login", NamedPolicy::new("login", "gcra:5/1m".parse()?))
///     .at("/api/*", NamedPolicy::new("api", "gcra:100/1s".parse()?))
///     .otherwise(NamedPolicy::new("other", "gcra:1000/1m".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Routes {
    routes: Vec<Route>,
    otherwise: Option<NamedPolicy>,
    options: PathOptions,
}

#[derive(Clone, Debug)]
struct Route {
    method: Option<Method>,
    /// In canonical form.
    path: String,
    /// `None`: no limit.
    policy: Option<NamedPolicy>,
}

impl Routes {
    /// No routes: no request is limited.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits requests to `path` in any spelling: a whole path or, with `/*` at its end, everything below it.
    #[must_use]
    pub fn at(self, path: &str, policy: impl Into<NamedPolicy>) -> Self {
        self.with(None, path, Some(policy.into()))
    }

    /// Limits requests to `path` with one method.
    #[must_use]
    pub fn on(self, method: Method, path: &str, policy: impl Into<NamedPolicy>) -> Self {
        self.with(Some(method), path, Some(policy.into()))
    }

    /// Exempts requests to `path`.
    #[must_use]
    pub fn unlimited(self, path: &str) -> Self {
        self.with(None, path, None)
    }

    /// Limits all other requests. Without this, they are unlimited.
    #[must_use]
    pub fn otherwise(mut self, policy: impl Into<NamedPolicy>) -> Self {
        self.otherwise = Some(policy.into());
        self
    }

    /// Sets which differences between paths all routes ignore.
    #[must_use]
    pub fn ignoring(mut self, options: PathOptions) -> Self {
        self.options = options;
        self
    }

    fn with(mut self, method: Option<Method>, path: &str, policy: Option<NamedPolicy>) -> Self {
        let path = canonical_path(path).into_owned();
        self.routes.push(Route { method, path, policy });
        self
    }

    fn find(&self, head: &Head<'_>) -> Option<&NamedPolicy> {
        let readings = Readings::of(head.path());
        let fits = |route: &&Route| {
            route.method.as_ref().is_none_or(|method| method == head.method)
                && route.fits(&readings, self.options)
        };
        match self.routes.iter().find(fits) {
            Some(route) => route.policy.as_ref(),
            None => self.otherwise.as_ref(),
        }
    }
}

impl Route {
    fn fits(&self, readings: &Readings<'_>, options: PathOptions) -> bool {
        let mut paths = readings.all().map(|reading| &*reading.path);
        match &readings.others {
            None => self.fits_path(&readings.first.path, options),
            Some(_) if self.policy.is_some() => paths.any(|path| self.fits_path(path, options)),
            Some(others) => {
                let as_sent = others.as_sent.as_ref().map(|reading| &*reading.path);
                paths.chain(as_sent).all(|path| self.fits_path(path, options))
            }
        }
    }

    fn fits_path(&self, path: &str, options: PathOptions) -> bool {
        let path = options.apply(path);
        match self.path.strip_suffix('*') {
            Some(above) if above.ends_with('/') => {
                let above = options.apply(above);
                let rest = path.strip_prefix(above.trim_end_matches('/'));
                rest.is_some_and(|rest| rest.starts_with('/'))
            }
            _ => path == options.apply(&self.path),
        }
    }
}

/// The policy of a request: one for all, one by route, or one chosen by a function.
#[derive(Clone)]
pub struct Rules(Kind);

#[derive(Clone)]
enum Kind {
    One(NamedPolicy),
    Routes(Routes),
    By(Arc<By>),
}

type By = dyn Fn(&Head<'_>) -> Option<NamedPolicy> + Send + Sync;

impl Rules {
    /// The policy that `choose` returns; `None` is no limit. Create the policies once and clone them.
    ///
    /// ```
    /// use sluicegate_tower::{NamedPolicy, Rules};
    ///
    /// #[derive(Clone)]
    /// enum Plan { Internal, Paid } // set by the authentication middleware
    ///
    /// let free = NamedPolicy::new("free", "gcra:10/1s".parse()?);
    /// let paid = NamedPolicy::new("paid", "gcra:1000/1s".parse()?);
    /// let rules = Rules::by(move |head| match head.extensions.get::<Plan>() {
    ///     Some(Plan::Internal) => None,
    ///     Some(Plan::Paid) => Some(paid.clone()),
    ///     None => Some(free.clone()),
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn by(choose: impl Fn(&Head<'_>) -> Option<NamedPolicy> + Send + Sync + 'static) -> Self {
        Self(Kind::By(Arc::new(choose)))
    }

    /// The policy, if all requests have the same.
    #[inline]
    pub(crate) const fn one(&self) -> Option<&NamedPolicy> {
        match &self.0 {
            Kind::One(policy) => Some(policy),
            Kind::Routes(_) | Kind::By(_) => None,
        }
    }

    /// The policy of a request.
    pub(crate) fn find(&self, head: &Head<'_>) -> Option<Cow<'_, NamedPolicy>> {
        match &self.0 {
            Kind::One(policy) => Some(Cow::Borrowed(policy)),
            Kind::Routes(routes) => routes.find(head).map(Cow::Borrowed),
            Kind::By(choose) => choose(head).map(Cow::Owned),
        }
    }
}

impl From<Policy> for Rules {
    fn from(policy: Policy) -> Self {
        NamedPolicy::from(policy).into()
    }
}

impl From<NamedPolicy> for Rules {
    fn from(policy: NamedPolicy) -> Self {
        Self(Kind::One(policy))
    }
}

impl From<Routes> for Rules {
    fn from(routes: Routes) -> Self {
        Self(Kind::Routes(routes))
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::One(policy) => policy.fmt(formatter),
            Kind::Routes(routes) => routes.fmt(formatter),
            Kind::By(_) => formatter.write_str("Rules::by"),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn routes_several_match_first_is_used() {
        let named = |name: &str| NamedPolicy::new(name, "gcra:1/1s".parse().unwrap());
        let routes = Routes::new()
            .unlimited("/health")
            .on(Method::POST, "/login", named("login"))
            .at("/api/*", named("api"))
            .at("/a*", named("a star"));
        let rules = [Rules::from(routes.clone()), routes.otherwise(named("other")).into()];
        for (method, path, names) in [
            (Method::GET, "/health", [None, None]),
            (Method::POST, "/login", [Some("login"); 2]),
            (Method::GET, "/login", [None, Some("other")]),
            (Method::POST, "/login/", [None, Some("other")]),
            (Method::GET, "/api/x?y=/login", [Some("api"); 2]),
            (Method::GET, "/api", [None, Some("other")]),
            (Method::GET, "/apis", [None, Some("other")]),
            (Method::GET, "/a*", [Some("a star"); 2]),
        ] {
            let request = Request::builder().method(&method).uri(path).body(()).unwrap();
            let found = rules.each_ref().map(|it| it.find(&Head::of(&request)));
            let found = found.each_ref().map(|it| it.as_ref().map(|it| it.name()));
            assert_eq!(found, names, "{method} {path}");
        }
    }

    #[test]
    fn find_no_spelling_escapes_a_route_or_reaches_an_exemption() {
        let named = |name: &str| NamedPolicy::new(name, "gcra:1/1s".parse().unwrap());
        let routes = Routes::new()
            .unlimited("/health")
            .unlimited("/static/*")
            .at("/login", named("login"))
            .otherwise(named("other"));
        let find = |routes: &Routes, path: &str| {
            let request = Request::builder().uri(path).body(()).unwrap();
            Rules::from(routes.clone()).find(&Head::of(&request)).map(|it| it.name().to_owned())
        };
        for (path, expected) in [
            ("/health", None),
            ("/static/a", None),
            ("/static/a%20b", None),
            ("/login", Some("login")),
            ("/%6cogin", Some("login")),
            ("/%2flogin", Some("login")),
            ("//login", Some("login")),
            ("/x/../login", Some("login")),
            ("/x%2f..%2flogin", Some("login")),
            ("/static/..%2flogin", Some("login")),
            ("http://h/login", Some("login")),
            ("//health", Some("other")),
            ("/static/../x", Some("other")),
            ("/LOGIN", Some("other")),
            ("/login/", Some("other")),
            ("/login;x", Some("other")),
        ] {
            assert_eq!(find(&routes, path).as_deref(), expected, "{path}");
        }
        let loose = routes.ignoring(PathOptions {
            ignore_case: true,
            ignore_trailing_slash: true,
            strip_parameters: true,
        });
        for path in ["/LOGIN", "/login/", "/login;x", "/login"] {
            assert_eq!(find(&loose, path).as_deref(), Some("login"), "{path}");
        }
        assert_eq!(find(&loose, "/Static/a/"), None);
    }
}
