//! Commands of clients, as requests of HTTP/1.1.

use serde_json::{Map, Value, json};

use super::command::Command;
use crate::plan::Request;

/// Appends the request for a command. `keys` are the names and policies of the keys.
pub(crate) fn encode(command: &Command, keys: &[(String, String)], out: &mut Vec<u8>) {
    let (path, body) = request(command, keys);
    let body = Value::Object(body).to_string();
    let head = format!(
        "POST /v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(body.as_bytes());
}

/// The last part of the path, and the body.
fn request(command: &Command, keys: &[(String, String)]) -> (&'static str, Map<String, Value>) {
    let key_name = |key: usize| keys[key].0.clone();
    let policy = |key: usize| keys[key].1.clone();
    let mut body = Map::new();
    let mut set = |name: &str, value: Value| {
        body.insert(name.to_owned(), value);
    };
    let path = match command {
        Command::One { key, request } => {
            set("key", json!(key_name(*key)));
            if *request != Request::Reset {
                set("policy", json!(policy(*key)));
            }
            one(*request, set)
        }
        Command::All { requests, timeout } => {
            let take = |&(key, it): &(usize, Request)| json!({"key": key_name(key), "policy": policy(key), "cost": it.cost()});
            set("takes", requests.iter().map(take).collect());
            if let Some((_, Request::Hold(id, _, ttl))) = requests.first() {
                set("id", json!(format!("hold{id}")));
                set("ttl_us", json!(ttl * 1000));
            }
            if *timeout > 0 {
                set("wait_us", json!(timeout * 1000));
            }
            "take_all"
        }
        Command::Wait { key, request, timeout } => {
            set("key", json!(key_name(*key)));
            set("policy", json!(policy(*key)));
            set("wait_us", json!(timeout * 1000));
            one(*request, set)
        }
    };
    (path, body)
}

/// The path for a request, whose members it sets.
fn one(request: Request, mut set: impl FnMut(&str, Value)) -> &'static str {
    if let Request::Hold(id, ..) | Request::Settle(id, _) | Request::Renew(id, _) = request {
        set("id", json!(format!("hold{id}")));
    }
    match request {
        Request::Take(cost)
        | Request::Peek(cost)
        | Request::Charge(cost)
        | Request::Refund(cost)
        | Request::Reserve(cost, _)
        | Request::Hold(_, cost, _) => set("cost", json!(cost)),
        Request::Reset | Request::Settle(..) | Request::Renew(..) => {}
    }
    match request {
        Request::Take(_) => "take",
        Request::Peek(_) => "peek",
        Request::Charge(_) => "charge",
        Request::Refund(_) => "refund",
        Request::Reserve(_, wait) => {
            set("max_wait_us", json!(wait * 1000));
            "reserve"
        }
        Request::Reset => "reset",
        Request::Hold(_, _, ttl) => {
            set("ttl_us", json!(ttl * 1000));
            "hold"
        }
        Request::Settle(_, used) => {
            if let Some(used) = used {
                set("used", json!(used));
            }
            "settle"
        }
        Request::Renew(_, ttl) => {
            set("ttl_us", json!(ttl * 1000));
            "renew"
        }
    }
}
