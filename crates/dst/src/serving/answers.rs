//! Answers of the store of a server that have not reached a client.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use sluicegate_core::{Answer, Decision, Source};

use crate::{
    check::Kind,
    checked_store::Recorder,
    server::{Command, Reply},
};

/// Answers that are kept at one time. A request that waits leaves those of all its attempts but the last.
const MAX_ANSWERS: usize = 4096;

/// An answer of the store.
#[derive(Debug)]
struct StoreAnswer {
    keys: Vec<(Vec<u8>, Kind)>,
    /// None: an error.
    answer: Option<Answer>,
}

impl StoreAnswer {
    fn is_fallback(&self) -> bool {
        self.answer.as_ref().is_some_and(|it| it.source == Source::Fallback)
    }

    /// Whether it is for these keys, and is in a reply to a command for one key, or for several.
    fn is_in(&self, reply: &Reply, keys: &[Vec<u8>], is_all: bool) -> bool {
        let is_same = match (reply, &self.answer) {
            (Reply::MultiKey { decision, key, each }, Some(answer)) => {
                is_all
                    && *decision == answer.to_integers()
                    && i64::try_from(answer.key) == Ok(*key)
                    && each.iter().copied().eq(answer.each().iter().map(Decision::to_integers))
            }
            // HTTP does not show the keys of a denial without the store.
            (Reply::Decision(decision), Some(answer)) => {
                (!is_all || self.is_fallback()) && *decision == answer.to_integers()
            }
            (Reply::Error(_), None) => true,
            _ => false,
        };
        is_same && self.keys.iter().map(|it| &it.0).eq(keys)
    }
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

    /// The answer of the store that a reply to a command on these keys is. No other reply is the same one.
    pub(super) fn take(
        &mut self,
        command: &Command,
        keys: &[Vec<u8>],
        reply: &Reply,
    ) -> Option<ReplyMatch> {
        let kinds: Vec<_> = command
            .requests()
            .iter()
            .map(|(_, request)| Kind::of(request.operation(&request.hold_id())))
            .collect();
        if let Command::Wait { .. } = command {
            // A denial may be due to those that wait before it.
            if matches!(reply, Reply::Decision([0, ..])) {
                return Some(ReplyMatch::Any);
            }
            // A departure reads the key, as one that is given back does. Other requests may have the same answer.
            let is_attempt = |kind: Kind| match (kind, kinds[0]) {
                (Kind::Other("peek" | "refund", _), _) => true,
                (Kind::Other("reserve", units), Kind::Take(cost)) => units == cost,
                (kind, wanted) => kind == wanted,
            };
            let is_same = |it: &StoreAnswer| {
                it.is_in(reply, keys, false) && it.keys.iter().all(|it| is_attempt(it.1))
            };
            return self.0.iter().any(is_same).then_some(ReplyMatch::Any);
        }
        if kinds == [Kind::Other("reset", 0)] && *reply == Reply::Reset {
            return Some(ReplyMatch::Any);
        }
        let is_all = matches!(command, Command::All { .. });
        let is_same = |it: &StoreAnswer| {
            let is_of_kind = is_all || it.keys.iter().map(|it| &it.1).eq(&kinds);
            is_of_kind && it.is_in(reply, keys, is_all)
        };
        let found = self.0.iter().position(is_same);
        let is_fallback = self.0.remove(found?)?.is_fallback();
        // A request that waits leaves denials behind, which may be equal.
        let mut others = self.0.iter().filter(|it| is_same(it));
        let is_certain = others.all(|it| it.is_fallback() == is_fallback);
        Some(if is_certain { ReplyMatch::Certain { is_fallback } } else { ReplyMatch::Any })
    }
}

impl Recorder for Arc<Mutex<Answers>> {
    fn record(&self, keys: Vec<(Vec<u8>, Kind)>, answer: Option<&Answer>) {
        self.lock().add(StoreAnswer { keys, answer: answer.cloned() });
    }
}
