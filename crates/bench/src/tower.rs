//! The time that a layer adds to a request, in memory: ours beside tower_governor's.
//!
//! Both read the peer's address from axum's extension, and wrap a service that only replies when it is
//! polled, like an async function. The time of the bare service, including the creation of its request, is measured
//! too, and subtracted.

use std::{
    convert::Infallible,
    env,
    future::{Future, ready},
    hint::black_box,
    io,
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    process::Command,
    task::{Context, Poll, Waker},
};

use axum::{body::Body, extract::ConnectInfo};
use http::{Request, Response};
use sluicegate::{LocalLimiter, Policy};
use sluicegate_tower::{ClientAddress, HeaderStyle, RateLimitLayer};
use tower::{Layer, Service, limit::ConcurrencyLimitLayer, service_fn};
use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder};

use crate::{
    clock::per_call,
    others::Others,
    pin,
    report::{Bar, Peer, Table, median, time},
};

/// Sizes of a run.
struct Sizes {
    rounds: usize,
    calls: u64,
    clients: u32,
}

const FULL: Sizes = Sizes { rounds: 9, calls: 1_000_000, clients: 100_000 };
const QUICK: Sizes = Sizes { rounds: 2, calls: 1000, clients: 100 };

/// A limit: as a policy, and as a period in milliseconds with a burst.
struct Limit {
    policy: &'static str,
    millis: u64,
    burst: u32,
}

/// One unit per millisecond, with a burst that no run exhausts.
const ALLOWED: Limit =
    Limit { policy: "gcra:1000/1s:burst=100000000", millis: 1, burst: 100_000_000 };
/// One unit per day.
const DENIED: Limit = Limit { policy: "gcra:1/1d:burst=1", millis: 86_400_000, burst: 1 };

pub(crate) fn run(quick: bool) -> io::Result<()> {
    let sizes = if quick { QUICK } else { FULL };
    println!("tower: {} rounds of {} requests", sizes.rounds, sizes.calls);
    if let [core, ..] = pin::cores()?[..] {
        pin::pin(&[core])?;
    }
    let others = Others::start();
    let mut table = Table::comparison();
    let mut bare = Vec::new();
    for (what, limit, clients, headers) in [
        ("allowed, one client", &ALLOWED, 1, HeaderStyle::None),
        ("allowed, many clients", &ALLOWED, sizes.clients, HeaderStyle::None),
        ("allowed, one client, x-ratelimit", &ALLOWED, 1, HeaderStyle::XRateLimit),
        ("allowed, many clients, x-ratelimit", &ALLOWED, sizes.clients, HeaderStyle::XRateLimit),
        ("allowed, one client, headers", &ALLOWED, 1, HeaderStyle::Ietf),
        ("allowed, many clients, headers", &ALLOWED, sizes.clients, HeaderStyle::Ietf),
        ("denied, one client", &DENIED, 1, HeaderStyle::None),
    ] {
        let [base, ours, theirs] = compare(&sizes, limit, clients, headers, self::bare());
        bare.push(base);
        let (ours, theirs) = (ours - base, theirs - base);
        let peer = Peer::new("tower_governor 0.8", time(theirs));
        table.compare(what, time(ours), peer, ours / theirs, "of it", Bar::Below(1.0));
    }
    let [base, ours, theirs] = compare(&sizes, &ALLOWED, 1, HeaderStyle::None, prompt());
    let (ours, theirs) = (ours - base, theirs - base);
    let peer = Peer::new("tower_governor 0.8", time(theirs));
    let what = "allowed, one client, ready service";
    table.compare(what, time(ours), peer, ours / theirs, "of it", Bar::None);
    let others = others.summary(0.0);
    println!("{table}");
    println!(
        "The figures are added to the {} of a request to the bare service. `many clients`: {} in turn.\n\
         `headers`: ours are RateLimit-Policy and RateLimit, theirs x-ratelimit-limit and\n\
         x-ratelimit-remaining. `x-ratelimit`: ours are those two as well, and x-ratelimit-reset.\n\
         `ready service`: the service has its reply before it is polled. `denied`: each with its own\n\
         response, ours a problem document in JSON.",
        time(median(&bare)),
        sizes.clients,
    );
    println!("{others}");
    Ok(())
}

/// Processes that measure a hold. Where a process has its memory changes the time of tower's own limit by half.
const PROCESSES: usize = 9;

/// Adds the rows of a hold until the response is dropped, beside the permit of tower's own limit, which has no keys.
pub(crate) fn holds(quick: bool, table: &mut Table) -> io::Result<()> {
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..if quick { 1 } else { PROCESSES } {
        let mut process = Command::new(env::current_exe()?);
        let output = process.arg("tower-hold").args(quick.then_some("--quick")).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let figures: Vec<f64> = text.split_whitespace().filter_map(|it| it.parse().ok()).collect();
        let [base, our, their] = figures[..] else {
            return Err(io::Error::other(format!("tower-hold printed `{text}`")));
        };
        ours.push(our - base);
        theirs.push(their - base);
        ratios.push((our - base) / (their - base));
    }
    let (ours, theirs, ratio) = (median(&ours), median(&theirs), median(&ratios));
    let (work, peer) = ("tower: hold until the response ends", "tower's ConcurrencyLimit");
    let against = Peer::new(peer, time(theirs));
    table.compare(work, time(ours), against, ratio, "of it", Bar::AtMost(5.0));
    table.compare(work, time(ours), Peer::none(), ours, "ns", Bar::Below(400.0));
    Ok(())
}

