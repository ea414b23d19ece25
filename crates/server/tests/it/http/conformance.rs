//! HTTP against the conformance kit.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;
use sluicegate_conformance::{
    Answer, Invocation, Shape, Subject, check_histories, check_hold_histories, check_hold_traces,
    check_keys, check_traces,
};
use sluicegate_core::{Decision, Operation, as_micros};

use super::client::{Client, HttpReply, server};

pub(crate) struct OverHttp(pub(crate) Client);

impl Subject for OverHttp {
    fn apply(&mut self, question: Invocation<'_>) -> Answer {
        let Invocation { key, policy, now, operation } = question;
        let number = |name: &str, number: u64| (name.to_owned(), Value::from(number));
        let mut members = vec![member("key", key), number("at_us", now.as_micros())];
        if operation == Operation::Reset {
            let body = Value::from_iter(members.clone());
            assert_eq!(self.0.post("/v1/reset", body.to_string()).status, 200);
        }
        members.push(("policy".to_owned(), policy.to_string().into()));
        members.extend(operation.id().map(|id| member("id", id)));
        let (mut ttl, mut used, mut max_wait) = (None, None, None);
        let path = match operation {
            Operation::Take(_) => "/v1/take",
            Operation::Peek(_) | Operation::Reset => "/v1/peek",
            Operation::Charge(_) => "/v1/charge",
            Operation::Refund(_) => "/v1/refund",
            Operation::Reserve { max_wait: span, .. } => {
                max_wait = Some(as_micros(span).min(1 << 50));
                "/v1/reserve"
            }
            Operation::Hold { ttl: span, .. } => {
                ttl = span.map(as_micros);
                "/v1/hold"
            }
            Operation::Settle { used: units, .. } => {
                used = units.map(u64::from);
                "/v1/settle"
            }
            Operation::Renew { ttl: span, .. } => {
                ttl = span.map(as_micros);
                "/v1/renew"
            }
        };
        let has_no_cost = matches!(operation, Operation::Settle { .. } | Operation::Renew { .. });
        let cost = (!has_no_cost).then(|| operation.cost().into());
        let numbers = [("cost", cost), ("ttl_us", ttl), ("used", used), ("max_wait_us", max_wait)];
        let numbers = numbers.into_iter().filter_map(|(name, it)| Some(number(name, it?)));
        let body = Value::from_iter(members.into_iter().chain(numbers));
        let reply = self.0.post(path, body.to_string());
        match reply.status {
            200 | 429 => Ok(decision(&reply)),
            _ => Err(reply.detail()),
        }
    }
}

/// A member of the body with these bytes: as text if they are UTF-8.
fn member(name: &str, bytes: &[u8]) -> (String, Value) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (name.to_owned(), text.into()),
        Err(_) => (format!("{name}_base64"), STANDARD.encode(bytes).into()),
    }
}

fn decision(reply: &HttpReply) -> Decision {
    let json = reply.json();
    let allowed = json["allowed"].as_bool().unwrap();
    // A peek that would be denied has status 200 too.
    assert!(!allowed || reply.status == 200);
    let number = |name: &str| json[name].as_i64().unwrap();
    let retry = if json["never"] == true {
        assert!(json["retry_after_us"].is_null());
        -1
    } else {
        number("retry_after_us")
    };
    let integers = [
        allowed.into(),
        number("limit"),
        number("remaining"),
        retry,
        number("reset_after_us"),
        number("delay_us"),
        number("binding"),
    ];
    Decision::from_integers(&integers).unwrap_or_else(|| panic!("no decision: {integers:?}"))
}

#[test]
fn http_all_traces_agree_with_the_core() {
    let running = server(|config| config.test_clock = true);
    check_traces(&mut OverHttp(Client::connect(&running)));
    let running = server(|config| config.test_clock = true);
    check_keys(&mut OverHttp(Client::connect(&running)));
}

#[test]
fn http_random_histories_agree_with_the_core() {
    let running = server(|config| config.test_clock = true);
    check_histories(&mut OverHttp(Client::connect(&running)), 500, 100, Shape::default());
}

#[test]
fn http_random_histories_of_holds_agree_with_the_core() {
    let running = server(|config| config.test_clock = true);
    let subject = &mut OverHttp(Client::connect(&running));
    check_hold_traces(subject);
    check_hold_histories(subject, 7_000, 100, Shape::default());
}
