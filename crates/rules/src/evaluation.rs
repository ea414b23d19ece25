//! Evaluates the rules that match a request: operations on keys out, answers of a store in, one outcome out.
//!
//! [`Evaluation`] does no I/O. A driver applies each [`ChargeSet`] that it returns, to whatever store it has, and
//! passes the answers back:
//!
//! 1. An enforced block denies the request, and no enforced rule is charged.
//! 2. Otherwise each enforced rule that holds, in order, until one denies the request.
//! 3. If all of these allow it, the keys of all other enforced rules, and of all levels of a hierarchy, are charged
//!    together or not at all. What was held is settled at the end of the request, whether it is allowed or denied.
//! 4. Each shadow rule is charged independently; it never denies. A request that is denied is not charged to it.

use std::time::Duration;

pub use self::{
    descriptor::{DescriptorLimit, EnvoyMode, is_over_limit},
    events::RuleEvent,
};
use sluicegate_core::{
    Answer, Decision, HoldError, KeyLengthError, MAX_KEY, OnError, Operation, Outcome, Retry,
    Source,
};
use smallvec::SmallVec;

use crate::rule::{Charge, Match, Treatment};

mod descriptor;
mod events;

/// An operation on the rules of a request, for a number of equal requests. The rules set the cost of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleOperation {
    /// Charges the requests if all enforced rules allow them.
    Take(u32),
    /// Returns what `Take` would return, and charges nothing.
    Peek(u32),
    /// Gives back the cost of the requests. If a rule holds, it only settles the holds, as the end of the requests.
    Refund(u32),
}

impl RuleOperation {
    /// The number of requests.
    #[must_use]
    pub const fn hits(self) -> u32 {
        match self {
            Self::Take(hits) | Self::Peek(hits) | Self::Refund(hits) => hits,
        }
    }
}

/// The outcome of a request.
#[derive(Clone, Debug)]
pub struct RuleOutcome {
    /// Whether the request is allowed.
    pub allowed: bool,
    /// Index of the binding match: the block, or the enforced match with the longest denial, or else with the least
    /// remaining; of equals the first. If none limits the request, the first enforced match.
    pub binding: Option<usize>,
    /// The outcome of each match, in their order.
    pub matches: SmallVec<[MatchOutcome; 2]>,
}

/// The outcome of one match.
#[derive(Clone, Copy, Debug)]
pub struct MatchOutcome {
    /// Whether this match alone would allow the request, enforced or not.
    pub allowed: bool,
    /// The binding decision; `None` if no key of this match was charged.
    pub decision: Option<Decision>,
    /// Index of the charge of the binding decision.
    pub charge: usize,
    /// Number of its charges that are denied.
    pub denials: usize,
    /// Source of the decisions: [`Source::Fallback`] if any is a fallback.
    pub source: Source,
}

impl MatchOutcome {
    fn add_answer(&mut self, charge: usize, answer: &Answer) {
        let decision = &answer.decision;
        self.allowed &= decision.allowed();
        self.denials += usize::from(!decision.allowed());
        if answer.source == Source::Fallback || self.decision.is_none() {
            self.source = answer.source;
        }
        if self.decision.as_ref().is_none_or(|other| is_binding(decision, other)) {
            (self.decision, self.charge) = (Some(*decision), charge);
        }
    }
}

/// Whether `one` is binding rather than `other`, which comes first: the longer denial, or else the least remaining.
fn is_binding(one: &Decision, other: &Decision) -> bool {
    match (one.retry(), other.retry()) {
        (Some(one), Some(other)) => one > other,
        (Some(_), None) => true,
        (None, Some(_)) => false,
        (None, None) => one.remaining < other.remaining,
    }
}

/// One operation on one key.
#[derive(Clone, Copy, Debug)]
pub struct ChargeRequest<'m, 's> {
    /// The first charge with the key: its policy is used.
    pub charge: &'m Charge<'s>,
    /// The rule's setting for an unavailable store.
    pub on_error: Option<OnError>,
    /// Units of the operation.
    pub cost: u32,
    /// The id under which its rule holds, if it does.
    pub hold_id: Option<&'m [u8]>,
}

