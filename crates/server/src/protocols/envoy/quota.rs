//! The division of limits between Envoys, for one of their streams: usage reports, the time and answers of the store in;
//! operations on the store and actions for Envoy out. No I/O and no clock.
//!
//! A stream knows nothing of other streams. All streams of all servers meet in the store, where each limited key has three
//! ledgers of holds, as those of a `concurrency` limit ([`QuotaTerms`] has the sizes):
//!
//! | ledger | a hold of it is |
//! | --- | --- |
//! | slots | the right to a bucket of `max_tokens` tokens, and to the base rate |
//! | units | a piece of the rest of the rate |
//! | demand | what the Envoy of a stream with a slot asks for; 2048 is the whole limit. The store limits nothing here: it adds up |
//!
//! The units that a stream wants are its part of the demand of all. It gets them in pieces, because a hold cannot be resized:
//! it opens another hold to grow, and leaves some out to shrink.
//!
//! Invariants:
//! - an assignment is covered by holds for as long as it can be in force: the holds are renewed before it is sent, and
//!   outlive it by more than the time that its message may take;
//! - units that an assignment leaves out stay held until the assignment is in force: other streams grow only then;
//! - the bucket's `max_tokens` and `fill_interval` never change: Envoy would fill it, or ignore the change;
//! - a bucket is abandoned only after it has been idle for longer than it takes to fill.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    time::Duration,
};

use ahash::AHashMap;
use sluicegate_core::{
    Answer, KeyedOperation, MAX_KEY, OnError, Operation, Policy, PreparedPolicy, StoreError,
    Timestamp,
};
use sluicegate_rules::{QuotaTerms, RuleEvent, RuleSet};

use crate::{
    policies::rule_store::{RuleCounterMap, RuleCounters},
    stats::QuotaStats,
};

/// How long an assignment lasts after its Envoy has received it: two of the longest cycles of renewals, and a second.
pub(crate) const LIFETIME: Duration = Duration::from_secs(13);
/// How long a hold lasts: an assignment that it covers may be sent up to [`MAX_TURN`] later, and arrive [`DELIVERY`] after that.
pub(crate) const HOLD: Duration = Duration::from_secs(15);
/// Time from sending an assignment until it is in force, unless the stream ends before.
pub(crate) const DELIVERY: Duration = Duration::from_secs(1);
/// Longest time from renewing the holds of an assignment to sending it.
const MAX_TURN: Duration = Duration::from_secs(1);
/// Maximum number of buckets of a turn, and of operations that are sent to the store at a time.
const MAX_DUE: usize = 64;
const MAX_OPERATIONS: usize = 16;
/// A bucket that waits longer for its turn is late: its assignment expires before it is renewed.
const MAX_WAIT: Duration = Duration::from_secs(6);
/// An assignment is renewed after this time at the latest: Envoy 1.40 reports every 5 s.
const CYCLE: Duration = Duration::from_secs(6);
/// Shortest time over which demand is measured.
const MIN_CYCLE: Duration = Duration::from_secs(1);
/// Pause before a stream asks again for units that others held, and before it repeats operations that failed.
const RETRY: Duration = Duration::from_millis(500);
const RETRY_FAILED: Duration = Duration::from_secs(2);
/// A bucket that nothing was reported for is abandoned after this time at the earliest.
const MIN_IDLE: Duration = Duration::from_secs(60);

/// Demand for the whole limit, the most of one bucket, and the most of all.
const DEMAND: u64 = 2048;
const MAX_DEMAND: u32 = 16_384;
const ALL_DEMAND: u32 = 65_536;

/// Maximum number of pieces of a share.
const MAX_PIECES: usize = 12;
/// Maximum number of entries of a bucket.
const MAX_ENTRIES: usize = 256;
/// Memory of a bucket in bytes, besides its texts, and of all buckets of a stream.
const BUCKET_BYTES: usize = 640;
const MAX_STREAM_BYTES: usize = 32 << 20;

/// The identity of a bucket: pairs of keys and values.
pub(crate) type BucketId = BTreeMap<String, String>;

/// What Envoy reports of a bucket since its last report.
#[derive(Clone, Debug)]
pub(crate) struct Usage {
    pub(crate) bucket: BucketId,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
}

/// The rule that applies to a bucket.
#[derive(Clone, Debug)]
pub(crate) struct FoundQuota {
    pub(crate) rule: Arc<RuleCounters>,
    pub(crate) key: Vec<u8>,
    pub(crate) terms: QuotaTerms,
}

/// Finds the rule that applies to a bucket of a domain.
pub(crate) type FindQuota<'a> = &'a dyn Fn(&str, &BucketId) -> Option<FoundQuota>;

