//! A store as a file, whole or not at all.

use std::{
    io::{self, Cursor, Write},
    time::Duration,
};

use sha2::{Digest, Sha256};
use sluicegate_conformance::{check_full_ledger, full_ledger};
use sluicegate_core::{Entry, Operation, Policy};
use sluicegate_memory::{MemoryStore, NumberedPolicy, SnapshotError, WhenFull};

use super::{at, conformance::InMemory, policy, size, take};

const POLICIES: [&str; 6] = [
    "gcra:3/1m",
    "gcra:7/1m:borrow",
    "sliding-log:5/1h",
    "fixed-window:4/day",
    "gcra:3/1m:burst=9,gcra:100/1d",
    "token-bucket:2/1s:burst=4000:refill=interval",
];

fn filled(keys: u32) -> (MemoryStore, Vec<Policy>) {
    let store = MemoryStore::new();
    let policies: Vec<_> = POLICIES.iter().map(|text| policy(text)).collect();
    for key in 0..keys {
        let policy = &policies[key as usize % policies.len()];
        for _ in 0..2 {
            let charged =
                store.apply(&key.to_le_bytes(), policy, at(0), Operation::Charge(1 + key % 3));
            assert!(charged.is_ok());
        }
    }
    (store, policies)
}

fn load(bytes: &[u8]) -> Result<MemoryStore, SnapshotError> {
    MemoryStore::load(Cursor::new(bytes), at(0), MemoryStore::DEFAULT_MAX_BYTES, WhenFull::Deny)
}

#[test]
fn load_saved_store_returns_equal_entries() {
    let keys = 20_000;
    let (store, policies) = filled(keys);
    let mut bytes = Vec::new();
    assert_eq!(store.save(&mut bytes, at(0)).unwrap(), u64::from(keys));
    let loaded = load(&bytes).unwrap();
    assert_eq!(loaded.len(), store.len());
    for key in 0..keys {
        let policy = &policies[key as usize % policies.len()];
        let decisions = |store: &MemoryStore| {
            store.apply(&key.to_le_bytes(), policy, at(9), Operation::Take(1))
        };
        assert_eq!(decisions(&loaded), decisions(&store));
    }
}

/// A store that is loaded answers every operation on holds as the one that was saved, hold by hold, also once they expire.
#[test]
fn load_saved_store_returns_equal_holds() {
    let keys = 3_000_u32;
    let texts = [
        "concurrency:9/1h",
        "gcra:20/1h",
        "concurrency:9/1h,sliding-log:20/1h",
        "fixed-window:20/1d",
        "token-bucket:20/1h:refill=interval,concurrency:7/1m",
    ];
    let policies = texts.map(policy);
    let of = |key: u32| &policies[key as usize % policies.len()];
    // Of 8 to 64 bytes.
    let id = |key: u32, hold: u32| {
        let id = [b"hold".repeat(1 + key as usize % 16), hold.to_be_bytes().to_vec()].concat();
        id[id.len().saturating_sub(64)..].to_vec()
    };
    let ttl = |seconds: u64| Some(Duration::from_secs(seconds));
    let store = MemoryStore::new();
    for key in 0..keys {
        let hold = |number: u32, at_us: u64| {
            let id = &id(key, number);
            let hold = Operation::Hold { id, cost: 1 + number, ttl: ttl(10 + u64::from(number)) };
            store.apply(&key.to_le_bytes(), of(key), at(at_us), hold).unwrap()
        };
        assert!((0..1 + key % 3).all(|number| hold(number, u64::from(key)).allowed()), "{key}");
        if !of(key).counts_holds() {
            let take = Operation::Take(2);
            assert!(store.apply(&key.to_le_bytes(), of(key), at(9), take).unwrap().allowed());
        }
    }
    let mut bytes = Vec::new();
    assert_eq!(store.save(&mut bytes, at(10_000)).unwrap(), u64::from(keys));
    let loaded = load(&bytes).unwrap();
    let mut again = Vec::new();
    loaded.save(&mut again, at(10_000)).unwrap();
    let stores = [store, loaded, load(&again).unwrap()];
    let mut compared = 0;
    for key in 0..keys {
        let (policy, bytes) = (of(key), &key.to_le_bytes());
        let entries = stores.each_ref().map(|it| it.with_entry(bytes, Entry::clone));
        assert_eq!(entries[0], entries[1], "{key}");
        // While all are open, and when some have expired.
        for at_us in [20_000, 11_000_000 + u64::from(key) % 2_000_000] {
            let settle = |number| (number, 0);
            for (number, kind) in
                [(0, 1), (1, 2), (0, 2), (2, 1), settle(2), (9, 0), (1, 0), (9, 2)]
            {
                let id = &id(key, number);
                let operation = match kind {
                    0 => Operation::Settle { id, used: Some(number) },
                    1 => Operation::Renew { id, ttl: ttl(12) },
                    _ => Operation::Hold { id, cost: 3, ttl: ttl(12) },
                };
                let found =
                    stores.each_ref().map(|it| it.apply(bytes, policy, at(at_us), operation));
                assert!(found[1..].iter().all(|it| *it == found[0]), "{key}: {found:?}");
                let peeks = stores
                    .each_ref()
                    .map(|it| it.apply(bytes, policy, at(at_us), Operation::Peek(1)));
                assert!(peeks[1..].iter().all(|it| *it == peeks[0]), "{key}: {peeks:?}");
                compared += 1;
            }
        }
    }
    println!(
        "figure: {keys} keys with open holds saved and loaded, twice: {compared} equal answers to operations on holds"
    );
}

