//! From the rules that apply to a request to one verdict.
//!
//! All that is enforced passes, or nothing is charged: the keys of all rules, and of all levels of a
//! hierarchy, are one decision, and a request that one of them denies takes nothing from the others.
//! What only counts (`shadow`) is asked behind, and never denies. Every answer names what binds.
//!
//! One that goes by descriptors, each for itself, asks here once a descriptor.

use sluicegate_commands::CommandError;
use sluicegate_core::{
    Answer, Decision, MultiKeyAnswer, Operation, Outcome, Retry, Source, Timestamp,
};
use sluicegate_rules::{Charge, Match, Treatment};
use smallvec::{SmallVec, smallvec};

use crate::{
    decide::Decider,
    policies::ruleset::{Event, Version},
    store::home::{self, HomeRule, Take, Trouble},
};

/// The longest key.
const MAX_KEY: usize = 65_536;

/// What is asked, for so many requests at once. What one of them costs, the rules say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// May they pass? If so, they are counted.
    Take(u32),
    /// Would they pass?
    Peek(u32),
    /// They are given back.
    Refund(u32),
}

impl Ask {
    /// The operation on a key, where a request costs so many units.
    const fn operation(self, cost: u32) -> Operation {
        match self {
            Self::Take(hits) => Operation::Take(cost.saturating_mul(hits)),
            Self::Peek(hits) => Operation::Peek(cost.saturating_mul(hits)),
            Self::Refund(hits) => Operation::Refund(cost.saturating_mul(hits)),
        }
    }
}

/// What became of a request.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    /// Whether it may pass.
    pub(crate) allowed: bool,
    /// Which of the matches binds: that which denies longest, or has the least left. `None` where
    /// nothing limits.
    pub(crate) binding: Option<usize>,
    /// What each of the matches says, in their order.
    pub(crate) told: SmallVec<[Told; 2]>,
}

/// What one of the matches says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    /// Whether the request may pass, as far as this one goes: also one that does not enforce it.
    pub(crate) allowed: bool,
    /// The decision that binds; `None` where nothing was decided.
    pub(crate) decision: Option<Decision>,
    /// Which of the match's charges that is about.
    pub(crate) charge: usize,
    /// Who decided: [`Source::Fallback`] where the store was away.
    pub(crate) source: Source,
}

impl Told {
    const UNDECIDED: Self =
        Self { allowed: true, decision: None, charge: 0, source: Source::Store };

    /// Takes in the answer for one of its charges.
    fn hear(&mut self, charge: usize, answer: &Answer) {
        let decision = &answer.decision;
        self.allowed &= decision.allowed();
        if answer.source == Source::Fallback {
            self.source = Source::Fallback;
        } else if self.decision.is_none() {
            self.source = answer.source;
        }
        if self.decision.as_ref().is_none_or(|told| binds(decision, told)) {
            (self.decision, self.charge) = (Some(*decision), charge);
        }
    }
}

/// Whether `one` binds rather than `other`, which was written before it.
fn binds(one: &Decision, other: &Decision) -> bool {
    match (retry(one), retry(other)) {
        (Some(one), Some(other)) => one > other,
        (Some(_), None) => true,
        (None, Some(_)) => false,
        (None, None) => one.remaining < other.remaining,
    }
}

const fn retry(decision: &Decision) -> Option<Retry> {
    match decision.outcome {
        Outcome::Allow { .. } => None,
        Outcome::Deny { retry } => Some(retry),
    }
}