/// Finds the rule among `rules`.
pub(crate) fn find(
    rules: &RuleSet,
    counters: &RuleCounterMap,
    domain: &str,
    bucket: &BucketId,
) -> Option<FoundQuota> {
    let entries: Vec<_> = bucket.iter().map(|(key, value)| (&**key, &**value)).collect();
    let (mut found, terms) = rules.quota(domain, &entries)?;
    let key = found.charges.pop()?.key;
    Some(FoundQuota { rule: counters.of_rule(found.rule.name()), key, terms })
}

/// What Envoy is to do with a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Action {
    pub(crate) bucket: Arc<BucketId>,
    /// How to limit it; `None`: abandon it.
    pub(crate) assignment: Option<Assignment>,
}

/// How Envoy limits a bucket, for [`LIFETIME`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub(crate) max_tokens: u32,
    pub(crate) tokens_per_fill: u32,
    /// In seconds.
    pub(crate) fill_interval: u32,
}

/// Why a stream is ended.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidReport {
    #[error("missing domain: expected the name of a domain in the first report of a stream")]
    Domain,
    #[error("invalid domain `{0}`: expected that of the first report of the stream")]
    OtherDomain(String),
    #[error("invalid bucket_id of {0} entries: expected 1 to {MAX_ENTRIES}")]
    Bucket(usize),
}

/// The ids of holds of one stream: its own random id, and a number that is used once.
type HoldId = [u8; 20];

/// One stream, and the buckets that its Envoy reports.
#[derive(Debug)]
pub(crate) struct QuotaStream {
    id: [u8; 16],
    /// The number of the next hold.
    next_hold: u32,
    domain: Option<String>,
    buckets: AHashMap<u32, Bucket>,
    by_id: AHashMap<Arc<BucketId>, u32>,
    next_bucket: u32,
    ledgers: AHashMap<QuotaTerms, Arc<Ledgers>>,
    /// Since when, or from when on, each bucket needs a turn.
    timers: BTreeSet<(Timestamp, u32)>,
    /// Buckets that were abandoned in the last cycle, and when.
    abandoned: AHashMap<Arc<BucketId>, Timestamp>,
    /// Before this time nothing is assigned, because holds of a former server may be lost while its assignments are in force.
    not_before: Timestamp,
    max_buckets: usize,
    bytes: usize,
    turn: Turn,
    /// Maximum number of buckets of the next turn: half of those that were too many for the store, and one more after each turn
    /// in time.
    max_due: usize,
    stats: Arc<QuotaStats>,
}

/// The policies of the ledgers of a key.
#[derive(Debug)]
struct Ledgers {
    terms: QuotaTerms,
    slots: PreparedPolicy,
    units: PreparedPolicy,
    demand: PreparedPolicy,
}

/// A bucket of Envoy, and its share of a limit.
#[derive(Debug)]
struct Bucket {
    id: Arc<BucketId>,
    rule: Arc<RuleCounters>,
    /// The key of the limit, and those of its ledgers.
    key: Vec<u8>,
    keys: Arc<[Vec<u8>; 3]>,
    ledgers: Arc<Ledgers>,
    /// When its usage was measured last, and what was reported since.
    measured: Timestamp,
    pending: u64,
    /// When something was reported last.
    used: Timestamp,
    /// Demand in the last cycle, and by that the expected one, once it is known. The unit is [`DEMAND`].
    last_demand: Option<u32>,
    demand: Option<u32>,
    /// The number of the hold of its slot.
    slot_hold: u32,
    slot: Slot,
    /// The number and the size of the hold of its demand.
    demand_hold: Option<(u32, u32)>,
    pieces: Vec<Piece>,
    /// Whether it wants units that others hold.
    lacks_units: bool,
    /// The tokens per fill of the last assignment, and when it was sent.
    sent: Option<(u32, Timestamp)>,
    /// Whether it was reported since its last turn.
    is_reported: bool,
    /// Its entry in the timers.
    timer: Option<Timestamp>,
}

/// The slot of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    None,
    /// The store may have opened it. It is renewed, because a repeated hold lasts no longer than the first.
    Unknown,
    Open,
}

/// A piece of the units of a share.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// The number of its hold.
    hold: u32,
    units: u32,
    state: PieceState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceState {
    /// A part of the assignment.
    Kept,
    /// To be left out of the next assignment.
    Shed,
    /// Left out of the assignment that is in force at this time.
    Leaving(Timestamp),
}

/// One round of operations and answers, and the actions that follow.
#[derive(Debug, Default)]
struct Turn {
    start: Timestamp,
    due: Vec<DueBucket>,
    steps: Vec<Step>,
    /// Number of the steps whose answers are awaited.
    asked: usize,
    actions: Vec<Action>,
}

