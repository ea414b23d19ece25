//! Migration of the state of a key to another policy: usage carries over.

use crate::{
    algorithm::{Limit, State},
    entry::Entry,
    policy::Policy,
    reached,
    time::Timestamp,
};

/// The state of a limit after [`migrate`], for an entry that was written under another policy.
pub(crate) enum MigratedState {
    /// The state itself.
    State(State),
    /// The log at this index of the entry, uncopied, because a log may be long. This limit reads it as the migrated
    /// limit reads its copy.
    Log(Limit, usize),
}

/// The state of each limit of `policy` after a migration of `old` at `now`.
pub(crate) fn migrated_states(old: &Entry, policy: &Policy, now: Timestamp) -> Vec<MigratedState> {
    let sources = match_limits(old.policy.limits(), policy.limits(), now);
    let migrated = policy.limits().iter().zip(sources).map(|(limit, source)| {
        let Some(index) = source else { return MigratedState::State(State::None) };
        let writer = &old.policy.limits()[index];
        // A log is read uncopied for `now` only: with open holds, limits look ahead.
        let state = &old.states[index];
        match limit.reader(writer, state, now).filter(|_| old.ledger().is_none()) {
            Some(reader) => MigratedState::Log(reader, index),
            None => MigratedState::State(limit.migrate(writer, state.clone(), now)),
        }
    });
    migrated.collect()
}

/// `old`, migrated to `policy` at `now`. A log is moved and not copied, and where several limits continue
/// one log they share its events, because a client may change the policy with every request.
pub(crate) fn migrate(mut old: Entry, policy: &Policy, now: Timestamp) -> Entry {
    let sources = match_limits(old.policy.limits(), policy.limits(), now);
    let mut states = crate::entry::States::new();
    for (at, (limit, source)) in policy.limits().iter().zip(&sources).enumerate() {
        let Some(index) = *source else {
            states.push(State::None);
            continue;
        };
        let again = sources[at + 1..].contains(source);
        let state = &mut old.states[index];
        let state = if again { state.share() } else { std::mem::take(state) };
        states.push(limit.migrate(&old.policy.limits()[index], state, now));
    }
    // Holds do not depend on the policy.
    if let Some(holds @ State::Holds(_)) = old.states.pop() {
        states.push(holds);
    }
    debug_assert!(!old.policy.decides_like(policy), "an entry migrates to its own policy");
    Entry { policy: policy.clone(), states }
}

/// Which old limit each new one continues. Those that have no state take no part.
fn match_limits(old: &[Limit], new: &[Limit], now: Timestamp) -> Vec<Option<usize>> {
    let mut sources = vec![None; new.len()];
    let mut taken: Vec<_> = old.iter().map(Limit::counts_holds).collect();
    let mut pass = |fits: &dyn Fn(&Limit, &Limit) -> bool| {
        for (limit, source) in new.iter().zip(&mut sources) {
            if source.is_none() && !limit.counts_holds() {
                let free = |&index: &usize| !taken[index] && fits(&old[index], limit);
                *source = (0..old.len()).find(free);
                if let Some(index) = *source {
                    taken[index] = true;
                }
            }
        }
    };
    pass(&|old, new| old.decides_like(new));
    pass(&|old, new| old.is_same_algorithm(new) && old.has_period_of(new, now));
    pass(&Limit::is_same_algorithm);

    // Every additional log begins with the events of the longest old log.
    let longest = longest_log(old);
    for (limit, source) in new.iter().zip(&mut sources) {
        if source.is_none() && limit.keeps_log() {
            reached!(AdditionalLogIsCopied if longest.is_some());
            *source = longest;
        }
    }
    let stateful = |limits: &[Limit]| limits.iter().filter(|it| !it.counts_holds()).count();
    if stateful(old) == stateful(new) {
        let mut left = (0..old.len()).filter(|&index| !taken[index]);
        for (limit, source) in new.iter().zip(&mut sources) {
            if source.is_none() && !limit.counts_holds() {
                *source = left.next();
                reached!(LeftoverLimitsPair if source.is_some());
            }
        }
    }
    debug_assert!(
        sources.iter().enumerate().all(|(at, source)| source.is_none()
            || new[at].keeps_log()
            || !sources[..at].contains(source)
            || sources[..at].iter().zip(new).any(|(it, new)| it == source && new.keeps_log())),
        "only logs continue one limit twice"
    );
    sources
}

