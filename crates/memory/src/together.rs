//! Several keys decided together: all of their states are in our hands while that is done.
//!
//! The segments of the keys are locked in the order of their addresses, so that two who want the same
//! ones never wait for each other; and room for keys that are not there is made before anything is
//! decided, so that nothing need be taken back.

use sluicegate_core::{
    Decision, Entry, Joint, Operation, Part as Side, Timestamp, apply, peek_together, take_together,
};

use crate::{
    MemoryStore, Rule, WhenFull,
    large::Large,
    segment::{Locked, Place},
    shard::Part,
};

/// One of several keys that are asked together.
#[derive(Clone, Copy, Debug)]
pub struct Take<'a> {
    /// Whom it is about.
    pub key: &'a [u8],
    /// The policy.
    pub rule: &'a Rule,
    /// Units asked for.
    pub cost: u32,
}

/// The locks on the segments of several keys.
struct Locks<'a> {
    locked: Vec<Locked<'a, Part<Large>>>,
    /// Which of them is that of each key.
    which: Vec<usize>,
}

/// What is in our hands of a key.
struct Held {
    /// Where its slot is; `None` if nothing will be stored of it.
    place: Option<Place>,
    entry: Option<Entry>,
}

impl MemoryStore {
    /// Takes from several keys at `now`, from all of them or from none, atomically. A key that is given
    /// twice is asked once, the first time. `None` for no key.
    ///
    /// ```
    /// use sluicegate_core::{Clock, Policy};
    /// use sluicegate_memory::{MemoryStore, SystemClock, Take};
    ///
    /// let (store, clock) = (MemoryStore::new(), SystemClock::new());
    /// let [user, all] = ["gcra:5/1m", "gcra:100/1s"].map(|it| it.parse::<Policy>().unwrap());
    /// let (user, all) = (store.rule(&user, clock.now()), store.rule(&all, clock.now()));
    /// let takes = [
    ///     Take { key: b"user7", rule: &user, cost: 1 },
    ///     Take { key: b"everybody", rule: &all, cost: 1 },
    /// ];
    /// let joint = store.take_together(&takes, clock.now()).expect("two keys");
    /// assert!(joint.decision.allowed());
    /// assert_eq!((joint.key, joint.decision.remaining), (0, 4));
    /// ```
    pub fn take_together(&self, takes: &[Take<'_>], now: Timestamp) -> Option<Joint> {
        let _ = self.since_set_base(now);
        let takes = self.hashed(takes);
        loop {
            if let Some(joint) = self.try_together(&takes, now) {
                return joint;
            }
        }
    }

    /// What [`MemoryStore::take_together`] would answer, storing nothing.
    pub fn peek_together(&self, takes: &[Take<'_>], now: Timestamp) -> Option<Joint> {
        let takes = self.hashed(takes);
        let mut locks = self.lock_all(&takes);
        let mut held = self.claim(&mut locks, &takes, vec![None; takes.len()]);
        let joint = peek_together(&mut sides(&takes, &mut held), now);
        self.put_back(&mut locks, &takes, held, now);
        joint
    }

    /// `None` where a segment had to make room, and all is to be looked up anew.
    fn try_together(&self, takes: &[(u64, Take<'_>)], now: Timestamp) -> Option<Option<Joint>> {
        let mut locks = self.lock_all(takes);
        let mut places = vec![None; takes.len()];
        let mut full = vec![false; takes.len()];
        // All of this may give up what has recovered: so it comes before anything is in our hands.
        for (at, &(hash, Take { rule, cost, .. })) in takes.iter().enumerate() {
            let locked = &mut locks.locked[locks.which[at]];
            let found = locked.find(hash).map(|(_, seen)| seen.slot());
            let take = Operation::Take(cost);
            full[at] = cost > 0 && self.is_full(locked, (hash, found), rule, now, take);
        }
        for (at, &(hash, Take { cost, .. })) in takes.iter().enumerate() {
            let locked = &mut locks.locked[locks.which[at]];
            if cost == 0 || full[at] || locked.find(hash).is_some() {
                continue;
            }
            places[at] = self.reserve(locked, hash, now);
            if places[at].is_none() {
                for (at, place) in places.iter().enumerate() {
                    if let Some(place) = *place {
                        self.forget(&mut locks.locked[locks.which[at]], place);
                    }
                }
                let locked = &mut locks.locked[locks.which[at]];
                if self.make_room(self.shard(hash), locked, hash, now) {
                    return None;
                }
                full[at] = true;
                return Some(self.turned_away(&mut locks, takes, &full, now));
            }
        }
        if full.contains(&true) && self.when_full == WhenFull::Deny {
            for (at, place) in places.iter().enumerate() {
                if let Some(place) = *place {
                    self.forget(&mut locks.locked[locks.which[at]], place);
                }
            }
            return Some(self.turned_away(&mut locks, takes, &full, now));
        }
        full.iter().filter(|it| **it).for_each(|_| self.budget.count_turned_away());
        let mut held = self.claim(&mut locks, takes, places);
        let joint = take_together(&mut sides(takes, &mut held), now);
        self.put_back(&mut locks, takes, held, now);
        Some(joint)
    }

    /// The answer where there is no room for some of the keys: nothing is stored.
    fn turned_away(
        &self,
        locks: &mut Locks<'_>,
        takes: &[(u64, Take<'_>)],
        full: &[bool],
        now: Timestamp,
    ) -> Option<Joint> {
        let mut held = self.claim(locks, takes, vec![None; takes.len()]);
        let each = takes.iter().zip(&mut held).zip(full).map(|((it, held), &full)| {
            let Take { rule, cost, .. } = it.1;
            if full {
                let take = Operation::Take(cost);
                return self.turn_away(it.0, rule.policy(), now, take).ok();
            }
            apply(rule.policy(), &mut held.entry, now, Operation::Peek(cost)).ok()
        });
        let each: Option<Vec<Decision>> = each.collect();
        self.put_back(locks, takes, held, now);
        Joint::of(each?)
    }

    /// Locks the segments of all keys.
    fn lock_all(&self, takes: &[(u64, Take<'_>)]) -> Locks<'_> {
        let segment = |hash: u64| self.shard(hash).segment(hash);
        loop {
            let segments: Vec<_> = takes.iter().map(|(hash, _)| segment(*hash)).collect();
            let mut order = segments.clone();
            order.sort_by_key(|segment| std::ptr::from_ref(*segment).addr());
            order.dedup_by(|a, b| std::ptr::eq(*a, *b));
            let locked = order.iter().map(|segment| segment.lock()).collect();
            // A segment is split under its lock: what the directory says now holds until it is let go.
            if takes.iter().zip(&segments).all(|(it, then)| std::ptr::eq(*then, segment(it.0))) {
                let place = |segment| order.iter().position(|it| std::ptr::eq(*it, segment));
                let which = segments.into_iter().map(|it| place(it).unwrap_or_default()).collect();
                return Locks { locked, which };
            }
        }
    }

    /// Takes the states of all keys into our hands. `places` are those that were reserved.
    fn claim(
        &self,
        locks: &mut Locks<'_>,
        takes: &[(u64, Take<'_>)],
        places: Vec<Option<Place>>,
    ) -> Vec<Held> {
        let claim = |(at, (&(hash, _), reserved)): (usize, (&(u64, Take<'_>), Option<Place>))| {
            let locked = &mut locks.locked[locks.which[at]];
            let Some((place, _)) = locked.find(hash) else {
                return Held { place: reserved, entry: None };
            };
            let slot = locked.claim(place);
            Held { place: Some(place), entry: self.take_entry(locked, slot) }
        };
        takes.iter().zip(places).enumerate().map(claim).collect()
    }

    /// Puts the states where they belong, as they are now.
    fn put_back(
        &self,
        locks: &mut Locks<'_>,
        takes: &[(u64, Take<'_>)],
        held: Vec<Held>,
        now: Timestamp,
    ) {
        for (at, (&(hash, Take { rule, .. }), held)) in takes.iter().zip(held).enumerate() {
            let locked = &mut locks.locked[locks.which[at]];
            let Some(place) = held.place else { continue };
            let keeps = |entry: &Entry| !self.one_clock || !entry.lifetime(now).is_zero();
            match held.entry.filter(keeps) {
                Some(entry) => {
                    let slot = self.slot_of(locked, hash, entry, rule, now);
                    locked.put(place, slot);
                }
                None => self.forget(locked, place),
            }
        }
    }

    fn forget(&self, locked: &mut Locked<'_, Part<Large>>, place: Place) {
        locked.clear(place);
        self.budget.count_keys(1, 0);
    }
}

impl MemoryStore {
    fn hashed<'a>(&self, takes: &[Take<'a>]) -> Vec<(u64, Take<'a>)> {
        let mut known: Vec<(u64, Take<'a>)> = Vec::with_capacity(takes.len());
        for take in takes {
            let hash = self.hash(take.key);
            if known.iter().all(|(it, _)| *it != hash) {
                known.push((hash, *take));
            }
        }
        known
    }
}

fn sides<'a>(takes: &'a [(u64, Take<'_>)], held: &'a mut [Held]) -> Vec<Side<'a>> {
    let side = |(it, held): (&'a (u64, Take<'_>), &'a mut Held)| Side {
        policy: it.1.rule.policy(),
        entry: &mut held.entry,
        cost: it.1.cost,
    };
    takes.iter().zip(held).map(side).collect()
}