/// A bucket in a turn.
#[derive(Debug)]
struct DueBucket {
    bucket: u32,
    is_reported: bool,
    /// Whether an operation has failed.
    has_failed: bool,
    /// Whether its demand is registered, or will be in the next operations.
    is_registered: bool,
    /// How often it was decided what to open.
    growths: u32,
    /// Demand of all.
    total: u32,
    /// Units that no stream holds, if that was requested.
    free: u32,
    /// Units that it still wants.
    wanted: u32,
}

/// An operation of a turn.
#[derive(Debug)]
struct Step {
    /// Index in [`Turn::due`].
    due: usize,
    id: HoldId,
    kind: StepKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepKind {
    OpenSlot,
    RenewSlot,
    /// A hold of this much demand.
    OpenDemand(u32, u32),
    RenewDemand,
    SettleDemand,
    RenewPiece(u32),
    SettlePiece(u32),
    PeekUnits,
    /// A hold of this number with so many units.
    OpenPiece(u32, u32),
}

/// An operation on a ledger, for the store.
#[derive(Debug)]
pub(crate) struct LedgerOperation {
    keys: Arc<[Vec<u8>; 3]>,
    ledgers: Arc<Ledgers>,
    id: HoldId,
    kind: StepKind,
}

/// The answer to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Allowed {
        remaining: u32,
    },
    Denied {
        remaining: u32,
    },
    /// Nothing is known.
    Failed,
}

impl QuotaStream {
    /// A stream that has just begun, and is counted in `stats`. `id` is random.
    pub(crate) fn new(
        id: [u8; 16],
        not_before: Timestamp,
        max_buckets: usize,
        stats: Arc<QuotaStats>,
    ) -> Self {
        Self {
            id,
            next_hold: 0,
            domain: None,
            buckets: AHashMap::new(),
            by_id: AHashMap::new(),
            next_bucket: 0,
            ledgers: AHashMap::new(),
            timers: BTreeSet::new(),
            abandoned: AHashMap::new(),
            not_before,
            max_buckets,
            bytes: 0,
            turn: Turn::default(),
            max_due: MAX_DUE,
            stats,
        }
    }

    /// Takes the reports of one message, also during a turn. They are answered in the next turn.
    pub(crate) fn report(
        &mut self,
        now: Timestamp,
        domain: &str,
        usages: impl IntoIterator<Item = Usage>,
        find: FindQuota<'_>,
    ) -> Result<(), InvalidReport> {
        match &self.domain {
            None if domain.is_empty() => return Err(InvalidReport::Domain),
            None => self.domain = Some(domain.to_owned()),
            Some(first) if !domain.is_empty() && first != domain => {
                return Err(InvalidReport::OtherDomain(domain.to_owned()));
            }
            Some(_) => {}
        }
        self.stats.messages.add();
        for usage in usages {
            if !(1..=MAX_ENTRIES).contains(&usage.bucket.len()) {
                return Err(InvalidReport::Bucket(usage.bucket.len()));
            }
            self.stats.reports.add();
            self.report_bucket(now, usage, find);
        }
        Ok(())
    }

    fn report_bucket(&mut self, now: Timestamp, usage: Usage, find: FindQuota<'_>) {
        let domain = self.domain.as_deref().unwrap_or_default();
        let found = find(domain, &usage.bucket);
        let known = self.by_id.get(&usage.bucket).copied();
        let Some(found) = found else {
            self.stats.no_rule(domain);
            known.into_iter().for_each(|number| drop(self.forget(number)));
            return;
        };
        found.rule.add_many(RuleEvent::Allowed, usage.allowed);
        found.rule.add_many(RuleEvent::Denied, usage.denied);
        let is_same = |it: &Bucket| it.key == found.key && it.ledgers.terms == found.terms;
        // Envoy has sent it before it has read that it is to abandon the bucket.
        let is_unused = usage.allowed == 0 && usage.denied == 0;
        if is_unused && self.abandoned.get(&usage.bucket).is_some_and(|at| now < *at + CYCLE) {
            return;
        }
        let number = match known {
            Some(number) if self.buckets.get(&number).is_some_and(is_same) => Some(number),
            // Its rule has changed. The holds of its former share expire with the assignment.
            Some(number) => {
                self.forget(number);
                self.add(now, usage.bucket, found)
            }
            None => self.add(now, usage.bucket, found),
        };
        let Some(number) = number else { return };
        self.schedule(number, now);
        let Some(bucket) = self.buckets.get_mut(&number) else { return };
        bucket.is_reported = true;
        bucket.measure(now, usage.allowed.saturating_add(usage.denied));
    }

