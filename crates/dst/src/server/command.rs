//! Commands of clients, and their bytes of RESP.

use std::time::Duration;

use sluicegate_resp::encode_command;

use crate::plan::{Action, Request};

/// A command.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    One {
        key: usize,
        request: Request,
    },
    /// All or none. They wait if the timeout is more than 0.
    All {
        requests: Vec<(usize, Request)>,
        timeout: u64,
    },
    Wait {
        key: usize,
        request: Request,
        timeout: u64,
    },
}

impl Command {
    /// The commands of an action; `None` if it is not sent by commands.
    pub(crate) fn of(action: &Action) -> Option<Vec<Self>> {
        Some(match action {
            Action::Request(requests) => {
                requests.iter().map(|&(key, request)| Self::One { key, request }).collect()
            }
            // No protocol has a command for a peek.
            Action::All { requests, .. } if matches!(requests[..], [(_, Request::Peek(_)), ..]) => {
                return None;
            }
            Action::All { requests, timeout } => {
                vec![Self::All { requests: requests.clone(), timeout: *timeout }]
            }
            &Action::Wait { key, request, timeout } => vec![Self::Wait { key, request, timeout }],
            &Action::Pipeline { key, cost, count } => {
                vec![Self::One { key, request: Request::Take(cost) }; count]
            }
            _ => return None,
        })
    }
}

/// The name of a key.
pub(crate) fn key_name(index: usize) -> String {
    format!("key{index}")
}

impl Command {
    /// Appends the command as bytes of RESP. `keys` are the names and policies of the keys.
    pub(crate) fn encode(&self, keys: &[(String, String)], out: &mut Vec<u8>) {
        let mut words: Vec<String> = Vec::new();
        let key_name = |key: usize| keys[key].0.clone();
        let policy = |key: usize| keys[key].1.clone();
        match self {
            Self::One { key, request: Request::Reset } => {
                words.extend(["SG.RESET".into(), key_name(*key)]);
            }
            Self::One { key, request } => {
                let (name, options) = of_request(*request);
                words.extend([name.into(), key_name(*key), policy(*key)]);
                words.extend(options);
            }
            Self::All { requests, timeout } => {
                words.extend(["SG.TAKEALL".into(), requests.len().to_string()]);
                for (key, request) in requests {
                    words.extend([key_name(*key), policy(*key), request.cost().to_string()]);
                }
                if let Some((_, Request::Hold(id, _, ttl))) = requests.first() {
                    words.extend(["ID".into(), format!("hold{id}"), "TTL".into(), micros(*ttl)]);
                }
                if *timeout > 0 {
                    words.extend(["TIMEOUT".into(), micros(*timeout)]);
                }
            }
            Self::Wait { key, request, timeout } => {
                let (name, options) = of_request(*request);
                let name = if name == "SG.TAKE" { "SG.WAIT" } else { name };
                words.extend([name.into(), key_name(*key), policy(*key)]);
                words.extend(options);
                words.extend(["TIMEOUT".into(), micros(*timeout)]);
            }
        }
        let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
        encode_command(&words, out);
    }
}

impl Command {
    /// Its keys, with their requests.
    pub(crate) fn requests(&self) -> Vec<(usize, Request)> {
        match self {
            Self::One { key, request } | Self::Wait { key, request, .. } => vec![(*key, *request)],
            Self::All { requests, .. } => requests.clone(),
        }
    }

    /// The key that it names first.
    pub(super) fn first_key(&self) -> usize {
        self.requests().first().map_or(0, |it| it.0)
    }

    /// How long it may wait.
    pub(crate) const fn timeout(&self) -> Duration {
        match self {
            Self::Wait { timeout, .. } | Self::All { timeout, .. } => {
                Duration::from_millis(*timeout)
            }
            Self::One { .. } => Duration::ZERO,
        }
    }
}

fn micros(millis: u64) -> String {
    (millis * 1000).to_string()
}

/// The name of a command, and its arguments after the policy.
fn of_request(request: Request) -> (&'static str, Vec<String>) {
    let cost = |cost: u32| vec!["COST".to_owned(), cost.to_string()];
    match request {
        Request::Take(units) => ("SG.TAKE", cost(units)),
        Request::Peek(units) => ("SG.PEEK", cost(units)),
        Request::Charge(units) => ("SG.CHARGE", cost(units)),
        Request::Refund(units) => ("SG.REFUND", cost(units)),
        Request::Reserve(units, wait) => {
            ("SG.RESERVE", [cost(units), vec!["MAXWAIT".into(), micros(wait)]].concat())
        }
        Request::Reset => ("SG.RESET", Vec::new()),
        Request::Hold(id, units, ttl) => {
            let options = [cost(units), vec!["TTL".into(), micros(ttl)]].concat();
            ("SG.HOLD", [vec![format!("hold{id}")], options].concat())
        }
        Request::Settle(id, used) => {
            let used = used.map(|units| vec!["USED".into(), units.to_string()]);
            ("SG.SETTLE", [vec![format!("hold{id}")], used.unwrap_or_default()].concat())
        }
        Request::Renew(id, ttl) => {
            ("SG.RENEW", vec![format!("hold{id}"), "TTL".into(), micros(ttl)])
        }
    }
}