/// Operations to apply to different keys.
#[derive(Clone, Copy, Debug)]
pub struct ChargeSet<'e, 'm, 's> {
    matches: &'m [Match<'s>],
    operation: RuleOperation,
    /// The first charge of each key.
    firsts: &'e [ChargeIndex],
}

/// Position of a charge among those of all matches.
#[derive(Clone, Copy, Debug)]
struct ChargeIndex {
    found: usize,
    charge: usize,
}

impl<'e, 'm, 's> ChargeSet<'e, 'm, 's> {
    /// The requests: at least one. Charges with the same key are one request, with the policy and cost of the first.
    pub fn requests(
        &self,
    ) -> impl ExactSizeIterator<Item = ChargeRequest<'m, 's>> + Clone + use<'e, 'm, 's> {
        let (matches, operation) = (self.matches, self.operation);
        self.firsts.iter().map(move |first| {
            let found = &matches[first.found];
            let cost = found.cost.saturating_mul(operation.hits());
            let hold_id = found.hold_id.as_deref();
            let charge = &found.charges[first.charge];
            ChargeRequest { charge, on_error: found.on_error, cost, hold_id }
        })
    }

    /// Whether this is one shadow rule: an error of the store leaves it without a decision, and fails no request.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.firsts.first().is_some_and(|first| self.matches[first.found].shadow)
    }

    /// The operation on the key of a request. A rule that holds is held and settled.
    #[must_use]
    pub const fn operation(&self, request: &ChargeRequest<'m, '_>) -> Operation<'m> {
        let cost = request.cost;
        match (self.operation, request.hold_id) {
            (RuleOperation::Take(_), None) => Operation::Take(cost),
            (RuleOperation::Take(_), Some(id)) => Operation::Hold { id, cost, ttl: None },
            (RuleOperation::Peek(_), _) => Operation::Peek(cost),
            (RuleOperation::Refund(_), None) => Operation::Refund(cost),
            (RuleOperation::Refund(_), Some(id)) => Operation::Settle { id, used: None },
        }
    }

    /// Whether the operations are applied together, all or none. Otherwise each is applied independently, in order.
    #[must_use]
    pub const fn is_all_or_none(&self) -> bool {
        self.firsts.len() > 1 && !matches!(self.operation, RuleOperation::Refund(_))
    }
}

/// Checks the keys of the enforced rules. A shadow rule with a key that is too long is not charged.
///
/// # Errors
/// [`KeyLengthError`]: a key is longer than [`MAX_KEY`].
pub fn check_keys(matches: &[Match<'_>]) -> Result<(), KeyLengthError> {
    let length = matches.iter().filter(|it| !it.shadow).find_map(too_long_key);
    length.map_or(Ok(()), |length| Err(KeyLengthError(length)))
}

/// The length of the first key that is too long.
fn too_long_key(found: &Match<'_>) -> Option<usize> {
    found.charges.iter().map(|it| it.key.len()).find(|length| *length > MAX_KEY)
}

/// The evaluation of the rules that match one request.
///
/// ```
/// use sluicegate_core::{Policy, Timestamp, apply};
/// use sluicegate_rules::{Evaluation, Format, Request, RuleOperation, RuleSet};
///
/// let rules = RuleSet::parse("rules: [{name: api, policy: 'gcra:1/1s'}]", Format::Yaml)?;
/// let matches = rules.matches(&Request::http("GET", "/", &()));
/// let (mut entry, now) = (None, Timestamp::EPOCH); // a store with one key
/// let mut evaluation = Evaluation::new(&matches, RuleOperation::Take(1))?;
/// while let Some(set) = evaluation.next_charges() {
///     let request = set.requests().next().expect("a request");
///     let decision = apply(&request.charge.policy, &mut entry, now, set.operation(&request))?;
///     evaluation.record(&[decision.into()]);
/// }
/// let outcome = evaluation.outcome();
/// assert!(outcome.allowed);
/// assert_eq!(outcome.matches[0].decision.expect("a decision").remaining, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Evaluation<'m, 's> {
    matches: &'m [Match<'s>],
    operation: RuleOperation,
    next: Stage,
    /// The first charge of each key in the current set.
    firsts: SmallVec<[ChargeIndex; 2]>,
    /// All charges in the current set, each with the index of the first one with its key.
    targets: SmallVec<[(usize, ChargeIndex); 2]>,
    outcome: RuleOutcome,
}