    /// The bucket needs a turn from `at` on, or from an earlier time on that is known already.
    fn schedule(&mut self, number: u32, at: Timestamp) {
        let Some(bucket) = self.buckets.get_mut(&number) else { return };
        match bucket.timer {
            Some(before) if before <= at => return,
            Some(before) => drop(self.timers.remove(&(before, number))),
            None => {}
        }
        bucket.timer = Some(at);
        self.timers.insert((at, number));
    }

    /// Adds a bucket, unless there are too many, or its key is too long.
    fn add(&mut self, now: Timestamp, id: BucketId, found: FoundQuota) -> Option<u32> {
        let bytes = bucket_bytes(&id, &found.key);
        if self.buckets.len() >= self.max_buckets || self.bytes + bytes > MAX_STREAM_BYTES {
            self.stats.rejected_buckets.add();
            return None;
        }
        let terms = found.terms;
        // Under other terms a slot and a unit are others: both ledgers count until the former shares have expired.
        let QuotaTerms { slots, max_tokens, tokens, fill_interval, .. } = terms;
        let ledger = |name: &str| {
            let terms = format!("{slots}x{max_tokens}:{tokens}/{fill_interval}s");
            let mut key = format!("quota:{name}:{terms}:").into_bytes();
            key.extend_from_slice(&found.key);
            key
        };
        let keys = ["slots", "units", "demand"].map(ledger);
        if keys.iter().any(|key| key.len() > MAX_KEY) {
            self.stats.long_keys.add();
            return None;
        }
        self.bytes += bytes;
        self.stats.buckets.add();
        let ledgers = self.ledgers.entry(terms).or_insert_with(|| Arc::new(Ledgers::new(terms)));
        let number = self.next_bucket;
        self.next_bucket += 1;
        let id = Arc::new(id);
        let slot_hold = self.next_hold;
        self.next_hold += 1;
        self.by_id.insert(Arc::clone(&id), number);
        self.buckets.insert(
            number,
            Bucket {
                id,
                rule: found.rule,
                keys: Arc::new(keys),
                key: found.key,
                ledgers: Arc::clone(ledgers),
                measured: now,
                pending: 0,
                used: now,
                last_demand: None,
                demand: None,
                slot_hold,
                slot: Slot::None,
                demand_hold: None,
                pieces: Vec::new(),
                lacks_units: false,
                sent: None,
                is_reported: false,
                timer: None,
            },
        );
        Some(number)
    }

    /// Forgets a bucket, and returns its identity. Its holds expire.
    fn forget(&mut self, number: u32) -> Option<Arc<BucketId>> {
        let bucket = self.buckets.remove(&number)?;
        if let Some(at) = bucket.timer {
            self.timers.remove(&(at, number));
        }
        self.by_id.remove(&bucket.id);
        self.bytes -= bucket_bytes(&bucket.id, &bucket.key);
        self.stats.buckets.remove();
        bucket.rule.reassign(bucket.assigned_rate(), 0);
        Some(bucket.id)
    }

    /// Memory of its buckets in bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// When the stream needs a turn; `None`: when something is reported.
    pub(crate) fn next_turn(&self) -> Option<Timestamp> {
        let (at, _) = self.timers.first()?;
        Some(self.not_before.max(*at))
    }

    /// Begins a turn for buckets that need one, those first that have waited longest. `false`: none does.
    pub(crate) fn begin_turn(&mut self, now: Timestamp) -> bool {
        if now < self.not_before {
            return false;
        }
        let (mut due, mut late) = (Vec::new(), 0);
        while due.len() < self.max_due
            && let Some(&(at, number)) = self.timers.first().filter(|(at, _)| *at <= now)
        {
            self.timers.remove(&(at, number));
            let Some(bucket) = self.buckets.get_mut(&number) else { continue };
            bucket.timer = None;
            if now > self.not_before.max(at) + MAX_WAIT {
                late += 1;
            }
            due.push(DueBucket::new(number, mem::take(&mut bucket.is_reported)));
        }
        self.stats.late(late, now);
        self.turn = Turn { start: now, due, ..Turn::default() };
        for at in 0..self.turn.due.len() {
            self.renew(at, now);
        }
        !self.turn.due.is_empty()
    }

    /// The operations that renew all that the bucket holds.
    fn renew(&mut self, at: usize, now: Timestamp) {
        let Some(bucket) = self.buckets.get_mut(&self.turn.due[at].bucket) else { return };
        let (stream, steps) = (self.id, &mut self.turn.steps);
        let mut step =
            |hold: u32, kind| steps.push(Step { due: at, id: hold_id(stream, hold), kind });
        let slot = match bucket.slot {
            Slot::None => StepKind::OpenSlot,
            Slot::Unknown | Slot::Open => StepKind::RenewSlot,
        };
        step(bucket.slot_hold, slot);
        for piece in &bucket.pieces {
            match piece.state {
                PieceState::Kept | PieceState::Shed => {
                    step(piece.hold, StepKind::RenewPiece(piece.hold));
                }
                PieceState::Leaving(since) if since <= now => {
                    step(piece.hold, StepKind::SettlePiece(piece.hold));
                }
                PieceState::Leaving(_) => {}
            }
        }
        self.register(at);
    }