/// A ledger of 65 536 holds, which would take a minute to open.
#[test]
fn load_full_ledger_opens_no_hold_more() {
    let (store, policy) = (MemoryStore::new(), policy("token-bucket:1000000/1h"));
    let (begin, ttl) = (at(40_000_000), Some(Duration::from_secs(86_400)));
    let hold = Operation::Hold { id: b"one", cost: 1, ttl };
    assert!(store.apply(b"full", &policy, begin, hold).unwrap().allowed());
    let mut bytes = Vec::new();
    store.save(&mut bytes, begin).unwrap();
    let one = store.with_entry(b"full", Entry::encode).unwrap();
    let mut records = records(&bytes);
    let key = records.iter_mut().find(|it| kind(it) != SEGMENT).unwrap();
    assert!(key.ends_with(&one));
    let full = full_ledger(&policy, 65_536, 1, begin);
    key.splice(12.., full.iter().copied());
    let length = u32::try_from(full.len()).unwrap();
    key[8..12].copy_from_slice(&length.to_le_bytes());
    let loaded = load(&file(&bytes, &records)).unwrap();
    assert_eq!(loaded.with_entry(b"full", Entry::encode), Some(full));
    // Saved and loaded again, it is as full.
    let mut again = Vec::new();
    loaded.save(&mut again, begin).unwrap();
    for store in [loaded, load(&again).unwrap()] {
        check_full_ledger(&mut InMemory(store), b"full", &policy, (begin, 65_536));
    }
}

#[test]
fn save_recovered_keys_are_left_out() {
    let (store, _) = filled(600);
    let mut bytes = Vec::new();
    let later = at(40 * 86_400_000_000);
    assert_eq!(store.save(&mut bytes, later).unwrap(), 0);
    assert!(load(&bytes).unwrap().is_empty());
}

/// The length of a state file's head: magic, version, the keys of the hash.
const HEAD: usize = 17 + 1 + 32;

/// Set in the kind of a key whose state was in its slot.
const IN_SLOT: u32 = 1 << 31;
const SEGMENT: u32 = 0xffff_fffe;

fn kind(record: &[u8]) -> u32 {
    u32::from_le_bytes(record[8..12].try_into().unwrap())
}

/// The records of segments and keys in a state file.
fn records(file: &[u8]) -> Vec<Vec<u8>> {
    let (mut records, mut rest) = (Vec::new(), &file[HEAD..]);
    loop {
        let length = match kind(rest) {
            u32::MAX => return records,
            SEGMENT => 3,
            kind => kind & !IN_SLOT,
        };
        let (record, after) = rest.split_at(12 + length as usize);
        records.push(record.to_vec());
        rest = after;
    }
}

/// A file with the head of another one.
fn file(head: &[u8], records: &[Vec<u8>]) -> Vec<u8> {
    let mut file = head[..HEAD].to_vec();
    records.iter().for_each(|record| file.extend_from_slice(record));
    let keys = records.iter().filter(|record| kind(record) != SEGMENT).count() as u64;
    file.extend_from_slice(&0_u64.to_le_bytes());
    file.extend_from_slice(&u32::MAX.to_le_bytes());
    file.extend_from_slice(&keys.to_le_bytes());
    let digest = Sha256::digest(&file);
    file.extend_from_slice(&digest);
    file
}