/// Measures a hold in this process, and prints the nanoseconds of a request: to the bare service, with our layer, and with tower's.
pub(crate) fn hold_one(quick: bool) -> io::Result<()> {
    let sizes = if quick { QUICK } else { Sizes { rounds: 5, ..FULL } };
    if let [core, ..] = pin::cores()?[..] {
        pin::pin(&[core])?;
    }
    let policy: Policy = "concurrency:1000/30s".parse().expect("a policy");
    let ours = RateLimitLayer::new(LocalLimiter::new(), policy)
        .by(ClientAddress::peer().found_in::<ConnectInfo<SocketAddr>>())
        .headers(HeaderStyle::None)
        .hold()
        .layer(bare());
    let theirs = ConcurrencyLimitLayer::new(1000).layer(bare());
    let [base, ours, theirs] = rounds(&sizes, 1, &ALLOWED, bare(), ours, theirs);
    println!("{base} {ours} {theirs}");
    Ok(())
}

/// Nanoseconds per request: of the bare service, with our layer, and with theirs.
fn compare(
    sizes: &Sizes,
    limit: &Limit,
    clients: u32,
    headers: HeaderStyle,
    bare: impl Bare,
) -> [f64; 3] {
    let policy: Policy = limit.policy.parse().expect("a policy");
    let ours = RateLimitLayer::new(LocalLimiter::new(), policy)
        .by(ClientAddress::peer().found_in::<ConnectInfo<SocketAddr>>())
        .headers(headers)
        .layer(bare.clone());
    let mut config = GovernorConfigBuilder::default();
    config.per_millisecond(limit.millis).burst_size(limit.burst);
    if headers != HeaderStyle::None {
        let config = config.use_headers().finish().expect("not zero");
        rounds(sizes, clients, limit, bare.clone(), ours, GovernorLayer::new(config).layer(bare))
    } else {
        let config = config.finish().expect("not zero");
        rounds(sizes, clients, limit, bare.clone(), ours, GovernorLayer::new(config).layer(bare))
    }
}

/// The medians of all rounds.
fn rounds(
    sizes: &Sizes,
    clients: u32,
    limit: &Limit,
    mut bare: impl Limited,
    mut ours: impl Limited,
    mut theirs: impl Limited,
) -> [f64; 3] {
    // Creates every key, and spends the unit of a limit of one.
    for client in 0..clients {
        let first = [ours.answer(client), theirs.answer(client)];
        assert_eq!(first, [200; 2], "the first request of each passes");
    }
    let expected = if limit.burst > 1 { 200 } else { 429 };
    assert_eq!([ours.answer(0), theirs.answer(0)], [expected; 2], "both decide equally");
    let mut figures: [Vec<f64>; 3] = Default::default();
    for _ in 0..sizes.rounds {
        figures[0].push(requests(&mut bare, sizes.calls, clients));
        figures[1].push(requests(&mut ours, sizes.calls, clients));
        figures[2].push(requests(&mut theirs, sizes.calls, clients));
    }
    figures.map(|figures| median(&figures))
}

/// Nanoseconds per request.
fn requests(service: &mut impl Limited, calls: u64, clients: u32) -> f64 {
    let mut client = 0;
    per_call(calls, || {
        client = (client + 1) % clients;
        black_box(service.answer(black_box(client)));
    })
}

/// A service that is an async function.
fn bare() -> impl Bare {
    service_fn(|request: Request<Body>| async move {
        drop(black_box(request));
        Ok(Response::new(Body::empty()))
    })
}

/// A service that has its reply before it is polled. No real handler does; the compiler then removes most of the work
/// between the call and the reply.
fn prompt() -> impl Bare {
    service_fn(|request: Request<Body>| {
        drop(black_box(request));
        ready(Ok(Response::new(Body::empty())))
    })
}

/// The service that both layers wrap.
trait Bare:
    Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S> Bare for S where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// A service that replies to a request of a client.
trait Limited {
    /// Status of the reply.
    fn answer(&mut self, client: u32) -> u16;
}

impl<C, S: Service<Request<Body>, Response = Response<C>, Error = Infallible>> Limited for S {
    fn answer(&mut self, client: u32) -> u16 {
        let address = Ipv4Addr::from((10 << 24) + client);
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from((address, 4711))));
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(Ok(())) = self.poll_ready(&mut context) else { return 0 };
        match pin!(self.call(request)).poll(&mut context) {
            Poll::Ready(Ok(response)) => black_box(&response).status().as_u16(),
            Poll::Pending => 0,
        }
    }
}