    /// The operations that register the demand of the bucket. That of a bucket without a slot does not count, because it gets nothing.
    fn register(&mut self, at: usize) {
        let due = &mut self.turn.due[at];
        let Some(bucket) = self.buckets.get_mut(&due.bucket) else { return };
        let (stream, steps) = (self.id, &mut self.turn.steps);
        let mut step =
            |hold: u32, kind| steps.push(Step { due: at, id: hold_id(stream, hold), kind });
        due.is_registered = bucket.slot == Slot::Open;
        let demand = if due.is_registered { bucket.demand.unwrap_or(0) } else { 0 };
        match bucket.demand_hold {
            Some((hold, held)) if held.abs_diff(demand) <= held / 16 => {
                step(hold, StepKind::RenewDemand);
            }
            held => {
                if let Some((hold, _)) = held {
                    step(hold, StepKind::SettleDemand);
                }
                bucket.demand_hold = None;
                // A bucket without demand gets nothing, whatever the demand of others.
                if demand > 0 {
                    step(self.next_hold, StepKind::OpenDemand(self.next_hold, demand));
                    self.next_hold += 1;
                }
            }
        }
        if due.is_registered && bucket.sent.is_none() && bucket.demand.is_none() {
            step(0, StepKind::PeekUnits);
        }
    }

    /// The operations of the turn that are next; none: its actions are complete.
    pub(crate) fn operations(&mut self) -> Vec<LedgerOperation> {
        let (buckets, turn) = (&self.buckets, &mut self.turn);
        // A report may have ended a bucket.
        turn.steps.retain(|step| buckets.contains_key(&turn.due[step.due].bucket));
        let operations: Vec<_> = turn
            .steps
            .iter()
            .take(MAX_OPERATIONS)
            .filter_map(|step| Some(buckets.get(&turn.due[step.due].bucket)?.operation(step)))
            .collect();
        turn.asked = operations.len();
        operations
    }

    /// Takes the answers to the [`operations`](Self::operations), in their order.
    pub(crate) fn answers(
        &mut self,
        now: Timestamp,
        answers: impl IntoIterator<Item = Result<Answer, StoreError>>,
    ) {
        let rest = self.turn.steps.split_off(mem::take(&mut self.turn.asked));
        let steps = mem::replace(&mut self.turn.steps, rest);
        for (step, answer) in steps.iter().zip(answers) {
            let outcome = Outcome::of(&answer);
            if outcome == Outcome::Failed {
                self.stats.failed_operations.add();
            }
            let due = &mut self.turn.due[step.due];
            let Some(bucket) = self.buckets.get_mut(&due.bucket) else { continue };
            bucket.answer(step, outcome, due);
        }
        if now > self.turn.start + MAX_TURN {
            return self.end_turn(now);
        }
        if !self.turn.steps.is_empty() {
            return;
        }
        for at in 0..self.turn.due.len() {
            self.divide(at);
        }
        if self.turn.steps.is_empty() {
            self.end_turn(now);
        }
    }

    /// Decides which pieces the bucket keeps, and which it opens.
    fn divide(&mut self, at: usize) {
        let due = &mut self.turn.due[at];
        let Some(bucket) = self.buckets.get_mut(&due.bucket) else { return };
        if due.has_failed || bucket.slot != Slot::Open {
            return;
        }
        if !due.is_registered {
            return self.register(at);
        }
        due.growths += 1;
        let units = bucket.ledgers.terms.units;
        if due.growths == 1 {
            // The demand of a new bucket is not known: it gets half of what is free, because others may come.
            let wanted = match bucket.demand {
                None if bucket.sent.is_some() => 0,
                None => due.free / 2,
                Some(demand) => part(units, demand, due.total.max(demand)),
            };
            if bucket.demand.is_some() {
                bucket.shed(wanted);
            }
            let kept = bucket.merge(wanted);
            due.wanted = wanted.saturating_sub(kept);
            if due.wanted <= kept / 32 {
                due.wanted = 0;
            }
            bucket.lacks_units = false;
        }
        // The second attempt asks for what was left at the first.
        if due.wanted == 0 || due.growths > 2 {
            return;
        }
        let room = MAX_PIECES.saturating_sub(bucket.pieces.len());
        // A small growth is one piece.
        let room = if due.wanted < bucket.kept() / 4 { room.min(1) } else { room };
        for units in split(due.wanted, room) {
            let kind = StepKind::OpenPiece(self.next_hold, units);
            self.turn.steps.push(Step { due: at, id: hold_id(self.id, self.next_hold), kind });
            self.next_hold += 1;
        }
        due.wanted = 0;
    }

