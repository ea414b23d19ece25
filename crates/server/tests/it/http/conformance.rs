//! HTTP against the conformance kit.

use sluicegate_conformance::{
    Answer, Invocation, Shape, Subject, check_histories, check_keys, check_traces,
};
use sluicegate_core::{Decision, Operation};

use super::client::{Client, HttpReply, server};

pub(crate) struct OverHttp(pub(crate) Client);

impl Subject for OverHttp {
    fn apply(&mut self, question: Invocation<'_>) -> Answer {
        let Invocation { key, policy, now, operation } = question;
        let mut max_wait = None;
        let (path, cost) = match operation {
            Operation::Take(cost) => ("/v1/take", cost),
            Operation::Peek(cost) => ("/v1/peek", cost),
            Operation::Charge(cost) => ("/v1/charge", cost),
            Operation::Refund(cost) => ("/v1/refund", cost),
            Operation::Reserve { cost, max_wait: span } => {
                max_wait = u64::try_from(span.as_micros()).ok().map(|span| span.min(1 << 50));
                ("/v1/reserve", cost)
            }
            Operation::Reset => {
                let mut body = key_json(key);
                body["at_us"] = now.as_micros().into();
                assert_eq!(self.0.post("/v1/reset", body.to_string()).status, 200);
                ("/v1/peek", 0)
            }
        };
        let mut body = key_json(key);
        body["policy"] = policy.to_string().into();
        body["cost"] = cost.into();
        body["at_us"] = now.as_micros().into();
        if let Some(max_wait) = max_wait {
            body["max_wait_us"] = max_wait.into();
        }
        let reply = self.0.post(path, body.to_string());
        match reply.status {
            200 | 429 => Ok(decision(&reply)),
            _ => Err(reply.detail()),
        }
    }
}

/// A question about a key: as text where it is one.
fn key_json(key: &[u8]) -> serde_json::Value {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    match std::str::from_utf8(key) {
        Ok(text) => serde_json::json!({ "key": text }),
        Err(_) => serde_json::json!({ "key_base64": STANDARD.encode(key) }),
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