/// The matches that are charged next.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The first enforced one from this index on that holds.
    Hold(usize),
    /// All other enforced ones.
    Enforced,
    /// The first shadow one from this index on.
    Shadow(usize),
}

impl<'m, 's> Evaluation<'m, 's> {
    /// Starts the evaluation of `matches`.
    ///
    /// # Errors
    /// [`KeyLengthError`] as of [`check_keys`]. Nothing was charged.
    pub fn new(matches: &'m [Match<'s>], operation: RuleOperation) -> Result<Self, KeyLengthError> {
        check_keys(matches)?;
        let mut outcomes = SmallVec::new();
        let (mut block, mut first) = (None, None);
        for (index, found) in matches.iter().enumerate() {
            let blocks = found.treatment == Treatment::Block;
            if !found.shadow {
                first = first.or(Some(index));
                block = block.or(blocks.then_some(index));
            }
            let source = Source::Store;
            outcomes.push(MatchOutcome {
                allowed: !blocks,
                decision: None,
                charge: 0,
                denials: 0,
                source,
            });
        }
        // A refund is not denied, and is therefore not blocked.
        let refunds = matches!(operation, RuleOperation::Refund(_));
        let (next, binding) = match block {
            Some(_) if !refunds => (Stage::Shadow(0), block),
            _ => (Stage::Hold(0), first),
        };
        let outcome = RuleOutcome { allowed: block.is_none(), binding, matches: outcomes };
        let (firsts, targets) = (SmallVec::new(), SmallVec::new());
        Ok(Self { matches, operation, next, firsts, targets, outcome })
    }

    /// Whether one key of one enforced rule is all there is to charge. This case has a fast path (ADR 38).
    fn is_one_charge(&self) -> bool {
        matches!(self.matches, [found] if !found.shadow && found.charges.len() == 1)
    }

    /// The next operations to apply. Pass their answers to [`record`](Self::record) before the next call.
    pub fn next_charges(&mut self) -> Option<ChargeSet<'_, 'm, 's>> {
        if self.is_one_charge() {
            let Stage::Hold(_) = self.next else { return None };
            self.next = Stage::Shadow(1);
            let firsts = &[ChargeIndex { found: 0, charge: 0 }];
            return Some(ChargeSet { matches: self.matches, operation: self.operation, firsts });
        }
        self.firsts.clear();
        self.targets.clear();
        // The end of a request gives nothing back to rules that take.
        let only_settles = matches!(self.operation, RuleOperation::Refund(_))
            && self.matches.iter().any(Match::holds);
        while self.firsts.is_empty()
            && let Stage::Hold(index) = self.next
        {
            self.next = match self.matches.get(index) {
                Some(_) => Stage::Hold(index + 1),
                None => Stage::Enforced,
            };
            if let Some(found) = self.matches.get(index).filter(|it| it.holds() && !it.shadow) {
                self.add_charges(index, found);
            }
        }
        if self.firsts.is_empty() && matches!(self.next, Stage::Enforced) {
            self.next = Stage::Shadow(0);
            let others = self.matches.iter().enumerate();
            for (index, found) in
                others.filter(|(_, it)| !it.shadow && !it.holds() && !only_settles)
            {
                self.add_charges(index, found);
            }
        }
        while self.firsts.is_empty()
            && let Stage::Shadow(index) = self.next
        {
            let found = self.matches.get(index)?;
            self.next = Stage::Shadow(index + 1);
            let is_charged = too_long_key(found).is_none() && (found.holds() || !only_settles);
            if found.shadow && is_charged {
                self.add_charges(index, found);
            }
        }
        // A denied request is not charged to the rules that follow.
        let operation = match self.operation {
            RuleOperation::Take(hits) if !self.outcome.allowed => RuleOperation::Peek(hits),
            operation => operation,
        };
        Some(ChargeSet { matches: self.matches, operation, firsts: &self.firsts })
    }

    /// Adds the charges of a match to the current set.
    fn add_charges(&mut self, found: usize, it: &Match<'s>) {
        for (charge, Charge { key, .. }) in it.charges.iter().enumerate() {
            let index = ChargeIndex { found, charge };
            let has_key =
                |first: &ChargeIndex| self.matches[first.found].charges[first.charge].key == *key;
            let first = self.firsts.iter().position(has_key).unwrap_or(self.firsts.len());
            if first == self.firsts.len() {
                self.firsts.push(index);
            }
            self.targets.push((first, index));
        }
    }

    /// Records the answers to the requests of the current set, in their order.
    pub fn record(&mut self, answers: &[Answer]) {
        if self.is_one_charge()
            && let ([outcome], [answer]) = (&mut *self.outcome.matches, answers)
        {
            outcome.add_answer(0, answer);
            self.outcome.allowed = outcome.allowed;
            return;
        }
        for (first, index) in &self.targets {
            if let Some(answer) = answers.get(*first) {
                self.outcome.matches[index.found].add_answer(index.charge, answer);
            }
        }
        self.conclude();
    }

    /// Derives the outcome from the outcomes of all enforced matches.
    fn conclude(&mut self) {
        let RuleOutcome { allowed, binding, matches } = &mut self.outcome;
        let mut enforced: Option<&Decision> = None;
        for (index, (found, outcome)) in self.matches.iter().zip(&*matches).enumerate() {
            if found.shadow {
                continue;
            }
            *allowed &= outcome.allowed;
            if let Some(decision) = &outcome.decision
                && enforced.is_none_or(|other| is_binding(decision, other))
            {
                (enforced, *binding) = (Some(decision), Some(index));
            }
        }
    }

    /// The outcome, once [`next_charges`](Self::next_charges) has returned `None`.
    pub const fn outcome(&self) -> &RuleOutcome {
        &self.outcome
    }

    /// The outcome, as [`outcome`](Self::outcome).
    pub fn into_outcome(self) -> RuleOutcome {
        self.outcome
    }
}

