//! Leases under random schedules of threads: takes, the end of leases, a policy change and a reset at once
//! (RELIABILITY 12). `cargo xtask loom` runs it.

use std::sync::Arc;

use shuttle::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};
use sluicegate_core::{Decision, Outcome};
use sluicegate_testing::size;

use super::*;

const LIFETIME: Duration = Duration::from_millis(100);

/// Units, and where they went.
#[derive(Default)]
struct World {
    now: AtomicU64,
    /// Taken from the store.
    taken: AtomicU64,
    used: AtomicU64,
    /// Given back, or lost.
    over: AtomicU64,
    resets_begun: AtomicU64,
    resets_done: AtomicU64,
    /// When the last chunk was requested.
    granted_at: AtomicU64,
}

impl World {
    fn now(&self) -> Timestamp {
        Timestamp::EPOCH + Duration::from_millis(self.now.load(Ordering::SeqCst))
    }

    fn add(&self, count: &AtomicU64, units: u32) {
        count.fetch_add(units.into(), Ordering::SeqCst);
    }

    /// Takes one unit, as `take_leased` does.
    fn take(&self, leases: &Leases, policy: &PlannedPolicy) {
        let mut turn = None;
        loop {
            let (now, mut over) = (self.now(), None);
            let outcome = leases.take(b"k", policy, 1, now, &mut over);
            if let Some(unspent) = over {
                self.add(&self.over, unspent.unspent.units);
            }
            match outcome {
                LeaseOutcome::Taken(_) => {
                    self.add(&self.used, 1);
                    let granted_at = self.granted_at.load(Ordering::SeqCst);
                    let until = Timestamp::EPOCH + Duration::from_millis(granted_at) + LIFETIME;
                    assert!(now < until, "a unit of a lease that was over is used");
                    return;
                }
                LeaseOutcome::Refill(_, chunk, token) if turn.is_some() => {
                    return self.refill((leases, policy), chunk, token);
                }
                LeaseOutcome::Refill(lock, ..) => {
                    let Ok(guard) = lock.try_lock_owned() else { return };
                    turn = Some(guard);
                }
                LeaseOutcome::Full => panic!("one key is too many"),
            }
        }
    }

    /// Requests a chunk, of which one unit is used.
    fn refill(&self, (leases, policy): (&Leases, &PlannedPolicy), chunk: u32, token: RefillToken) {
        self.granted_at.fetch_max(token.sent.as_micros() / 1000, Ordering::SeqCst);
        self.add(&self.taken, chunk);
        let resets_before = self.resets_begun.load(Ordering::SeqCst);
        thread::yield_now();
        let decision = Decision {
            outcome: Outcome::Allow { delay: Duration::ZERO },
            limit: 1000,
            remaining: 900,
            reset_after: LIFETIME,
            binding: 0,
        };
        let is_reset = self.resets_done.load(Ordering::SeqCst) > resets_before;
        let granted = Chunk { units: chunk, cost: 1, decision, window_end: Timestamp::MAX };
        let lost = leases.granted(b"k", policy, granted, (token, self.now()));
        assert!(
            lost >= chunk - 1 || !is_reset,
            "a chunk requested before a reset is used after it"
        );
        self.add(&self.used, 1);
        self.add(&self.over, lost);
    }
}

/// No unit that was taken is used twice, or used and given back, or lost without being counted.
#[test]
fn lease_units_are_used_or_given_back_once_whatever_the_schedule() {
    let schedules = usize::try_from(size("SLUICEGATE_SCHEDULES", 5_000)).unwrap();
    let policies: Vec<PlannedPolicy> = ["gcra:1000/1s", "gcra:2000/1s"]
        .map(|text| {
            PlannedPolicy::new(
                &text.parse::<sluicegate_core::PreparedPolicy>().unwrap().lease(8).unwrap(),
            )
        })
        .into();
    shuttle::check_random(
        move || {
            let leases = Arc::new(Leases::new(2, LIFETIME, ahash::RandomState::new()));
            let world = Arc::new(World::default());
            let spawn = |run: Box<dyn Fn(&World, &Leases) + Send>| {
                let (world, leases) = (Arc::clone(&world), Arc::clone(&leases));
                thread::spawn(move || run(&world, &leases))
            };
            let takes = |policy: PlannedPolicy, count: usize| {
                spawn(Box::new(move |world, leases| {
                    (0..count).for_each(|_| world.take(leases, &policy));
                }))
            };
            let policy = policies[0].clone();
            let threads = [
                takes(policies[0].clone(), 5),
                takes(policies[0].clone(), 5),
                // After a reload, the same key has another policy.
                takes(policies[1].clone(), 3),
                spawn(Box::new(|world, leases| {
                    for _ in 0..3 {
                        world.now.fetch_add(60, Ordering::SeqCst);
                        for unspent in leases.expired(Some(world.now())) {
                            world.add(&world.over, unspent.unspent.units);
                        }
                    }
                })),
                // Takes in between, so that chunks have grown when the key is reset.
                spawn(Box::new(move |world, leases| {
                    for _ in 0..3 {
                        (0..2).for_each(|_| world.take(leases, &policy));
                        world.resets_begun.fetch_add(1, Ordering::SeqCst);
                        world.add(&world.over, leases.forget(b"k"));
                        world.resets_done.fetch_add(1, Ordering::SeqCst);
                    }
                })),
            ];
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            for unspent in leases.expired(None) {
                world.add(&world.over, unspent.unspent.units);
            }
            let count = |count: &AtomicU64| count.load(Ordering::SeqCst);
            assert_eq!(count(&world.taken), count(&world.used) + count(&world.over));
            assert_eq!(leases.count.load(Ordering::SeqCst), 0);
        },
        schedules,
    );
    println!(
        "figure: leases under {schedules} random schedules of five threads: each unit is used or given back \
         once"
    );
}
