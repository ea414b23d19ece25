//! Commands that are, byte for byte, the one before but for the key.
//!
//! Most clients ask the same of many keys. Such a command need not be parsed, looked up and checked
//! once more: what stands before and behind the key is compared with what stood there last, on whichever
//! connection of the worker, and the key is asked what the last one was. What is not the same goes the
//! long way.

use sluicegate_core::Operation;
use sluicegate_resp::{Version, Writer};

use super::batch::{Gather, Reply};
use crate::policies::policy_cache::Known;

/// The longest key that is taken the short way: its length has three digits at the most.
const LONGEST: usize = 999;

/// What is behind the key of a command that is remembered is at most so long.
const MOST: usize = 1024;

/// The last command that gathered one decision about its first argument, for whichever connection of a
/// worker.
#[derive(Debug, Default)]
pub(super) struct Again {
    last: Option<Last>,
    /// Whether the bytes are those of the last one.
    learned: bool,
    /// The bytes up to the length of the key, and those behind the key.
    front: Vec<u8>,
    back: Vec<u8>,
    /// What it asks holds for this [generation](crate::policies::policy_cache::Rules::generation) of rules.
    generation: u64,
}

/// What the last command asked, and its place in the table of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Last {
    index: usize,
    rule: Known,
    operation: Operation,
    reply: Reply,
}

impl Again {
    /// What was looked up in another generation of rules holds no longer.
    #[inline]
    pub(super) fn keep_to(&mut self, generation: u64) {
        if self.generation != generation {
            self.generation = generation;
            self.forget();
        }
    }

    /// Remembers a command that gathered `gather`. When the one before asked the same, so may those
    /// that follow: its bytes are learned.
    pub(super) fn note(&mut self, index: usize, arguments: &[&[u8]], gather: &Gather<'_>) {
        let &Gather { key: asked, rule, operation, reply } = gather;
        let last = Some(Last { index, rule, operation, reply });
        let [name, key, behind @ ..] = arguments else { return self.forget() };
        let long = behind.iter().map(|it| it.len()).sum::<usize>() > MOST;
        if long || !std::ptr::eq(*key, asked) {
            return self.forget();
        }
        self.learned = self.last == last;
        self.last = last;
        if self.learned {
            self.front.clear();
            let mut front = Writer::new(&mut self.front, Version::Resp2);
            front.array(arguments.len());
            front.bulk(name);
            self.front.push(b'$');
            self.back.clear();
            self.back.extend_from_slice(b"\r\n");
            let mut back = Writer::new(&mut self.back, Version::Resp2);
            behind.iter().for_each(|argument| back.bulk(argument));
        }
    }

    /// What was remembered holds no longer.
    pub(super) fn forget(&mut self) {
        (self.last, self.learned) = (None, false);
    }

    /// Takes such a command from the front of `unread`, if there is one: its place in the table,
    /// and what it asks.
    #[inline]
    pub(super) fn take<'a>(&self, unread: &mut &'a mut [u8]) -> Option<(usize, Gather<'a>)> {
        let Last { index, rule, operation, reply } = self.last.filter(|_| self.learned)?;
        let rest = unread.strip_prefix(&*self.front)?;
        let (length, digits) = length(rest)?;
        let behind = rest.get(digits + length..)?;
        if !behind.starts_with(&self.back) {
            return None;
        }
        let start = self.front.len() + digits;
        let end = start + length;
        let (command, rest) = std::mem::take(unread).split_at_mut(end + self.back.len());
        *unread = rest;
        Some((index, Gather { key: &command[start..end], rule, operation, reply }))
    }
}

