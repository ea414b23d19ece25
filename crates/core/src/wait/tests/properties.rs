//! Properties under random arrivals, steps, times, departures of clients and operations of others, in any order.

use std::collections::HashMap;

use proptest::prelude::*;

use super::{
    super::{
        Ticket,
        key_waiter::{KeyEvent, KeyStep},
        peeks_first,
    },
    world::{SECOND, World, at},
};
use crate::{Operation, Policy, apply};

/// Units per [`PERIOD`] that each of the policies admits at most, beyond the units of an idle key.
const LIMIT: u64 = 3;
const PERIOD: u64 = 3 * SECOND;

const POLICIES: [&str; 6] = [
    "gcra:3/3s",
    "fixed-window:3/3s",
    "sliding-log:3/3s",
    "leaky-queue:3/3s",
    "leaky-queue:3/3s,fixed-window:3/3s",
    "sliding-log:3/3s:count=all",
];

#[derive(Clone, Debug)]
enum Act {
    Arrive {
        cost: u32,
        timeout: u64,
    },
    Kill(usize),
    Stop(usize),
    /// The driver does one step.
    KeyStep(usize),
    Pass(u64),
    Take(u32),
    Charge(u32),
    Refund(u32),
    /// A take under another policy.
    Migrate(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (1..5_u32, 0..20 * SECOND).prop_map(|(cost, timeout)| Act::Arrive { cost, timeout }),
        1 => any::<usize>().prop_map(Act::Kill),
        1 => any::<usize>().prop_map(Act::Stop),
        6 => any::<usize>().prop_map(Act::KeyStep),
        3 => (0..2 * SECOND).prop_map(Act::Pass),
        1 => (1..3_u32).prop_map(Act::Take),
        1 => (1..3_u32).prop_map(Act::Charge),
        1 => (1..3_u32).prop_map(Act::Refund),
        1 => any::<usize>().prop_map(Act::Migrate),
    ];
    prop::collection::vec(act, 1..80)
}

/// Carries out `acts`, and lets every request that still waits reach its end. `is_quick`: each driver
/// runs until it sleeps before anything else happens, as in a store within the process.
fn run(policy: &str, acts: &[Act], is_quick: bool, mut check: impl FnMut(&World)) -> World {
    let mut world = World::default();
    for act in acts {
        let pick = |index: &usize| {
            let count = world.drivers.len().max(1);
            world.drivers.keys().nth(index % count).copied()
        };
        match act {
            Act::Arrive { cost, timeout } => {
                world.arrive(policy, *cost, *timeout);
            }
            Act::Kill(index) => {
                // A refund that was sent to the store is not lost.
                if let Some(ticket) = pick(index)
                    && !matches!(world.drivers[&ticket].step, KeyStep::Apply(Operation::Refund(_)))
                {
                    world.leave(ticket);
                }
            }
            Act::Stop(index) => {
                if let Some(ticket) = pick(index)
                    && let KeyStep::SleepUntil(_) = world.drivers[&ticket].step
                {
                    world.poll(ticket, KeyEvent::Stopped);
                }
            }
            Act::KeyStep(index) => {
                if let Some(ticket) = pick(index) {
                    world.step(ticket);
                }
            }
            Act::Pass(micros) => {
                let then = world.now.as_micros() + micros;
                if is_quick {
                    world.run_until(then);
                } else {
                    world.now = at(then);
                }
            }
            Act::Take(cost) => _ = world.apply_only(policy, Operation::Take(*cost)),
            Act::Charge(cost) => _ = world.apply_only(policy, Operation::Charge(*cost)),
            Act::Refund(cost) => _ = world.apply_only(policy, Operation::Refund(*cost)),
            Act::Migrate(index) => {
                let _ = world.apply_only(POLICIES[index % POLICIES.len()], Operation::Take(1));
            }
        }
        if is_quick {
            world.run_until_idle();
        }
        check(&world);
    }
    world.run_until_idle();
    world.run_until(world.now.as_micros() + 1000 * SECOND);
    assert!(world.drivers.is_empty(), "every request is answered");
    assert_eq!(world.queues.waiting(), 0);
    world
}