    /// Makes the actions of the turn.
    fn end_turn(&mut self, now: Timestamp) {
        let is_late = now > self.turn.start + MAX_TURN;
        self.turn.steps.clear();
        if is_late {
            self.stats.late(self.turn.due.len(), now);
            self.max_due = (self.turn.due.len() / 2).max(1);
        } else {
            self.max_due = MAX_DUE.min(self.max_due + 1);
        }
        self.abandoned.retain(|_, at| now < *at + CYCLE);
        for due in mem::take(&mut self.turn.due) {
            let Some(bucket) = self.buckets.get_mut(&due.bucket) else { continue };
            if bucket.is_idle(now) {
                let Some(id) = self.forget(due.bucket) else { continue };
                self.abandoned.insert(Arc::clone(&id), now);
                self.stats.abandoned.add();
                self.turn.actions.push(Action { bucket: id, assignment: None });
                continue;
            }
            let has_failed = due.has_failed || is_late;
            if bucket.slot != Slot::Open && !has_failed {
                self.stats.rejected_shares.add();
            }
            let mut wake = now + RETRY_FAILED;
            if bucket.slot == Slot::Open && !has_failed {
                let tokens = bucket.tokens();
                let is_new =
                    bucket.sent.is_none_or(|(sent, at)| sent != tokens || now >= at + CYCLE);
                if due.is_reported || is_new {
                    bucket.send(tokens, now);
                    self.turn.actions.push(Action {
                        bucket: Arc::clone(&bucket.id),
                        assignment: Some(bucket.assignment(tokens)),
                    });
                }
                wake = bucket.next_turn(now);
            }
            self.schedule(due.bucket, wake);
        }
    }

    /// The actions of the turn, to be sent in one message.
    pub(crate) fn take_actions(&mut self) -> Vec<Action> {
        mem::take(&mut self.turn.actions)
    }
}

impl Drop for QuotaStream {
    fn drop(&mut self) {
        self.stats.streams.remove();
        for bucket in self.buckets.values() {
            self.stats.buckets.remove();
            bucket.rule.reassign(bucket.assigned_rate(), 0);
        }
    }
}

impl Bucket {
    /// Takes `count` requests of Envoy, and measures the demand once enough time has passed.
    fn measure(&mut self, now: Timestamp, count: u64) {
        self.pending = self.pending.saturating_add(count);
        if count > 0 {
            self.used = now;
        }
        let elapsed = now.since(self.measured);
        if elapsed < MIN_CYCLE {
            return;
        }
        let QuotaTerms { tokens, fill_interval, .. } = self.ledgers.terms;
        // The part of the limit: requests in the cycle, by the tokens of the limit in that time.
        let requests = u128::from(self.pending) * u128::from(fill_interval) * 1_000_000;
        let demand = requests * u128::from(DEMAND) / (u128::from(tokens) * elapsed.as_micros());
        let demand = u32::try_from(demand).unwrap_or(MAX_DEMAND).min(MAX_DEMAND);
        let demand = if self.pending > 0 { demand.max(1) } else { 0 };
        let last = self.last_demand.replace(demand).unwrap_or(demand);
        // A large change has happened somewhere in the cycle, in the middle for all that is known.
        let is_large = demand.abs_diff(last) > demand.max(last) / 5;
        let expected = (2 * demand).saturating_sub(last).clamp(demand / 2, MAX_DEMAND);
        let expected = if is_large { expected } else { demand };
        self.demand = Some(if self.pending > 0 { expected.max(1) } else { 0 });
        (self.measured, self.pending) = (now, 0);
    }

    /// Whether it has been unused for longer than its bucket takes to fill.
    fn is_idle(&self, now: Timestamp) -> bool {
        let QuotaTerms { max_tokens, base, fill_interval, .. } = self.ledgers.terms;
        let fill = (u64::from(max_tokens) * u64::from(fill_interval)).div_ceil(base.into());
        self.pending == 0 && now > self.used + MIN_IDLE.max(Duration::from_secs(fill) + CYCLE)
    }

    /// Units of the pieces that are kept.
    fn kept(&self) -> u32 {
        let kept = self.pieces.iter().filter(|it| it.state == PieceState::Kept);
        kept.map(|it| it.units).sum()
    }

    /// Leaves out the largest pieces that do not fit, if the share is more than a part above `wanted`.
    fn shed(&mut self, wanted: u32) {
        let most = wanted.saturating_add(wanted / 32);
        if self.kept() <= most {
            return;
        }
        self.pieces.sort_unstable_by_key(|it| std::cmp::Reverse(it.units));
        let mut kept = 0;
        for piece in self.pieces.iter_mut().filter(|it| it.state == PieceState::Kept) {
            if kept + piece.units <= most {
                kept += piece.units;
            } else {
                piece.state = PieceState::Shed;
            }
        }
    }

