use loom::{sync::Arc, thread};

use super::*;
use crate::slot::Tat;

const HASH: u64 = 0x1234_5678_9abc_def0;
const SEED: usize = 7;

/// Another key, which is put where the first was.
fn second_key() -> u64 {
    let bucket = |hash| low(hash >> 2) ^ Stir::new(fingerprint(hash), SEED as u64).first;
    let others = (1..).map(|number: u64| HASH ^ number << 40);
    others.into_iter().find(|&other| bucket(other) == bucket(HASH)).expect("half of all keys are")
}

/// The state of a key: how many units it has taken, a unit being a microsecond.
fn slot(hash: u64, rule: u64, taken: u64) -> Slot {
    Slot::simple(hash, rule, Tat::at(taken))
}

fn taken(slot: Slot) -> u64 {
    (1..100).find(|&taken| slot.tat() == Tat::at(taken)).expect("a state that somebody wrote")
}

/// A segment with its buckets, which `loom` wants to see dropped.
struct Model {
    segment: Segment<()>,
    _buckets: Box<Buckets>,
}

impl Model {
    /// A key that has taken one unit under rule 1.
    fn new() -> Arc<Self> {
        let buckets: Box<Buckets> = Box::new(std::array::from_fn(|_| Bucket::default()));
        let segment = Segment::new(&raw const *buckets, SEED, HASH & 3, ());
        assert!(segment.lock().insert(HASH, slot(HASH, 1, 1), |(), _| false));
        Arc::new(Self { segment, _buckets: buckets })
    }

    fn lines(&self) -> Lines<'_> {
        Lines::new(self.segment.buckets(), SEED as u64)
    }

    /// Takes a unit as a decision does: without the lock where the key is found, else with it.
    fn take(&self, hash: u64, rule: u64) {
        while let Some(seen) = self.lines().peek::<false>(hash, rule) {
            if seen.replace(slot(hash, rule, taken(seen.slot()) + 1)) {
                return;
            }
        }
        let mut locked = self.segment.lock();
        match locked.find(hash) {
            Some((place, _)) => {
                let seen = locked.claim(place);
                locked.put(place, slot(hash, rule, taken(seen) + 1));
            }
            None => assert!(locked.insert(hash, slot(hash, rule, 1), |(), _| false)),
        }
    }

    /// What a denial would be answered from.
    fn seen(&self, hash: u64, rule: u64) -> Option<Slot> {
        self.lines().peek::<true>(hash, rule).filter(Seen::is_whole).map(|seen| seen.slot())
    }

    fn end(&self, hash: u64) -> Option<u64> {
        self.segment.lock().find(hash).map(|(_, seen)| taken(seen.slot()))
    }
}

fn beside(model: &Arc<Model>, run: impl FnOnce(&Model) + 'static) -> thread::JoinHandle<()> {
    let model = Arc::clone(model);
    thread::spawn(move || run(&model))
}

#[test]
fn no_unit_is_lost_between_decisions() {
    loom::model(|| {
        let model = Model::new();
        let other = beside(&model, |model| model.take(HASH, 1));
        model.take(HASH, 1);
        other.join().expect("no panic");
        assert_eq!(model.end(HASH), Some(3));
    });
}

#[test]
fn no_unit_is_lost_between_a_decision_and_a_change_of_rule() {
    loom::model(|| {
        let model = Model::new();
        let other = beside(&model, |model| model.take(HASH, 2));
        model.take(HASH, 1);
        other.join().expect("no panic");
        assert_eq!(model.end(HASH), Some(3));
    });
}

#[test]
fn no_unit_is_lost_while_a_slot_moves() {
    loom::model(|| {
        let model = Model::new();
        let other = beside(&model, |model| {
            let mut locked = model.segment.lock();
            let (place, _) = locked.find(HASH).expect("the key is there");
            assert!(locked.move_away(place, &mut |(), _| false));
            locked.put(place, Slot::default());
        });
        model.take(HASH, 1);
        other.join().expect("no panic");
        assert_eq!(model.end(HASH), Some(2));
    });
}

#[test]
fn no_unit_is_lost_while_a_segment_splits() {
    loom::model(|| {
        let model = Model::new();
        let other = beside(&model, |model| {
            let mut locked = model.segment.lock();
            let moving = locked.take_out(|(), _| true);
            locked.adopt(moving.into_iter());
        });
        model.take(HASH, 1);
        other.join().expect("no panic");
        assert_eq!(model.end(HASH), Some(2));
    });
}

#[test]
fn what_is_seen_is_of_one_moment() {
    loom::model(|| {
        let model = Model::new();
        let seen = |model: &Model| {
            let seen = model.seen(second_key(), 2);
            assert!(seen.is_none_or(|it| taken(it) == 5), "{seen:?}");
            let seen = model.seen(HASH, 1);
            assert!(seen.is_none_or(|it| taken(it) == 1), "{seen:?}");
        };
        let reader = beside(&model, seen);
        // The slot goes to another key, whose state is a later one.
        let mut locked = model.segment.lock();
        let (place, _) = locked.find(HASH).expect("the key is there");
        locked.clear(place);
        assert!(locked.insert(second_key(), slot(second_key(), 2, 5), |(), _| false));
        drop(locked);
        reader.join().expect("no panic");
        assert_eq!((model.end(HASH), model.end(second_key())), (None, Some(5)));
    });
}

#[test]
fn a_slot_that_another_key_takes_over_is_not_charged_for_the_first() {
    loom::model(|| {
        let model = Model::new();
        let other = beside(&model, |model| {
            let mut locked = model.segment.lock();
            // What has recovered by now is given up: a key that took three more has not.
            let (place, _) = locked.find(HASH).expect("the key is there");
            if locked.take(place, &mut |(), slot| taken(slot) == 1).is_some() {
                assert!(locked.insert(second_key(), slot(second_key(), 1, 5), |(), _| false));
                assert_eq!(locked.find(second_key()).map(|(it, _)| it), Some(place));
            }
        });
        model.take(HASH, 1);
        other.join().expect("no panic");
        // The unit was taken first, and the slot not given up; or it was taken from what is there anew.
        let end = (model.end(HASH), model.end(second_key()));
        assert!([(Some(2), None), (Some(1), Some(5))].contains(&end), "{end:?}");
    });
}
