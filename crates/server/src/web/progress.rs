//! Whether a connection gets on: what its client has begun and not finished, and what it does not
//! take.
//!
//! A request costs a few plain stores here and no look at the clock: a timer looks now and then
//! whether what was pending then is pending still, and since when. So a client is closed a little
//! later than its time, and never earlier.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use sluicegate_core::Timestamp;

use crate::Config;

/// What a client of HTTP/2 says first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Fields of a request's head, and those of a head that did not fit into one frame.
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
/// Says on either that the head is whole.
const END_HEADERS: u8 = 4;

/// How often at most, and at least, is looked.
const SHORTEST_LOOK: Duration = Duration::from_millis(20);
const LONGEST_LOOK: Duration = Duration::from_secs(10);

/// What has passed over a connection.
#[derive(Debug, Default)]
pub(super) struct Progress {
    input: RefCell<Input>,
    /// Changes with all that is begun.
    begun: Cell<u64>,
    /// Requests so far.
    requests: Cell<u64>,
    /// Requests that are not answered yet.
    flying: Cell<u64>,
    /// Whether the client takes nothing.
    stuck: Cell<bool>,
    /// Changes when the client takes something.
    taken: Cell<u64>,
}

/// A request that is not answered yet, until dropped.
#[derive(Debug)]
pub(super) struct Flight(Rc<Progress>);

/// What a client has said so far.
#[derive(Debug)]
enum Input {
    /// So many bytes of [`PREFACE`], and nothing else.
    Unknown(usize),
    /// HTTP/1.1; whether bytes have come of a request whose head is not whole.
    One {
        begun: bool,
    },
    Two(Frames),
}

/// Where in its frames a client of HTTP/2 is.
#[derive(Debug, Default)]
struct Frames {
    head: [u8; 9],
    /// How much of the frame's head has come.
    had: usize,
    /// How much of its body is to come.
    to_come: usize,
    /// Whether fields are to come that belong to those before.
    open: bool,
}

impl Default for Input {
    fn default() -> Self {
        Self::Unknown(0)
    }
}

impl Progress {
    /// A request has come.
    #[inline]
    pub(super) fn begin(self: &Rc<Self>) -> Flight {
        self.requests.set(self.requests.get() + 1);
        self.flying.set(self.flying.get() + 1);
        self.input.borrow_mut().finished();
        Flight(Rc::clone(self))
    }

    #[inline]
    pub(super) fn read(&self, bytes: &[u8]) {
        let mut input = self.input.borrow_mut();
        let before = input.begun();
        input.read(bytes);
        if !before {
            self.begun.set(self.begun.get() + 1);
        }
    }

    #[inline]
    pub(super) fn wrote(&self, stuck: bool) {
        self.stuck.set(stuck);
        if !stuck {
            self.taken.set(self.taken.get() + 1);
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.flying.set(self.0.flying.get() - 1);
        self.0.input.borrow_mut().finished();
    }
}

impl Input {
    /// Whether something has begun that is not whole yet.
    const fn begun(&self) -> bool {
        match self {
            Self::Unknown(had) => *had > 0,
            Self::One { begun } => *begun,
            Self::Two(frames) => frames.had > 0 || frames.to_come > 0 || frames.open,
        }
    }

    /// What was begun on HTTP/1.1 is whole. On HTTP/2 the frames tell.
    const fn finished(&mut self) {
        if let Self::One { begun } = self {
            *begun = false;
        }
    }

    #[inline]
    fn read(&mut self, bytes: &[u8]) {
        match self {
            Self::One { begun } => *begun = true,
            Self::Two(frames) => frames.read(bytes),
            Self::Unknown(had) => {
                let expected = &PREFACE[*had..];
                let length = expected.len().min(bytes.len());
                let (front, behind) = bytes.split_at(length);
                if front != &expected[..length] {
                    *self = Self::One { begun: true };
                    return;
                }
                *had += length;
                if *had == PREFACE.len() {
                    let mut frames = Frames::default();
                    frames.read(behind);
                    *self = Self::Two(frames);
                }
            }
        }
    }
}

impl Frames {
    fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.to_come > 0 {
                let length = self.to_come.min(bytes.len());
                self.to_come -= length;
                bytes = &bytes[length..];
                continue;
            }
            let length = (self.head.len() - self.had).min(bytes.len());
            let (front, behind) = bytes.split_at(length);
            self.head[self.had..self.had + length].copy_from_slice(front);
            self.had += length;
            bytes = behind;
            if self.had == self.head.len() {
                let [high, middle, low, kind, flags, ..] = self.head;
                self.to_come =
                    usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                if kind == HEADERS || kind == CONTINUATION {
                    self.open = flags & END_HEADERS == 0;
                }
                self.had = 0;
            }
        }
    }
}

/// Why a client is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It asks nothing, or does not finish what it began to ask.
    Idle,
    /// It does not take its replies.
    Slow,
}

/// For how long what is waited for, of one client.
#[derive(Debug)]
pub(super) struct Patience {
    /// A request whose head is not whole.
    input: Bound,
    /// A request, after the one before was answered.
    next: Bound,
    /// That the client takes something.
    output: Bound,
}