#[test]
fn load_version_other_than_the_current_is_an_error_that_names_it() {
    let mut bytes = Vec::new();
    filled(60).0.save(&mut bytes, at(0)).unwrap();
    for version in [0, 1, 2, 3, 5] {
        bytes[17] = version;
        let error = load(&bytes).unwrap_err();
        let expected = format!(
            "state file has version {version}, and this version of sluicegate reads version 4"
        );
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn load_key_that_is_there_twice_is_an_error() {
    let mut bytes = Vec::new();
    filled(60).0.save(&mut bytes, at(0)).unwrap();
    let once = records(&bytes);
    assert!(load(&file(&bytes, &once)).is_ok());
    for index in 0..once.len() {
        if kind(&once[index]) == SEGMENT {
            continue;
        }
        let mut twice = once.clone();
        twice.insert(index, once[index].clone());
        let loaded = load(&file(&bytes, &twice));
        assert!(matches!(loaded, Err(SnapshotError::Damaged("it has a key twice"))), "{index}");
    }
}

/// A file determines how the hashes are divided, but not how much memory that takes.
#[test]
fn load_deep_segments_takes_no_more_memory_than_the_bound() {
    let bound = 4 << 20;
    let store = MemoryStore::bounded(bound, WhenFull::Deny);
    let prepared = prepared(&store, "sliding-log:100000/1h");
    for event in 0_u64.. {
        if !take(&store, &(event % 8).to_le_bytes(), &prepared, event) {
            break;
        }
    }
    let mut saved = Vec::new();
    store.save(&mut saved, at(0)).unwrap();
    let mut records = records(&saved);
    for record in records.iter_mut().filter(|record| kind(record) == SEGMENT) {
        record[12] = 6;
    }
    let file = file(&saved, &records);
    let loaded = MemoryStore::load(Cursor::new(&file), at(0), bound, WhenFull::Deny).unwrap();
    let bytes = loaded.usage().bytes;
    assert!(bytes <= bound / 20 * 21, "{bytes} of {bound}");
    assert_eq!(loaded.len(), 8);
}

#[test]
fn load_damaged_file_is_an_error() {
    let (store, _) = filled(60);
    let mut bytes = Vec::new();
    store.save(&mut bytes, at(0)).unwrap();
    // Such a file is never taken for one of another kind, which would stop a server.
    let is_damaged =
        |bytes: &[u8]| load(bytes).is_err_and(|it| !matches!(it, SnapshotError::NotStateFile));
    for cut in 0..bytes.len() {
        assert!(is_damaged(&bytes[..cut]), "cut at {cut}");
    }
    for index in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[index] ^= 1;
        assert!(is_damaged(&changed), "changed at {index}");
    }
    bytes.push(0);
    assert!(is_damaged(&bytes));
}

/// A file whose beginning has a few wrong bytes is a damaged state file.
#[test]
fn load_file_of_another_kind_is_another_error_than_damage() {
    let mut bytes = Vec::new();
    filled(60).0.save(&mut bytes, at(0)).unwrap();
    let begins_with = |start: &[u8]| [start, &bytes[start.len()..]].concat();
    for damaged in [
        Vec::new(),
        bytes[..5].to_vec(),
        vec![0; 3],
        vec![0; 100],
        begins_with(&[0; 64]),
        begins_with(b"SLUIcegate state\r"),
    ] {
        assert!(matches!(load(&damaged), Err(SnapshotError::Damaged(_))), "{damaged:x?}");
    }
    for other in [&b"x"[..], b"rules:\n- name: login\n", &[0xff; 64], b"\0\x01\x02\x03", b"su"] {
        assert!(matches!(load(other), Err(SnapshotError::NotStateFile)), "{other:x?}");
    }
}

/// A file that inserts new keys into the store that is being saved, after every few writes.
struct Growing<'a> {
    store: &'a MemoryStore,
    prepared: &'a NumberedPolicy,
    /// The number of the next new key.
    next: u64,
    /// New keys for every eight writes.
    pace: u64,
    writes: u64,
    bytes: Vec<u8>,
}

impl Write for Growing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writes += 1;
        for _ in 0..if self.writes.is_multiple_of(8) { self.pace } else { 0 } {
            assert!(take(self.store, &self.next.to_le_bytes(), self.prepared, 0));
            self.next += 1;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keys that split off a segment before it is written, after it, and while it is written are all in the snapshot, and
/// once.
#[test]
fn snapshots_of_a_table_that_grows_have_every_older_key_once() {
    let old = size("SLUICEGATE_OLD_KEYS", 20_000);
    // Under a policy whose state is in the slot, and under one whose state is beside the table.
    for text in ["fixed-window:1/12h", "sliding-log:1/12h"] {
        let store = MemoryStore::new();
        let numbered = prepared(&store, text);
        assert!((0..old).all(|key| take(&store, &key.to_le_bytes(), &numbered, 0)));
        let (mut next, mut snapshots, mut written) = (old, 0, 0);
        for pace in [0, 1, 2, 1] {
            let (writes, bytes) = (0, Vec::new());
            let mut file =
                Growing { store: &store, prepared: &numbered, next, pace, writes, bytes };
            let keys = store.save(&mut file, at(1)).unwrap();
            let loaded = load(&file.bytes).unwrap();
            let mut missing = 0;
            for key in 0..next {
                missing +=
                    u64::from(take(&loaded, &key.to_le_bytes(), &prepared(&loaded, text), 2));
            }
            assert_eq!(missing, 0, "{text}: missing of {next} keys, {} grew", file.next - next);
            assert!(keys >= next, "{text}");
            assert_eq!(keys, load(&file.bytes).unwrap().len() as u64, "{text}: a key twice");
            (next, snapshots, written) = (file.next, snapshots + 1, written + keys);
        }
        println!(
            "figure: {text}: {snapshots} snapshots while a table of {old} keys grew to {next}: of {written} \
             keys written none was missing and none was there twice"
        );
    }
}

fn prepared(store: &MemoryStore, text: &str) -> NumberedPolicy {
    store.prepare(&policy(text), at(0))
}
