//! Answers of the store of a server that have not reached a client.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use sluicegate_core::{Answer, Decision, KeyedTake, MultiKeyAnswer, Source, StoreError};

use crate::{
    check::Kind,
    checked_store::Recorder,
    plan::MultiKey,
    server::{Command, Reply},
};

/// Answers that are kept at one time. A request that waits leaves those of all its attempts but the last.
const MAX_ANSWERS: usize = 4096;

type Integers = [i64; 7];

/// An answer of the store.
#[derive(Debug)]
struct StoreAnswer {
    keys: Vec<Vec<u8>>,
    decided: StoreDecision,
    is_fallback: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum StoreDecision {
    /// The integers of the decision on a key. None: an error.
    OnKey(Kind, Option<Integers>),
    /// The decision, the key that binds, and the decisions on all keys.
    OnKeys(Option<(Integers, i64, Vec<Integers>)>),
}

/// The match of a reply with the answers of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyMatch {
    Certain {
        is_fallback: bool,
    },
    /// One of several that it may be.
    Any,
}

/// Answers of the store, oldest first.
#[derive(Debug, Default)]
pub(super) struct Answers(VecDeque<StoreAnswer>);

impl Answers {
    fn add(&mut self, answer: StoreAnswer) {
        if self.0.len() == MAX_ANSWERS {
            self.0.pop_front();
        }
        self.0.push_back(answer);
    }

    fn on_key(&mut self, key: &[u8], kind: Kind, answer: Option<&Answer>) {
        let is_fallback = answer.is_some_and(|it| it.source == Source::Fallback);
        let decided = StoreDecision::OnKey(kind, answer.map(|it| it.to_integers()));
        self.add(StoreAnswer { keys: vec![key.to_vec()], decided, is_fallback });
    }

    fn on_keys(&mut self, takes: &[KeyedTake<'_>], answer: &Result<MultiKeyAnswer, StoreError>) {
        let keys = takes.iter().map(|it| it.key.to_vec()).collect();
        let integers = |answer: &MultiKeyAnswer| {
            let each = answer.each.iter().map(Decision::to_integers).collect();
            let key = i64::try_from(answer.key).unwrap_or(i64::MAX);
            (answer.decision.to_integers(), key, each)
        };
        let is_fallback = answer.as_ref().is_ok_and(|it| it.source == Source::Fallback);
        let decided = StoreDecision::OnKeys(answer.as_ref().ok().map(integers));
        self.add(StoreAnswer { keys, decided, is_fallback });
    }

    /// The answer of the store that a reply to a command on these keys is. No other reply is the same one.
    pub(super) fn take(
        &mut self,
        command: &Command,
        keys: &[Vec<u8>],
        reply: &Reply,
    ) -> Option<ReplyMatch> {
        let found = match command {
            Command::One { request, .. } => {
                let id = request.hold_id();
                let kind = Kind::of(request.operation(&id));
                if kind == Kind::Other("reset", 0) && *reply == Reply::Reset {
                    return Some(ReplyMatch::Any);
                }
                self.position(keys, |it| it == kind, reply)
            }
            Command::Wait { cost, hold, .. } => {
                // A denial may be due to those that wait before it.
                if matches!(reply, Reply::Decision([0, ..])) {
                    return Some(ReplyMatch::Any);
                }
                let takes = |kind| match kind {
                    Kind::Other("hold", units) => hold.is_some() && units == *cost,
                    Kind::Take(units) | Kind::Other("reserve", units) => {
                        hold.is_none() && units == *cost
                    }
                    Kind::Other(..) => false,
                };
                // A departure reads the key, as one that is given back does. Other requests may have the same answer.
                let is_attempt =
                    |kind| takes(kind) || matches!(kind, Kind::Other("peek" | "refund", _));
                return self.position(keys, is_attempt, reply).map(|_| ReplyMatch::Any);
            }
            Command::All { operation, .. } => {
                assert_ne!(*operation, MultiKey::Peek, "no command peeks at several keys");
                self.0.iter().position(|it| {
                    let StoreDecision::OnKeys(answer) = &it.decided else { return false };
                    let is_same = match (reply, answer) {
                        (Reply::MultiKey { decision, key, each }, Some(answer)) => {
                            (decision, key, each) == (&answer.0, &answer.1, &answer.2)
                        }
                        // HTTP does not show the keys of a denial without the store.
                        (Reply::Decision(decision), Some(answer)) => {
                            it.is_fallback && *decision == answer.0
                        }
                        (Reply::Error(_), None) => true,
                        _ => false,
                    };
                    is_same && it.keys == keys
                })
            }
        };
        let StoreAnswer { is_fallback, keys, decided } = self.0.remove(found?)?;
        // A request that waits leaves denials behind, which may be equal.
        let is_like = |it: &StoreAnswer| it.keys == keys && it.decided == decided;
        let is_certain =
            self.0.iter().filter(|it| is_like(it)).all(|it| it.is_fallback == is_fallback);
        Some(if is_certain { ReplyMatch::Certain { is_fallback } } else { ReplyMatch::Any })
    }

    fn position(
        &self,
        keys: &[Vec<u8>],
        kind: impl Fn(Kind) -> bool,
        reply: &Reply,
    ) -> Option<usize> {
        self.0.iter().position(|it| {
            let StoreDecision::OnKey(applied, answer) = &it.decided else { return false };
            let is_same = match (reply, answer) {
                (Reply::Decision(integers), Some(answer)) => integers == answer,
                (Reply::Error(_), None) => true,
                _ => false,
            };
            is_same && it.keys == keys && kind(*applied)
        })
    }
}

impl Recorder for Arc<Mutex<Answers>> {
    fn on_key(&self, key: &[u8], kind: Kind, answer: Option<&Answer>) {
        self.lock().on_key(key, kind, answer);
    }

    fn on_keys(&self, takes: &[KeyedTake<'_>], answer: &Result<MultiKeyAnswer, StoreError>) {
        self.lock().on_keys(takes, answer);
    }
}