/// The first of the logs with the longest period.
fn longest_log(limits: &[Limit]) -> Option<usize> {
    let logs = limits.iter().enumerate().filter(|(_, limit)| limit.keeps_log());
    let periods = logs.map(|(index, limit)| (limit.rate().1, std::cmp::Reverse(index)));
    periods.max().map(|(_, std::cmp::Reverse(index))| index)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Operation, apply};

    /// Logs of a few milliseconds, and others beside them.
    fn limit() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => (1..9_u32, 1..12_u32).prop_map(|(n, ms)| format!("sliding-log:{n}/{ms}ms")),
            2 => (1..9_u32, 1..12_u32, 1..20_u32, 1..9_u32)
                .prop_map(|(n, ms, keep, max)| format!("sliding-log:{n}/{ms}ms:keep={keep}ms:keep-max={max}")),
            1 => (1..9_u32, 1..12_u32).prop_map(|(n, ms)| format!("gcra:{n}/{ms}ms")),
            1 => (1..9_u32, 1..12_u32).prop_map(|(n, ms)| format!("fixed-window:{n}/{ms}ms")),
        ]
    }

    fn policy() -> impl Strategy<Value = Policy> {
        proptest::collection::vec(limit(), 1..=8)
            .prop_map(|limits| limits.join(",").parse().expect("a policy"))
    }

    fn time() -> impl Strategy<Value = Timestamp> {
        prop_oneof![Just(0), 0..24_000_u64].prop_map(Timestamp::saturating_from_micros)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3_000))]

        /// An uncopied log reads as its migrated copy does.
        #[test]
        fn migrated_states_read_as_after_migrate(
            (writer, reader) in (policy(), policy()),
            writes in proptest::collection::vec((time(), 1..6_u32), 0..8),
            now in time(),
            cost in 0..10_u32,
        ) {
            prop_assume!(writer != reader);
            let mut entry = None;
            for (time, cost) in writes {
                let _ = apply(&writer, &mut entry, time, Operation::Charge(cost)).expect("no reserve");
            }
            let mut migrated_entry = entry.clone().map(|entry| migrate(entry, &reader, now));
            let before = entry.clone();
            for operation in [Operation::Take(0), Operation::Peek(0), Operation::Peek(cost)] {
                let migrated = apply(&reader, &mut entry, now, operation);
                prop_assert_eq!(migrated, apply(&reader, &mut migrated_entry, now, operation));
            }
            prop_assert_eq!(entry, before, "a read does not change the entry");
        }
    }

    #[test]
    fn migrated_states_log_is_borrowed() {
        let [writer, reader]: [Policy; 2] =
            ["sliding-log:9/1h", &["sliding-log:9/2h"; 8].join(",")]
                .map(|text| text.parse().expect("a policy"));
        let mut entry = None;
        let _ =
            apply(&writer, &mut entry, Timestamp::EPOCH, Operation::Take(1)).expect("no reserve");
        let migrated = migrated_states(&entry.expect("one was taken"), &reader, Timestamp::EPOCH);
        assert_eq!(migrated.len(), 8);
        assert!(
            migrated.iter().all(|migrated| matches!(migrated, MigratedState::Log(_, 0))),
            "none is a copy"
        );
    }

    /// The cost of a request that changes the policy does not depend on the length of the log.
    #[test]
    fn migrate_log_continued_by_several_limits_is_not_copied() {
        let [one, eight]: [Policy; 2] =
            ["sliding-log:900/1h", &["sliding-log:800/2h"; 8].join(",")]
                .map(|text| text.parse().expect("a policy"));
        let mut entry = None;
        let mut take = |policy| {
            let decision = apply(policy, &mut entry, Timestamp::EPOCH, Operation::Take(1));
            assert!(decision.expect("no reserve").allowed());
            let oldest =
                entry.as_ref().expect("it has events").states.iter().map(|state| match state {
                    State::SlidingLog(log) => log.oldest(),
                    _ => None,
                });
            oldest.collect::<Vec<_>>()
        };
        let first = (0..200).map(|_| take(&one)).last().expect("200 events");
        assert_eq!(take(&eight), vec![first[0]; 8], "all have the events that there were");
        // The policies change in turn: each change adds few events, and earlier ones are shared.
        for _ in 0..20 {
            assert_eq!((0..10).map(|_| take(&one)).last(), Some(first.clone()));
            assert_eq!((0..10).map(|_| take(&eight)).last(), Some(vec![first[0]; 8]));
        }
        let states = &entry.as_ref().expect("it has events").states;
        let events = |state: &State| match state {
            State::SlidingLog(log) => log.len(),
            _ => 0,
        };
        assert!(states.iter().all(|state| events(state) == 601), "none is lost");
    }
}