/// What the one match that there is says, where nobody has to be waited for: the everyday case, one rule that is enforced
/// with one key, whose state is in this process. `None` for any other, which [`decide`] decides on.
#[inline]
pub(crate) fn decide_now(
    decider: &Decider,
    version: &Version,
    matches: &[Match<'_>],
    ask: Ask,
    now: Timestamp,
) -> Option<Result<Told, Trouble>> {
    let ([found], Some(store)) = (matches, decider.store.memory()) else { return None };
    let [charge] = &found.charges[..] else { return None };
    if found.shadow || found.treatment != Treatment::Limit || charge.key.len() > MAX_KEY {
        return None;
    }
    let rule = version.ready(charge)?;
    let operation = ask.operation(found.cost);
    let question = home::Question { key: &charge.key, rule, operation };
    let answer = decider.decide_here(store, question, now);
    Some(answer.map(|answer| {
        decider.queues.asked(&charge.key, rule.policy(), operation);
        let mut told = Told::UNDECIDED;
        told.hear(0, &answer);
        if let Ask::Take(_) = ask {
            count(decider, found, &told, told.allowed);
        }
        told
    }))
}

/// Decides on a request by the rules that apply to it.
///
/// # Errors
/// [`Trouble`] where a key cannot be asked about; then nothing is charged.
pub(crate) async fn decide(
    decider: &Decider,
    version: &Version,
    matches: &[Match<'_>],
    ask: Ask,
    now: Timestamp,
) -> Result<Verdict, Trouble> {
    if let Some(told) = decide_now(decider, version, matches, ask, now) {
        let told = told?;
        return Ok(Verdict { allowed: told.allowed, binding: Some(0), told: smallvec![told] });
    }
    let mut verdict = Verdict {
        allowed: true,
        binding: None,
        told: matches.iter().map(|_| Told::UNDECIDED).collect(),
    };
    for (found, told) in matches.iter().zip(&mut verdict.told) {
        if let Some(charge) = found.charges.iter().find(|charge| charge.key.len() > MAX_KEY) {
            return Err(Trouble::State(CommandError::Key(charge.key.len()).to_string()));
        }
        told.allowed = found.treatment != Treatment::Block;
    }
    let bench = Bench { decider, version, matches, now };
    let block = matches.iter().position(|it| it.treatment == Treatment::Block && !it.shadow);
    if block.is_some() && !matches!(ask, Ask::Refund(_)) {
        (verdict.allowed, verdict.binding) = (false, block);
    } else {
        bench.ask(ask, false, &mut verdict).await?;
        verdict.allowed =
            matches.iter().zip(&verdict.told).all(|(it, told)| it.shadow || told.allowed);
        verdict.binding = binding(matches, &verdict.told);
    }
    // Who is not let through is not seen by what is only to show what would be.
    let shadow = match ask {
        Ask::Take(hits) if !verdict.allowed => Ask::Peek(hits),
        ask => ask,
    };
    bench.ask(shadow, true, &mut verdict).await?;
    if let Ask::Take(_) = ask {
        for (found, told) in matches.iter().zip(&verdict.told) {
            count(decider, found, told, verdict.allowed);
        }
    }
    Ok(verdict)
}

/// Which of the enforced matches binds.
fn binding(matches: &[Match<'_>], told: &[Told]) -> Option<usize> {
    let mut binding: Option<(usize, &Decision)> = None;
    for (index, (found, told)) in matches.iter().zip(told).enumerate() {
        if let Some(decision) = told.decision.as_ref().filter(|_| !found.shadow)
            && binding.is_none_or(|(_, other)| binds(decision, other))
        {
            binding = Some((index, decision));
        }
    }
    // Where nothing limits, what lets through is named.
    binding.map(|(index, _)| index).or_else(|| matches.iter().position(|it| !it.shadow))
}

/// What one request is decided with.
struct Bench<'a, 'm> {
    decider: &'a Decider,
    version: &'a Version,
    matches: &'a [Match<'m>],
    now: Timestamp,
}

/// A key to ask about, for a charge of a match.
struct Question<'a, 'm> {
    charge: &'a Charge<'m>,
    rule: HomeRule,
    cost: u32,
}

/// Who hears the answer to a question: of which match, and the how many-th of its charges.
struct Listener {
    question: usize,
    found: usize,
    charge: usize,
}

impl Bench<'_, '_> {
    /// Asks about all that is enforced, or all that only counts.
    async fn ask(&self, ask: Ask, shadow: bool, verdict: &mut Verdict) -> Result<(), Trouble> {
        if !shadow {
            return self.together(ask, |_, found| !found.shadow, &mut verdict.told).await;
        }
        // Each of these for itself: none of them denies for another.
        for wanted in 0..self.matches.len() {
            if self.matches[wanted].shadow {
                self.together(ask, |index, _| index == wanted, &mut verdict.told).await?;
            }
        }
        Ok(())
    }

    /// Asks about the charges of some matches, as one question. A key that several of them share is
    /// asked about once, for the first.
    async fn together(
        &self,
        ask: Ask,
        wanted: impl Fn(usize, &Match<'_>) -> bool,
        told: &mut [Told],
    ) -> Result<(), Trouble> {
        let store = (&*self.decider.store, self.decider.on_error);
        let mut questions: SmallVec<[Question<'_, '_>; 2]> = SmallVec::new();
        let mut listeners: SmallVec<[Listener; 2]> = SmallVec::new();
        for (number, found) in self.matches.iter().enumerate().filter(|(at, it)| wanted(*at, it)) {
            for (index, charge) in found.charges.iter().enumerate() {
                let known = questions.iter().position(|it| it.charge.key == charge.key);
                let question = known.unwrap_or(questions.len());
                if known.is_none() {
                    let rule = self.version.prepared(charge, found.on_error, store, self.now);
                    questions.push(Question { charge, rule, cost: found.cost });
                }
                listeners.push(Listener { question, found: number, charge: index });
            }
        }
        let answers = self.answers(ask, &questions).await?;
        for Listener { question, found, charge } in listeners {
            if let Some(answer) = answers.get(question) {
                told[found].hear(charge, answer);
            }
        }
        Ok(())
    }

    /// The answer to each question. Several takes are one decision.
    async fn answers(
        &self,
        ask: Ask,
        questions: &[Question<'_, '_>],
    ) -> Result<SmallVec<[Answer; 2]>, Trouble> {
        let (stores, hits) = match ask {
            Ask::Take(hits) => (true, hits),
            Ask::Peek(hits) => (false, hits),
            Ask::Refund(_) => return self.each(ask, questions).await,
        };
        if questions.len() < 2 {
            return self.each(ask, questions).await;
        }
        let takes = questions.iter().map(|Question { charge, rule, cost }| Take {
            key: &charge.key,
            rule,
            cost: cost.saturating_mul(hits),
        });
        let takes: SmallVec<[_; 4]> = takes.collect();
        let MultiKeyAnswer { joint, source } =
            self.decider.decide_together(&takes, stores, self.now).await?;
        for Take { key, rule, cost } in takes {
            // Where the keys are in several places, something may have been given back.
            if stores && !joint.decision.allowed() && self.decider.store.memory().is_none() {
                self.decider.queues.changed(key);
            } else if stores {
                self.decider.queues.asked(key, rule.policy(), Operation::Take(cost));
            }
        }
        Ok(joint.each.into_iter().map(|decision| Answer { decision, source }).collect())
    }

    /// The answer to each question, one after the other.
    async fn each(
        &self,
        ask: Ask,
        questions: &[Question<'_, '_>],
    ) -> Result<SmallVec<[Answer; 2]>, Trouble> {
        let mut answers = SmallVec::new();
        for Question { charge, rule, cost } in questions {
            let operation = ask.operation(*cost);
            answers.push(self.decider.decide(&charge.key, rule, operation, self.now).await?);
            self.decider.queues.asked(&charge.key, rule.policy(), operation);
        }
        Ok(answers)
    }
}

/// Counts what a match says of a request that may pass or not.
fn count(decider: &Decider, found: &Match<'_>, told: &Told, allowed: bool) {
    let event = match (found.treatment, told.allowed) {
        // One that would have let through what another denies has not decided it.
        (_, true) if !allowed => return,
        (_, false) if found.shadow && !allowed => return,
        (_, false) if found.shadow => Event::Shadow,
        (Treatment::Unlimited, _) => Event::Unlimited,
        (Treatment::Block, _) => Event::Blocked,
        (Treatment::Limit, true) => Event::Allowed,
        (Treatment::Limit, false) => Event::Denied,
    };
    let is_near = |it: &Decision| u64::from(it.remaining) * 5 < u64::from(it.limit);
    let near = event == Event::Allowed && told.decision.as_ref().is_some_and(is_near);
    let fallback = told.source == Source::Fallback;
    let beside = [near.then_some(Event::Near), fallback.then_some(Event::Fallback)];
    let tallies = &decider.rules.tallies;
    tallies.add(&found.metric, beside.into_iter().flatten().chain([event]));
}

#[cfg(test)]
mod tests;