/// The length that stands at the front, and how many bytes say it. An empty key, like one that is
/// too long, is not for us to answer.
#[inline]
fn length(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut length = 0;
    for (at, &byte) in bytes.iter().take(4).enumerate() {
        match byte {
            b'0'..=b'9' => length = length * 10 + usize::from(byte - b'0'),
            b'\r' if bytes.get(at + 1) == Some(&b'\n') => {
                return (1..=LONGEST).contains(&length).then_some((length, at + 2));
            }
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{Operation, PreparedPolicy};

    use super::{super::batch::Reply, *};
    use crate::policies::policy_cache::Rules;

    const FIRST: [&[u8]; 3] = [b"SG.TAKE", b"user7", b"gcra:30/1m"];

    fn gather() -> Gather<'static> {
        let mut rules = Rules::default();
        let text = sluicegate_commands::PolicyText::Text(b"gcra:30/1m");
        let make = |text: sluicegate_commands::PolicyText<'_>| {
            Ok(PreparedPolicy::from(text.parse().unwrap()))
        };
        let rule = rules.find(text, make).unwrap();
        Gather { key: FIRST[1], rule, operation: Operation::Take(1), reply: Reply::Decision }
    }

    /// After the same command came twice.
    fn again() -> Again {
        let mut again = Again::default();
        again.note(3, &FIRST, &gather());
        again.note(3, &FIRST, &gather());
        again
    }

    /// The key that is taken from the front of `bytes`, and how much is left.
    fn take(bytes: &str) -> Option<(Vec<u8>, usize)> {
        let again = again();
        let mut bytes = bytes.as_bytes().to_vec();
        let mut unread = &mut *bytes;
        let (index, gather) = again.take(&mut unread)?;
        assert_eq!(index, 3);
        Some((gather.key.to_vec(), unread.len()))
    }

    const SAME: &str = "*3\r\n$7\r\nSG.TAKE\r\n$3\r\nyou\r\n$10\r\ngcra:30/1m\r\n";

    #[test]
    fn a_command_that_differs_in_the_key_is_taken() {
        assert_eq!(take(SAME), Some((b"you".to_vec(), 0)));
        assert_eq!(take(&format!("{SAME}*1\r\n")), Some((b"you".to_vec(), 4)));
        let key = "x".repeat(LONGEST);
        let long = SAME.replace("$3\r\nyou", &format!("${LONGEST}\r\n{key}"));
        assert_eq!(take(&long), Some((key.into(), 0)));
    }

    #[test]
    fn what_is_not_the_same_goes_the_long_way() {
        for (from, to) in [
            ("SG.TAKE", "SG.PEEK"),
            ("SG.TAKE", "sg.take"),
            ("30/1m", "30/1h"),
            ("*3", "*4"),
            ("$3\r\nyou", "$0\r\n"),
            ("$3\r\nyou", "$4\r\nyou"),
            ("$3\r\nyou", "$2\r\nyou"),
            ("$3\r\nyou", "$03x\r\nyou"),
            ("$3\r\nyou", "$-1"),
            ("$3\r\nyou", "$1000\r\nyou"),
        ] {
            assert_eq!(take(&SAME.replace(from, to)), None, "{to}");
        }
        for cut in 0..SAME.len() {
            assert_eq!(take(&SAME[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn what_is_forgotten_is_not_taken() {
        let mut again = again();
        again.forget();
        assert!(again.take(&mut &mut *SAME.as_bytes().to_vec()).is_none());
        // Nor what was seen once only.
        again.note(3, &FIRST, &gather());
        assert!(again.take(&mut &mut *SAME.as_bytes().to_vec()).is_none());
    }

    #[test]
    fn it_holds_for_one_generation_of_rules() {
        let mut again = again();
        again.keep_to(0);
        assert!(again.take(&mut &mut *SAME.as_bytes().to_vec()).is_some());
        again.keep_to(1);
        assert!(again.take(&mut &mut *SAME.as_bytes().to_vec()).is_none());
    }

    #[test]
    fn what_is_long_is_not_kept() {
        let (mut again, long) = (Again::default(), [b'x'; MOST + 1]);
        let arguments = [FIRST[0], FIRST[1], &long];
        for _ in 0..3 {
            again.note(3, &arguments, &gather());
        }
        assert_eq!((again.last, again.back.capacity()), (None, 0));
    }
}
