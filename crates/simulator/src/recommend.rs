//! Candidate policies, decided side by side on the traffic of each key, and the one to use.
//!
//! A [`Survey`] reads events once. For each key it keeps a profile, whose rule of thumb tells people from machines, and
//! the state and denials of every candidate. A [`Recommendation`] is what follows from them.

mod candidates;
mod choice;
mod key_sample;
mod profile;
mod survey;

pub use choice::{
    Attacker, DeniedKey, Evidence, LONG_PER_HOUR, MIN_KEYS, MIN_LENGTH, Named, Outcome,
    Percentiles, Point, Recommendation,
};
pub use profile::{ATTACK_REQUESTS, EVEN_GAPS, EVEN_SHARE, LONG, PAUSE, VOLUME_FACTOR};
pub use survey::{LONG_PAUSE, Survey};
