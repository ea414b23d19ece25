//! Keys with many holds: those that have expired are charged once, whatever operation meets them first.

use std::time::Duration;

use sluicegate_core::{
    Entry, KeyedOperation, ManualClock, Operation, PreparedPolicy, Request, Store,
};
use sluicegate_memory::{ClockedStore, MemoryStore};

use super::at;

#[test]
fn look_that_meets_expired_holds_charges_them_for_all_later_ones() {
    type Look = fn(&ClockedStore<ManualClock>, &PreparedPolicy);
    let looks: [(&str, Look); 4] = [
        ("read", |store, _| {
            store.read(b"k", &mut |_, _| ()).now().unwrap().unwrap();
        }),
        ("peek", |store, policy| {
            assert!(store.decide(b"k", policy, Operation::Peek(1)).unwrap().allowed());
        }),
        ("peek under another policy", |store, _| {
            let policy = "gcra:1/1s".parse().unwrap();
            let _ = store.decide(b"k", &policy, Operation::Peek(1)).unwrap();
        }),
        ("peek at several keys", |store, policy| {
            let operation = Operation::Peek(1);
            let peeks = [b"k", b"l"].map(|key| KeyedOperation { key, policy, operation });
            let request = Request::all(&peeks).unwrap();
            let _ = store.store().apply_all(request, at(20_000_000)).unwrap();
        }),
    ];
    for (text, open, used) in [
        ("token-bucket:1000/1d", Some(0), 100),
        ("sliding-log:1000/1d,concurrency:1000/1d", Some(0), 100),
        ("concurrency:1000/1d", None, 0),
    ] {
        for (what, look) in looks {
            let store = ClockedStore::new(MemoryStore::new(), ManualClock::new(at(0)));
            let policy = text.parse().unwrap();
            for id in 0..100_u8 {
                let ttl = Some(Duration::from_secs(1 + u64::from(id) % 7));
                let hold = Operation::Hold { id: &[id], cost: 1, ttl };
                assert!(store.decide(b"k", &policy, hold).unwrap().allowed());
            }
            let open_now = || store.store().with_entry(b"k", Entry::open_holds);
            assert_eq!(open_now(), Some(100));
            store.clock().advance(Duration::from_secs(20));
            look(&store, &policy);
            assert_eq!(open_now(), open, "{what}, {text}");
            let left = store.decide(b"k", &policy, Operation::Peek(1)).unwrap().remaining;
            assert_eq!(left, 1000 - used, "{what}, {text}");
        }
    }
}