    /// Leaves out the smallest pieces of a share that is to grow and has no room for more, unless some are on their way out.
    /// Returns the units that are kept.
    fn merge(&mut self, wanted: u32) -> u32 {
        let is_settled = self.pieces.iter().all(|it| it.state == PieceState::Kept);
        if self.kept() < wanted && self.pieces.len() + 3 > MAX_PIECES && is_settled {
            self.pieces.sort_unstable_by_key(|it| it.units);
            let smallest = self.pieces.iter_mut().take(MAX_PIECES / 2);
            smallest.for_each(|it| it.state = PieceState::Shed);
        }
        self.kept()
    }

    /// Takes the answer to an operation.
    fn answer(&mut self, step: &Step, outcome: Outcome, due: &mut DueBucket) {
        let used = |remaining: u32| ALL_DEMAND.saturating_sub(remaining);
        match (step.kind, outcome) {
            // Whatever has become of the hold, it expires, and nothing is assigned by it.
            (StepKind::OpenPiece(..) | StepKind::SettlePiece(_), Outcome::Failed) => {
                self.forget_settled(step.kind);
            }
            (kind, Outcome::Failed) => {
                due.has_failed = true;
                if kind == StepKind::OpenSlot {
                    self.slot = Slot::Unknown;
                }
            }
            (StepKind::OpenSlot | StepKind::RenewSlot, outcome) => {
                self.slot = if outcome.is_allowed() { Slot::Open } else { Slot::None };
                due.has_failed |= step.kind == StepKind::RenewSlot && self.slot == Slot::None;
            }
            (StepKind::OpenDemand(hold, units), Outcome::Allowed { remaining }) => {
                self.demand_hold = Some((hold, units));
                due.total = used(remaining);
            }
            (StepKind::OpenDemand(..), Outcome::Denied { .. }) => due.total = ALL_DEMAND,
            (StepKind::RenewDemand, Outcome::Denied { remaining }) => {
                self.demand_hold = None;
                due.total = used(remaining);
            }
            (StepKind::RenewDemand, outcome) => {
                due.total = outcome.remaining().map_or(ALL_DEMAND, used);
            }
            (StepKind::SettleDemand, _) => {}
            (StepKind::PeekUnits, outcome) => due.free = outcome.remaining().unwrap_or(0),
            (StepKind::RenewPiece(hold), Outcome::Denied { .. }) => {
                self.pieces.retain(|it| it.hold != hold);
            }
            (StepKind::RenewPiece(_), _) => {}
            (StepKind::SettlePiece(_), _) => self.forget_settled(step.kind),
            (StepKind::OpenPiece(hold, units), Outcome::Allowed { .. }) => {
                self.pieces.push(Piece { hold, units, state: PieceState::Kept });
            }
            (StepKind::OpenPiece(_, units), Outcome::Denied { remaining }) => {
                due.wanted = due.wanted.max(remaining.min(units));
                self.lacks_units |= self.demand.is_some();
            }
        }
    }

    fn forget_settled(&mut self, kind: StepKind) {
        if let StepKind::SettlePiece(hold) = kind {
            self.pieces.retain(|it| it.hold != hold);
        }
    }

    fn operation(&self, step: &Step) -> LedgerOperation {
        let (keys, ledgers) = (Arc::clone(&self.keys), Arc::clone(&self.ledgers));
        LedgerOperation { keys, ledgers, id: step.id, kind: step.kind }
    }

    /// Tokens per fill of the share.
    fn tokens(&self) -> u32 {
        let QuotaTerms { base, unit_tokens, .. } = self.ledgers.terms;
        base + self.kept() * unit_tokens
    }

    fn assignment(&self, tokens_per_fill: u32) -> Assignment {
        let QuotaTerms { max_tokens, fill_interval, .. } = self.ledgers.terms;
        Assignment { max_tokens, tokens_per_fill, fill_interval }
    }

    /// The assigned rate in thousandths of a request per second.
    fn assigned_rate(&self) -> u64 {
        let tokens = self.sent.map_or(0, |(tokens, _)| tokens);
        u64::from(tokens) * 1000 / u64::from(self.ledgers.terms.fill_interval)
    }

    /// The assignment is sent: pieces that it leaves out can go once it is in force.
    fn send(&mut self, tokens: u32, now: Timestamp) {
        for piece in &mut self.pieces {
            if piece.state == PieceState::Shed {
                piece.state = PieceState::Leaving(now + DELIVERY);
            }
        }
        let before = self.assigned_rate();
        self.sent = Some((tokens, now));
        self.rule.reassign(before, self.assigned_rate());
    }

