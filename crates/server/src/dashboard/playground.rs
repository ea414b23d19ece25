//! The playground: decisions under any policy, at any time.
//!
//! The core decides, and the server keeps no state: the response contains the state as bytes, and the next request
//! sends it back.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use sluicegate_commands::{KeyDescription, LimitDescription, PolicyText};
use sluicegate_core::{Entry, Operation, Policy, Retry, Timestamp, apply, as_micros};

use crate::protocols::http::without_class;

/// Maximum number of takes in one request.
const MAX_TAKES: usize = 512;
/// Maximum length of the state in a request or response, in bytes.
const MAX_STATE: usize = 48 * 1024;

/// Takes to decide.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlayRequest {
    policy: String,
    /// The state of the previous response, in Base64; none at first.
    #[serde(default)]
    state: Option<String>,
    /// The current time, in microseconds since the Unix epoch.
    now_us: u64,
    #[serde(default)]
    takes: Vec<Step>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    at_us: u64,
    cost: u32,
}

/// Their decisions, and the new state.
#[derive(Debug, Serialize)]
pub(super) struct PlayResponse {
    /// The policy in canonical form.
    policy: String,
    state: Option<String>,
    decisions: Vec<PlayDecision>,
    /// The decision on a request of cost 1 at the current time.
    next: PlayDecision,
    /// The usage of each limit at the current time.
    limits: Vec<Level>,
}

/// A decision of the playground.
#[derive(Debug, Serialize)]
struct PlayDecision {
    at_us: u64,
    allowed: bool,
    remaining: u32,
    /// `None`: allowed, or never.
    retry_after_us: Option<u64>,
    never: bool,
    reset_after_us: u64,
    delay_us: u64,
    /// The index of the binding limit.
    binding: i64,
}

/// The usage of one limit.
#[derive(Debug, Serialize)]
pub(super) struct Level {
    limit: String,
    capacity: i64,
    used: i64,
    remaining: i64,
    reset_after_us: i64,
}

impl From<LimitDescription> for Level {
    fn from(it: LimitDescription) -> Self {
        let LimitDescription { limit, capacity, used, remaining, reset_after_us, .. } = it;
        Self { limit, capacity, used, remaining, reset_after_us }
    }
}

/// Decides the takes, or returns the reason why it cannot.
pub(super) fn play(play: &PlayRequest) -> Result<PlayResponse, String> {
    let text = PolicyText::Text(play.policy.as_bytes());
    let policy = text.parse().map_err(|error| without_class(&error.to_string()).to_owned())?;
    if play.takes.len() > MAX_TAKES {
        return Err(format!(
            "invalid takes: expected at most {MAX_TAKES}, got {}",
            play.takes.len()
        ));
    }
    let mut entry = play.state.as_deref().map(state).transpose()?;
    let decide = |entry: &mut Option<Entry>, at_us, operation| {
        let at = Timestamp::saturating_from_micros(at_us);
        let decision = apply(&policy, entry, at, operation).map_err(|error| error.to_string())?;
        let [.., binding] = decision.to_integers();
        Ok::<_, String>(PlayDecision {
            at_us,
            allowed: decision.allowed(),
            remaining: decision.remaining,
            retry_after_us: match decision.retry() {
                Some(Retry::After(span)) => Some(as_micros(span)),
                Some(Retry::Never) | None => None,
            },
            never: decision.retry() == Some(Retry::Never),
            reset_after_us: as_micros(decision.reset_after),
            delay_us: as_micros(decision.delay()),
            binding,
        })
    };
    let take = |step: &Step| decide(&mut entry, step.at_us, Operation::Take(step.cost));
    let decisions = play.takes.iter().map(take).collect::<Result<Vec<_>, _>>()?;
    let next = decide(&mut entry, play.now_us, Operation::Peek(1))?;
    let now = Timestamp::saturating_from_micros(play.now_us);
    let bytes = entry.as_ref().map(Entry::encode);
    if bytes.as_ref().is_some_and(|bytes| bytes.len() > MAX_STATE) {
        let most = "the state of this key has grown too large for the playground: start over";
        return Err(most.to_owned());
    }
    Ok(PlayResponse {
        policy: policy.to_string(),
        state: bytes.map(|bytes| STANDARD.encode(bytes)),
        decisions,
        next,
        limits: levels(&policy, entry, now),
    })
}

