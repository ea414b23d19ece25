//! Reads `tests`: examples of requests with their expected results.

use std::{net::IpAddr, time::Duration};

use sluicegate_core::{MAX_DRAIN, parse_period};

use crate::{
    error::{Fault, quoted},
    request::Request,
    tree::{Fields, Kind, Node, YamlVersion},
};

/// Maximum number of requests of a step.
const MAX_TIMES: u32 = 100_000;
/// Longest duration, in microseconds.
const MAX_DURATION: u64 = MAX_DRAIN;

/// An example of requests with their expected results.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Example {
    /// Its name.
    pub name: String,
    /// Index of its source.
    pub source: usize,
    /// First line in its source.
    pub line: usize,
    pub(crate) request: ExampleRequest,
    /// Expected names of the rules that match, in order.
    pub(crate) rules: Option<Vec<String>>,
    /// Expected policies and keys of all charges, in order.
    pub(crate) policies: Option<Vec<String>>,
    pub(crate) keys: Option<Vec<String>>,
    pub(crate) steps: Vec<Step>,
}

impl Example {
    /// Number of requests in it.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.steps.iter().map(|step| u64::from(step.times)).sum()
    }
}

/// A request of an example.
#[derive(Clone, Debug)]
pub(crate) enum ExampleRequest {
    Http { method: String, target: String, headers: Vec<(String, String)>, client: Option<IpAddr> },
    Envoy { domain: String, descriptors: Vec<Vec<(String, String)>>, hits: u32 },
}

impl ExampleRequest {
    /// The request that rules match, if it is an HTTP request.
    pub(crate) fn http(&self) -> Option<Request<'_>> {
        let Self::Http { method, target, headers, client } = self else { return None };
        let request = Request::http(method, target, headers);
        Some(client.map_or_else(|| request.clone(), |client| request.clone().from(client)))
    }
}

/// Equal requests at the same time, with the expected result of each.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) line: usize,
    pub(crate) at: Duration,
    pub(crate) times: u32,
    /// Replaces the request of the example.
    pub(crate) request: Option<ExampleRequest>,
    pub(crate) expect: Expect,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Expect {
    pub(crate) allowed: Option<bool>,
    /// The binding rule, or a level of it: `api`, `api/user`.
    pub(crate) rule: Option<String>,
    pub(crate) remaining: Option<u32>,
    pub(crate) retry_after: Option<Duration>,
}

pub(crate) fn read(node: &Node, source: usize) -> Result<Example, Fault> {
    let mut fields = Fields::of(node, "a test")?;
    let name = fields.require("name", "a string that describes the test")?;
    let name = name.text("name")?.to_string();
    let Some(request) = request(&mut fields)? else {
        let expected = "expected `request`, or `domain` and `descriptors`";
        return Err(node.fault(format!("missing request of a test: {expected}")));
    };
    let rules = texts(&mut fields, "rules")?;
    let policies = texts(&mut fields, "policy")?;
    let keys = texts(&mut fields, "key")?;
    let steps = match fields.take("steps") {
        Some(steps) => {
            if let Some((field, node)) = EXPECT.iter().find_map(|it| Some((it, fields.take(it)?))) {
                let message = format!("invalid `{field}` beside `steps`: expected it in a step");
                return Err(node.fault(message));
            }
            read_steps(steps)?
        }
        None => {
            let expect = expect(&mut fields)?;
            let at = Duration::ZERO;
            vec![Step { line: node.at.line, at, times: 1, request: None, expect }]
        }
    };
    fields.finish()?;
    Ok(Example { name, source, line: node.at.line, request, rules, policies, keys, steps })
}

fn read_steps(node: &Node) -> Result<Vec<Step>, Fault> {
    let mut at = Duration::ZERO;
    let mut steps = Vec::new();
    for node in node.list("steps")? {
        let step = read_step(node, at)?;
        at = step.at;
        steps.push(step);
    }
    if steps.is_empty() {
        return Err(node.fault("invalid number of steps `0`: expected at least one"));
    }
    Ok(steps)
}

fn read_step(node: &Node, before: Duration) -> Result<Step, Fault> {
    let mut fields = Fields::of(node, "a step")?;
    let at = fields.read("at", |node| match duration(node, "at")? {
        at if at >= before => Ok(at),
        _ => Err(node.fault(format!(
            "invalid at {}: expected a time not before that of the step above",
            node.described()
        ))),
    })?;
    let times =
        fields.read("times", |node| match node.number("times", 1, YamlVersion::V1_2)? {
            times @ ..=MAX_TIMES => Ok(times),
            times => Err(node.fault(format!("invalid times `{times}`: expected 1 to {MAX_TIMES}"))),
        })?;
    let request = request(&mut fields)?;
    let expect = expect(&mut fields)?;
    fields.finish()?;
    let (at, times) = (at.unwrap_or(before), times.unwrap_or(1));
    Ok(Step { line: node.at.line, at, times, request, expect })
}