/// A hold that is denied, although the store answers with an error: a client that chooses its id must not pass all
/// rules because of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldDenial {
    /// The id is empty or longer than 64 bytes.
    InvalidId,
    /// As many holds of the key are open as the store opens.
    Full,
}

impl HoldDenial {
    /// The denial for `error`; `None` if it concerns the rule and not the request.
    #[must_use]
    pub const fn of(error: &HoldError) -> Option<Self> {
        match error {
            HoldError::Id(_) => Some(Self::InvalidId),
            HoldError::Full(_) => Some(Self::Full),
            _ => None,
        }
    }

    /// The answer, from a peek of no units at the key.
    pub fn answer(self, mut peek: Answer) -> Answer {
        let retry = match self {
            Self::InvalidId => Retry::Never,
            Self::Full => Retry::After(peek.decision.reset_after),
        };
        peek.decision.outcome = Outcome::Deny { retry };
        peek
    }
}

/// The answer of a rule to `operation` on its hold, from the answer of the store. A settle always allows: a request that
/// was denied has nothing to settle, and a repeated settle changes nothing.
pub fn hold_answer(operation: Operation, mut answer: Answer) -> Answer {
    if let Operation::Settle { .. } = operation {
        answer.decision.outcome = Outcome::Allow { delay: Duration::ZERO };
    }
    answer
}