/// How long one thing may last. A limit of zero: for ever.
#[derive(Debug)]
struct Bound {
    limit: Duration,
    seen: Option<(u64, Timestamp)>,
}

impl Patience {
    pub(super) const fn new(config: &Config) -> Self {
        Self {
            input: Bound { limit: config.input_timeout, seen: None },
            next: Bound { limit: config.timeout, seen: None },
            output: Bound { limit: config.output_timeout, seen: None },
        }
    }

    /// When to look again.
    pub(super) fn next_look(&self) -> Duration {
        let limits = [&self.input, &self.next, &self.output].map(|bound| bound.limit);
        let least = limits.into_iter().filter(|limit| !limit.is_zero()).min();
        least.map_or(LONGEST_LOOK, |least| (least / 4).clamp(SHORTEST_LOOK, LONGEST_LOOK))
    }

    /// Looks. Why the client is to be closed, if it is.
    pub(super) fn look(&mut self, progress: &Progress, now: Timestamp) -> Option<Ended> {
        let stuck = progress.stuck.get().then(|| progress.taken.get());
        if self.output.is_over(stuck, now) {
            return Some(Ended::Slow);
        }
        let rests = progress.flying.get() == 0 && !progress.stuck.get();
        let begun = rests && progress.input.borrow().begun();
        let begun = begun.then(|| progress.begun.get());
        let next = rests.then(|| progress.requests.get());
        // Both are looked at: each begins when it is first seen.
        let over = [self.input.is_over(begun, now), self.next.is_over(next, now)];
        over.contains(&true).then_some(Ended::Idle)
    }
}

impl Bound {
    /// Whether `what` is there, and has been the same for longer than may be.
    fn is_over(&mut self, what: Option<u64>, now: Timestamp) -> bool {
        let Some(what) = what else {
            self.seen = None;
            return false;
        };
        let since = match self.seen {
            Some((seen, since)) if seen == what => since,
            _ => now,
        };
        self.seen = Some((what, since));
        let lasted = now.as_micros().saturating_sub(since.as_micros());
        !self.limit.is_zero() && Duration::from_micros(lasted) >= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
    }

    /// Whether `Progress` says that something has begun after each of `parts` came.
    fn begun(parts: &[&[u8]]) -> Vec<bool> {
        let progress = Progress::default();
        parts
            .iter()
            .map(|part| {
                progress.read(part);
                progress.input.borrow().begun()
            })
            .collect()
    }

    #[test]
    fn a_head_in_parts_is_begun_until_it_is_asked() {
        assert_eq!(begun(&[b"G", b"ET / HTTP/1.1\r\n"]), [true, true]);
        assert_eq!(begun(&[b"PRI * HTTP/1.1\r\n"]), [true]);
        let progress = Rc::new(Progress::default());
        progress.read(b"POST / HTTP/1.1\r\n\r\n");
        let flight = progress.begin();
        assert!(!progress.input.borrow().begun());
        progress.read(b"the body");
        drop(flight);
        assert!(!progress.input.borrow().begun());
    }

    #[test]
    fn frames_are_begun_until_they_are_whole() {
        let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let open_headers = [0, 0, 1, HEADERS, 0, 0, 0, 0, 1, 0x82];
        let continued = [0, 0, 1, CONTINUATION, END_HEADERS, 0, 0, 0, 1, 0x84];
        let parts: [&[u8]; 8] = [
            &PREFACE[..10],
            &PREFACE[10..],
            &ping,
            &ping[..3],
            &ping[3..11],
            &ping[11..],
            &open_headers,
            &continued,
        ];
        let expected = [true, false, false, true, true, false, true, false];
        assert_eq!(begun(&parts), expected);
        let all = [&PREFACE[..], &ping, &ping, &continued].concat();
        assert_eq!(begun(&[&all, &open_headers[..9]]), [false, true]);
    }

    #[test]
    fn what_lasts_is_over() {
        let config = Config { timeout: Duration::from_secs(100), ..Config::default() };
        let progress = Rc::new(Progress::default());
        let mut patience = Patience::new(&config);
        assert_eq!(patience.next_look(), Duration::from_millis(2500));
        assert_eq!(patience.look(&progress, seconds(0)), None);
        assert_eq!(patience.look(&progress, seconds(99)), None);
        assert_eq!(patience.look(&progress, seconds(100)), Some(Ended::Idle), "nothing is asked");

        let mut patience = Patience::new(&config);
        progress.read(b"G");
        assert_eq!(patience.look(&progress, seconds(10)), None);
        progress.read(b"E");
        assert_eq!(patience.look(&progress, seconds(39)), None);
        assert_eq!(patience.look(&progress, seconds(40)), Some(Ended::Idle), "it is not finished");
        let flight = progress.begin();
        assert_eq!(patience.look(&progress, seconds(500)), None, "it is not answered yet");
        progress.wrote(true);
        assert_eq!(patience.look(&progress, seconds(501)), None);
        progress.wrote(false);
        progress.wrote(true);
        assert_eq!(patience.look(&progress, seconds(510)), None);
        assert_eq!(patience.look(&progress, seconds(519)), None);
        assert_eq!(patience.look(&progress, seconds(520)), Some(Ended::Slow));
        drop(flight);
    }
}