/// Reads `request`, or `domain` with `descriptors` and `hits`.
fn request(fields: &mut Fields<'_>) -> Result<Option<ExampleRequest>, Fault> {
    let (request, domain) = (fields.take("request"), fields.take("domain"));
    let (descriptors, hits) = (fields.take("descriptors"), fields.take("hits"));
    if let (Some(hits), None) = (hits, descriptors) {
        return Err(hits.fault("invalid `hits` without `descriptors`: expected both, and `domain`"));
    }
    match (request, domain, descriptors) {
        (Some(request), None, None) => http(request).map(Some),
        (None, Some(domain), Some(descriptors)) => {
            let read = descriptors.list("descriptors")?.iter().map(|it| pairs(it, "descriptor"));
            Ok(Some(ExampleRequest::Envoy {
                domain: domain.text("domain")?.to_string(),
                descriptors: read.collect::<Result<_, _>>()?,
                hits: hits.map_or(Ok(1), |it| it.number("hits", 0, YamlVersion::V1_2))?,
            }))
        }
        (None, None, None) => Ok(None),
        (Some(request), ..) => {
            let other = if domain.is_some() { "domain" } else { "descriptors" };
            let expected = "expected `request`, or `domain` and `descriptors`";
            Err(request.fault(format!("invalid `request` beside `{other}`: {expected}")))
        }
        (None, Some(domain), None) => {
            Err(domain.fault("invalid `domain` without `descriptors`: expected both"))
        }
        (None, None, Some(descriptors)) => {
            Err(descriptors.fault("invalid `descriptors` without `domain`: expected both"))
        }
    }
}

fn http(node: &Node) -> Result<ExampleRequest, Fault> {
    let mut fields = Fields::of(node, "a request")?;
    let method = fields.text("method")?.map_or("GET", |method| method).to_owned();
    let target = fields.text("path")?.map_or("/", |path| path).to_owned();
    let headers = fields.read("headers", |node| pairs(node, "headers"))?.unwrap_or_default();
    let client = fields.read("client", |node| {
        let text = node.text("client")?;
        text.parse().map_err(|_| {
            let shown = quoted(text);
            node.fault(format!("invalid client {shown}: expected an address such as `203.0.113.7`"))
        })
    });
    fields.finish()?;
    Ok(ExampleRequest::Http { method, target, headers, client: client? })
}

fn pairs(node: &Node, what: &str) -> Result<Vec<(String, String)>, Fault> {
    let entries = node.map(what)?.iter();
    let pairs = entries.map(|it| Ok((it.key.to_string(), value(&it.value)?)));
    pairs.collect()
}

/// A string; null is empty.
fn value(node: &Node) -> Result<String, Fault> {
    if node.is_null() { Ok(String::new()) } else { Ok(node.text("value")?.to_string()) }
}

fn texts(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<Vec<String>>, Fault> {
    fields.read(name, |node| {
        node.one_or_many().iter().map(|it| Ok(it.text(name)?.to_string())).collect()
    })
}

/// The fields that [`expect`] reads.
const EXPECT: [&str; 4] = ["expect", "rule", "remaining", "retry_after"];

fn expect(fields: &mut Fields<'_>) -> Result<Expect, Fault> {
    let allowed = fields.read("expect", |node| match &node.kind {
        Kind::Scalar { text, .. } if **text == *"allow" => Ok(true),
        Kind::Scalar { text, .. } if **text == *"deny" => Ok(false),
        _ => {
            let shown = node.described();
            Err(node.fault(format!("invalid expect {shown}: expected `allow` or `deny`")))
        }
    });
    Ok(Expect {
        allowed: allowed?,
        rule: fields.text("rule")?.map(ToString::to_string),
        remaining: fields.number("remaining", 0)?,
        retry_after: fields.read("retry_after", |it| duration(it, "retry_after"))?,
    })
}

fn duration(node: &Node, what: &str) -> Result<Duration, Fault> {
    let text = node.text(what)?;
    sum_of_periods(text).ok_or_else(|| {
        let shown = quoted(text);
        node.fault(format!(
            "invalid {what} {shown}: expected a duration such as `250ms`, `90s`, `1m30s` or `2h`"
        ))
    })
}

/// The duration of a text such as `90s` or `1m30s`; `0` needs no unit.
fn sum_of_periods(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut sum, mut rest) = (0_u64, text);
    loop {
        let unit = rest.find(|char: char| !char.is_ascii_digit()).filter(|unit| *unit > 0)?;
        let next = rest[unit..].find(|char: char| char.is_ascii_digit());
        let (period, others) = rest.split_at(next.map_or(rest.len(), |next| unit + next));
        sum = sum.saturating_add(parse_period(period)?);
        if others.is_empty() {
            return (sum <= MAX_DURATION).then(|| Duration::from_micros(sum));
        }
        rest = others;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_of_periods_one_or_several_are_added() {
        for (text, micros) in [
            ("0", 0),
            ("0s", 0),
            ("250ms", 250_000),
            ("1m30s", 90_000_000),
            ("1w2d3h4m5s6ms7us", 788_645_006_007),
            ("1min30sec", 90_000_000),
            ("1125899906842624us", 1 << 50),
        ] {
            assert_eq!(sum_of_periods(text), Some(Duration::from_micros(micros)), "{text}");
        }
        for text in ",s,1,1m30,1m-30s,1.5s,1 s,1M,1x,1125899906842625us,9e9s".split(',') {
            assert_eq!(sum_of_periods(text), None, "{text}");
        }
    }
}