/// Everything assigned is either delivered or given back, and a denial is one take, not counting those that another request came
/// before.
fn nothing_is_lost(world: &World, policy: &Policy) {
    let mut charged: HashMap<Ticket, i64> = HashMap::new();
    let mut takes: HashMap<Ticket, u32> = HashMap::new();
    let mut peeked: HashMap<Ticket, bool> = HashMap::new();
    for (ticket, operation, decision) in &world.applied {
        let units = match operation {
            Operation::Take(cost) | Operation::Reserve { cost, .. } if decision.allowed() => {
                i64::from(*cost)
            }
            Operation::Refund(cost) => -i64::from(*cost),
            _ => 0,
        };
        *charged.entry(*ticket).or_default() += units;
        let is_take = matches!(operation, Operation::Take(_));
        let was_allowed = peeked.insert(*ticket, !is_take && decision.allowed());
        let is_late = was_allowed == Some(true) && !decision.allowed();
        *takes.entry(*ticket).or_default() += u32::from(is_take && !is_late);
    }
    for (ticket, units) in charged {
        let is_allowed =
            world.answers.iter().any(|(it, _, decision)| *it == ticket && decision.allowed());
        assert_eq!(units > 0, is_allowed, "{ticket:?}");
        assert!(units >= 0, "{ticket:?}");
        if policy.limits().iter().any(|limit| limit.count_all()) {
            assert!(takes[&ticket] <= 1, "{ticket:?}");
        }
    }
}

fn is_change_of_others(act: &Act) -> bool {
    matches!(act, Act::Refund(_) | Act::Migrate(_))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn wait_any_order_of_steps_loses_nothing_and_stays_within_the_policy(
        index in 0..POLICIES.len(),
        acts in acts(),
    ) {
        let policy = POLICIES[index];
        let acts: Vec<_> = acts.into_iter().filter(|act| !is_change_of_others(act)).collect();
        let world = run(policy, &acts, false, |_| {});
        nothing_is_lost(&world, &policy.parse().unwrap());
        let mut answers: Vec<_> = world.answers.iter().filter(|(.., it)| it.allowed()).collect();
        answers.sort_by_key(|(_, when, _)| *when);
        let mut delivered = 0;
        for (ticket, when, _) in answers {
            delivered += world.costs[ticket];
            let bound = LIMIT + when.as_micros() * LIMIT / PERIOD;
            prop_assert!(delivered <= bound, "{delivered} at {when}, at most {bound}");
        }
    }

    #[test]
    fn wait_any_events_keep_order_deadlines_and_wake_the_head(
        index in 0..POLICIES.len(),
        acts in acts(),
    ) {
        let policy: Policy = POLICIES[index].parse().unwrap();
        // The projection of a head that has only peeked may change with a later migration.
        let is_migrated = acts.iter().any(|act| matches!(act, Act::Migrate(_)));
        let is_exact = !is_migrated || !peeks_first(&policy);
        let world = run(POLICIES[index], &acts, true, |world| {
            // The head of the queue sleeps only while it cannot pass.
            if is_exact && let Some(ticket) = world.head() {
                let peek = Operation::Peek(u32::try_from(world.costs[&ticket]).unwrap());
                let peek = apply(&policy, &mut world.entry.clone(), world.now, peek).unwrap();
                assert!(!peek.allowed(), "{ticket:?} could pass at {}", world.now);
            }
        });
        nothing_is_lost(&world, &policy);
        for (ticket, when, decision) in &world.answers {
            assert!(*when <= world.deadlines[ticket] || !decision.allowed(), "{ticket:?}");
            assert!(*when <= world.deadlines[ticket], "{ticket:?} is denied in time");
        }
        let passes = world.applied.iter().filter(|(_, operation, decision)| {
            matches!(operation, Operation::Take(_)) && decision.allowed()
        });
        prop_assert!(passes.map(|(ticket, ..)| ticket).is_sorted());
    }
}
