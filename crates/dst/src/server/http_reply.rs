//! Responses of HTTP/1.1: their heads, and their bodies of JSON.

use serde_json::Value;
use sluicegate_core::{Decision, Retry, as_micros};

use super::reply::{Integers, Reply};

/// A response: its head, and what its body says.
pub(super) type Response = (Head, Reply);

/// The head of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) status: u16,
    /// Names in lower case, and values.
    fields: Vec<(String, String)>,
}

impl Head {
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|it| it.0 == name).map(|it| it.1.as_str())
    }

    /// The error in the head of a response about this decision under policies called `name`, if there is one. A query takes no
    /// units.
    pub(super) fn error(&self, decision: &Decision, name: &str, is_query: bool) -> Option<String> {
        let is_denial = !decision.allowed() && !is_query;
        let expected = if is_denial { 429 } else { 200 };
        if self.status != expected {
            return Some(format!("status {} in place of {expected}", self.status));
        }
        let seconds = match decision.retry() {
            Some(Retry::After(wait)) => Some(as_micros(wait).div_ceil(1_000_000)),
            _ => None,
        };
        let after = self.field("retry-after").map(str::to_owned);
        if after != seconds.filter(|_| is_denial).map(|it| it.to_string()) {
            return Some(format!("Retry-After {after:?} for {decision:?}"));
        }
        let limit = self.field("ratelimit").unwrap_or_default();
        let mut parts = limit.split(';');
        let named = parts.next().unwrap_or_default().trim_matches('"');
        let of_one = named == name;
        let of_several = named == format!("{name}-{}", decision.binding + 1);
        let remaining = parts.next() == Some(&format!("r={}", decision.remaining));
        let is_right = decision.allowed()
            || parts.next().map(str::to_owned) == seconds.map(|it| format!("t={it}"));
        let is_right = is_right && remaining && (of_one && decision.binding == 0 || of_several);
        (!is_right).then(|| format!("RateLimit `{limit}` for {decision:?} of {name}"))
    }
}

/// The first response in `bytes`, and its length. `None`: it is incomplete.
pub(super) fn first_of(bytes: &[u8]) -> Result<Option<(Response, usize)>, String> {
    let Some(end) = bytes.windows(4).position(|it| it == b"\r\n\r\n") else { return Ok(None) };
    let text = str::from_utf8(&bytes[..end]).map_err(|error| error.to_string())?;
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = first.strip_prefix("HTTP/1.1 ").and_then(|it| it.get(..3)?.parse().ok());
    let status = status.ok_or_else(|| format!("invalid status line `{first}`"))?;
    let fields = lines.map(|line| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_ascii_lowercase(), value.to_owned()))
    });
    let fields = fields.collect::<Option<_>>().ok_or("invalid header")?;
    let head = Head { status, fields };
    let length = head.field("content-length").and_then(|it| it.parse::<usize>().ok());
    let length = length.ok_or_else(|| format!("no length in {head:?}"))?;
    let Some(body) = bytes.get(end + 4..end + 4 + length) else { return Ok(None) };
    let reply = reply(&head, body);
    Ok(Some(((head, reply), end + 4 + length)))
}

fn reply(head: &Head, body: &[u8]) -> Reply {
    let other = || Reply::Other(format!("{} {}", head.status, String::from_utf8_lossy(body)));
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return other() };
    if let Some(Value::Bool(_)) = body.get("existed") {
        return Reply::Reset;
    }
    let Some(decision) = integers(&body) else {
        let detail = body.get("detail").and_then(Value::as_str);
        return detail.map_or_else(other, |detail| Reply::Error(detail.to_owned()));
    };
    let Some(key) = body.get("binding_key").and_then(Value::as_i64) else {
        return Reply::Decision(decision);
    };
    let each = body.get("decisions").and_then(Value::as_array);
    let each = each.and_then(|each| each.iter().map(integers).collect());
    each.map_or_else(other, |each| Reply::MultiKey { decision, key, each })
}

/// The integers of a decision.
fn integers(body: &Value) -> Option<Integers> {
    let number = |name| body.get(name)?.as_i64();
    let retry = match body.get("never") {
        Some(Value::Bool(true)) => -1,
        _ => number("retry_after_us")?,
    };
    Some([
        i64::from(body.get("allowed")?.as_bool()?),
        number("limit")?,
        number("remaining")?,
        retry,
        number("reset_after_us")?,
        number("delay_us")?,
        number("binding")?,
    ])
}