fn state(text: &str) -> Result<Entry, String> {
    let wrong = "invalid `state`: expected the state of an earlier answer";
    let bytes = STANDARD.decode(text).map_err(|_| wrong.to_owned())?;
    if bytes.len() > MAX_STATE {
        return Err(wrong.to_owned());
    }
    // No take opens a hold, and each take would look ahead over all of them.
    let entry = Entry::decode(&bytes).ok().filter(|entry| entry.open_holds() == 0);
    entry.ok_or_else(|| wrong.to_owned())
}

/// The usage of each limit of `policy` at `now`.
fn levels(policy: &Policy, mut entry: Option<Entry>, now: Timestamp) -> Vec<Level> {
    if entry.as_ref().is_some_and(|entry| entry.policy() != policy) {
        // Usage as the next request would carry it over. The entry itself stays unchanged.
        for operation in [Operation::Charge(1), Operation::Refund(1)] {
            let _ = apply(policy, &mut entry, now, operation);
        }
    }
    if let Some(description) = entry.and_then(|entry| KeyDescription::of(&entry, now)) {
        return description.limits.into_iter().map(Level::from).collect();
    }
    let unused = policy.limits().iter().map(|limit| Level {
        limit: limit.to_string(),
        capacity: limit.capacity().into(),
        used: 0,
        remaining: limit.capacity().into(),
        reset_after_us: 0,
    });
    unused.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_800_000_000_000_000;

    fn play_at(policy: &str, state: Option<String>, now_us: u64, takes: &[u64]) -> PlayResponse {
        let takes = takes.iter().map(|at| Step { at_us: START + at, cost: 1 }).collect();
        let play_request =
            PlayRequest { policy: policy.to_owned(), state, now_us: START + now_us, takes };
        play(&play_request).unwrap()
    }

    fn allowed(played: &PlayResponse) -> Vec<bool> {
        played.decisions.iter().map(|it| it.allowed).collect()
    }

    #[test]
    fn play_state_is_returned_and_accepted() {
        let first = play_at("gcra:60/1m:burst=3", None, 0, &[0, 0]);
        assert_eq!((first.limits[0].used, first.limits[0].capacity), (2, 3));
        let second = play_at("gcra:60/1m:burst=3", first.state, 500_000, &[100_000, 200_000]);
        assert_eq!(allowed(&second), [true, false]);
        assert_eq!(second.decisions[1].retry_after_us, Some(800_000));
        assert_eq!(second.next.retry_after_us, Some(500_000));
        // The policy of the key changes: its usage carries over.
        let third = play_at("gcra:60/1m:burst=9", second.state, 500_000, &[]);
        assert_eq!((third.limits[0].used, third.limits[0].remaining), (3, 6));
        let last = play_at("gcra:60/1m:burst=9", third.state, 9_000_000, &[]);
        assert_eq!((last.limits[0].used, last.limits[0].remaining), (0, 9));
    }

    #[test]
    fn play_invalid_request_names_the_reason() {
        let play_request = |policy: &str, state: Option<&str>, takes| PlayRequest {
            policy: policy.to_owned(),
            state: state.map(str::to_owned),
            now_us: START,
            takes: vec![Step { at_us: START, cost: 1 }; takes],
        };
        for (play, expected) in [
            (play_request("gcra", None, 0), "gcra"),
            (play_request("gcra:1/1s", Some("%"), 0), "`state`"),
            (play_request("gcra:1/1s", Some("AAAA"), 0), "`state`"),
            (play_request("gcra:1/1s", None, 513), "513"),
        ] {
            let message = super::play(&play).unwrap_err();
            assert!(message.contains(expected) && !message.contains("SGPOLICY"), "{message}");
        }
    }

    #[test]
    fn play_cost_above_capacity_never_passes() {
        let takes = vec![Step { at_us: START, cost: 9 }];
        let play_request =
            PlayRequest { policy: "fixed-window:3/1s".into(), state: None, now_us: START, takes };
        let decision = &play(&play_request).unwrap().decisions[0];
        assert!(!decision.allowed && decision.never && decision.retry_after_us.is_none());
    }
}