    /// When it needs a turn without a report.
    fn next_turn(&self, now: Timestamp) -> Timestamp {
        let leaving = self.pieces.iter().filter_map(|it| match it.state {
            PieceState::Leaving(at) => Some(at),
            PieceState::Kept | PieceState::Shed => None,
        });
        let retry = self.lacks_units.then(|| now + RETRY);
        let renewal = self.sent.map(|(_, at)| at + CYCLE);
        leaving.chain(retry).chain(renewal).min().unwrap_or(now + CYCLE)
    }
}

impl LedgerOperation {
    /// The operation with its key and its policy.
    pub(crate) fn keyed(&self) -> KeyedOperation<'_> {
        let [slots, units, demand] = &*self.keys;
        let ledgers = &*self.ledgers;
        let id = &self.id[..];
        let (renew, settle) =
            (Operation::Renew { id, ttl: None }, Operation::Settle { id, used: None });
        let hold = |cost| Operation::Hold { id, cost, ttl: None };
        let (key, policy, operation) = match self.kind {
            StepKind::OpenSlot => (slots, &ledgers.slots, hold(1)),
            StepKind::RenewSlot => (slots, &ledgers.slots, renew),
            StepKind::OpenDemand(_, cost) => (demand, &ledgers.demand, hold(cost)),
            StepKind::RenewDemand => (demand, &ledgers.demand, renew),
            StepKind::SettleDemand => (demand, &ledgers.demand, settle),
            StepKind::RenewPiece(_) => (units, &ledgers.units, renew),
            StepKind::SettlePiece(_) => (units, &ledgers.units, settle),
            StepKind::PeekUnits => (units, &ledgers.units, Operation::Peek(1)),
            StepKind::OpenPiece(_, cost) => (units, &ledgers.units, hold(cost)),
        };
        KeyedOperation { key, policy, operation }
    }
}

impl DueBucket {
    const fn new(bucket: u32, is_reported: bool) -> Self {
        let (has_failed, is_registered) = (false, false);
        Self {
            bucket,
            is_reported,
            has_failed,
            is_registered,
            growths: 0,
            total: 0,
            free: 0,
            wanted: 0,
        }
    }
}

impl Ledgers {
    fn new(terms: QuotaTerms) -> Self {
        let ledger = |limit| {
            let policy: Policy = Policy::concurrency(limit)
                .per(HOLD)
                .build()
                .expect("1 to 65536 units, and a period of seconds");
            // Every answer is the store's own: a fallback covers no assignment.
            PreparedPolicy::new(&policy).on_error(OnError::Fail).in_background(MAX_TURN)
        };
        Self {
            terms,
            slots: ledger(terms.slots),
            units: ledger(terms.units),
            demand: ledger(ALL_DEMAND),
        }
    }
}

impl Outcome {
    fn of(answer: &Result<Answer, StoreError>) -> Self {
        match answer {
            Ok(answer) if answer.allowed() => Self::Allowed { remaining: answer.remaining },
            Ok(answer) => Self::Denied { remaining: answer.remaining },
            Err(_) => Self::Failed,
        }
    }

    const fn is_allowed(self) -> bool {
        matches!(self, Self::Allowed { .. })
    }

    const fn remaining(self) -> Option<u32> {
        match self {
            Self::Allowed { remaining } | Self::Denied { remaining } => Some(remaining),
            Self::Failed => None,
        }
    }
}

fn hold_id(stream: [u8; 16], hold: u32) -> HoldId {
    let mut id = [0; 20];
    id[..16].copy_from_slice(&stream);
    id[16..].copy_from_slice(&hold.to_be_bytes());
    id
}

/// `units * share / all`, rounded down.
fn part(units: u32, share: u32, all: u32) -> u32 {
    let part = u64::from(units) * u64::from(share) / u64::from(all.max(1));
    u32::try_from(part).unwrap_or(units)
}

/// `units` as up to `room` pieces: a half and two quarters, so that some of them can go alone.
fn split(units: u32, room: usize) -> impl Iterator<Item = u32> {
    let pieces = if units >= 8 && room >= 3 {
        [units - 2 * (units / 4), units / 4, units / 4]
    } else if room > 0 {
        [units, 0, 0]
    } else {
        [0; 3]
    };
    pieces.into_iter().filter(|it| *it > 0)
}

/// Memory of a bucket in bytes.
fn bucket_bytes(id: &BucketId, key: &[u8]) -> usize {
    let texts: usize = id.iter().map(|(key, value)| key.len() + value.len() + 64).sum();
    BUCKET_BYTES + texts + 4 * key.len()
}
