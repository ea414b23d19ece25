//! What follows from a survey: which keys look like people, machines and attacks, which of them each candidate denies, and
//! the candidate to use.

use std::{
    cmp::{Ordering, Reverse},
    time::Duration,
};

use sluicegate_core::Policy;

use super::{
    candidates::{Candidate, Family, HOUR},
    key_sample::Sampled,
    profile::{ATTACK_REQUESTS, LONG, VOLUME_FACTOR},
    survey::{KeyRecord, Survey},
};

/// Fewest keys for a comparison that does not depend on single ones.
pub const MIN_KEYS: u64 = 50;
/// Shortest traffic for which a candidate is named: limits per minute count a minute.
pub const MIN_LENGTH: Duration = Duration::from_secs(60);

/// How often [`LONG`] is in an hour.
pub const LONG_PER_HOUR: u64 = HOUR.as_secs() / LONG.as_secs();

/// A harmless candidate may deny one of this number of keys that do not look like an attack.
const ONE_OF: u64 = 1000;
/// The named candidate denies at least this share of what the strictest one denies of an attack, in per cent.
const ENOUGH: u64 = 90;
/// A candidate that denies a smaller share of the requests of an attack does not help, in per cent.
const HELPS: u64 = 25;
/// Maximum number of keys that are listed.
const MAX_LISTED: usize = 10;

/// The keys of a log, which of them candidate policies deny, and the policy to use.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Recommendation {
    /// Number of requests.
    pub requests: u64,
    /// Number of other events, which are not decided.
    pub others: u64,
    /// Times of the first and the last request, in microseconds since the Unix epoch.
    pub times: Option<(u64, u64)>,
    /// 1 if every key was followed. Otherwise one of this number was, and numbers of keys are estimates; the busiest keys, and those
    /// that look like an attack, are counted one by one.
    pub one_of: u64,
    /// Number of keys that look like people.
    pub people: u64,
    /// Number of keys that look like machines.
    pub machines: u64,
    /// Number of machines that look like an attack.
    pub attackers: u64,
    /// Requests of those.
    pub attack_requests: u64,
    /// Requests in the busiest ten minutes of each key that looks like a person; of each key if none does.
    pub busiest: Percentiles,
    /// The requests in ten minutes that make a key look like a machine.
    pub volume: u64,
    /// The requests in ten minutes that make a machine look like an attack.
    pub attack: u64,
    /// The units that a harmless candidate admits in an hour at least: as many as the p90 of `busiest`, all the time.
    pub pace: u64,
    /// The keys that look like an attack, those with the most requests first; at most 10.
    pub heaviest: Vec<Attacker>,
    /// Some candidates, the least generous first.
    pub outcomes: Vec<Outcome>,
    /// Which of them to use, and why. `None` if no candidate is harmless, and for traffic of less than [`MIN_LENGTH`].
    pub named: Option<(usize, Named)>,
    /// Which of them denies the most requests of an attack of all that are harmless. `None` if none of those denies any.
    pub strictest: Option<usize>,
    /// Each key that was followed.
    pub points: Vec<Point>,
    length: Duration,
}

/// Why a candidate is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// No key looks like an attack: it is the lowest harmless limit `gcra:N/1m`.
    NoAttack,
    /// Of the harmless candidates that deny 90 % as many requests of the attack as the strictest of them, it admits the most
    /// in ten minutes.
    DeniesAttack,
    /// No harmless candidate denies a quarter of the requests of the attack: it is the lowest harmless limit `gcra:N/1m`.
    SparesAttack,
}

/// Percentiles, by nearest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Percentiles {
    /// Half of the values are at most this.
    pub p50: u64,
    /// 90 % of the values are at most this.
    pub p90: u64,
    /// 99 % of the values are at most this.
    pub p99: u64,
}

/// What makes a key look like a machine; all false for a person.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Ten minutes without a pause of ten seconds.
    pub no_pause: bool,
    /// Gaps of equal length.
    pub even_pace: bool,
    /// Ten times the requests of nine keys in ten.
    pub volume: bool,
}

/// A key that looks like an attack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attacker {
    /// The key.
    pub key: Box<[u8]>,
    /// Its requests.
    pub requests: u64,
    /// Those of its busiest ten minutes.
    pub busiest: u64,
    /// Those that the named candidate denies.
    pub denied: u64,
    /// Why it looks like a machine.
    pub evidence: Evidence,
}

/// The keys that a candidate denies.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The candidate.
    pub policy: Policy,
    /// Upper bound on the units that it admits in any ten minutes.
    pub ten_minutes: u64,
    /// The same in any hour.
    pub hour: u64,
    /// Whether it denies at most 0.1 % of the keys that do not look like an attack, and admits an hour at the pace of people.
    pub is_harmless: bool,
    /// Number of keys of which it denies any request.
    pub keys: u64,
    /// Those that look like people.
    pub people: u64,
    /// Those that look like machines.
    pub machines: u64,
    /// Those that look like an attack.
    pub attackers: u64,
    /// Number of denied requests.
    pub requests: u64,
    /// Those of keys that look like an attack.
    pub attack_requests: u64,
    /// The denied key with the most requests.
    pub heaviest: Option<DeniedKey>,
    /// The denied key with the fewest requests.
    pub lightest: Option<DeniedKey>,
    /// The index of the candidate.
    candidate: usize,
    limit: u32,
    family: Family,
}

/// A key of which requests are denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedKey {
    /// The key.
    pub key: Box<[u8]>,
    /// Its requests.
    pub requests: u64,
    /// Those that are denied.
    pub denied: u64,
}

/// A key as a point of a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The number of keys that it represents.
    pub keys: u64,
    /// Its requests.
    pub requests: u64,
    /// Those of its busiest ten minutes.
    pub busiest: u64,
    /// Whether it looks like a machine.
    pub is_machine: bool,
    /// Whether the named candidate denies any of its requests.
    pub is_denied: bool,
}

/// What is usual among the keys, and what is not.
struct Usual {
    busiest: Percentiles,
    volume: u64,
    attack: u64,
}

/// A key with its class.
struct Classified<'a> {
    key: &'a [u8],
    record: &'a KeyRecord,
    evidence: Evidence,
    is_attack: bool,
    /// The number of keys that it represents.
    weight: u64,
}

impl Recommendation {
    /// The recommendation of `survey`.
    #[must_use]
    pub fn new(survey: &Survey) -> Self {
        let usual = Usual::of(survey);
        let keys = classify(survey, &usual);
        let count = |of: &dyn Fn(&Classified<'_>) -> bool| {
            keys.iter().filter(|key| of(key)).map(|key| key.weight).sum::<u64>()
        };
        let length = Duration::from_micros(survey.length);
        let others = count(&|key| !key.is_attack);
        let pace = usual.busiest.p90 * LONG_PER_HOUR;
        let all: Vec<Outcome> = survey
            .candidates
            .iter()
            .enumerate()
            .filter(|(_, candidate)| candidate.family.needs() <= length)
            .map(|(index, candidate)| Outcome::new(candidate, index, &keys).judged(others, pace))
            .collect();
        let attack_keys = keys.iter().filter(|key| key.is_attack);
        let attack_requests = attack_keys.map(|key| key.record.profile.requests()).sum();
        let strictest = strictest(&all);
        let chosen = choose(&all, strictest, attack_requests);
        let shown = shown(&all, chosen.map(|(index, _)| index), strictest);
        let named = chosen.filter(|_| length >= MIN_LENGTH);
        let position = |index: usize| shown.iter().position(|it| *it == index);
        let candidate = named.map(|(index, _)| all[index].candidate);
        let points = keys.iter().filter(|key| key.weight > 0);
        Self {
            requests: survey.requests,
            others: survey.others,
            times: survey.times,
            one_of: survey.keys.share(),
            people: count(&|key| !key.evidence.is_machine()),
            machines: count(&|key| key.evidence.is_machine()),
            attackers: count(&|key| key.is_attack),
            attack_requests,
            busiest: usual.busiest,
            volume: usual.volume,
            attack: usual.attack,
            pace,
            heaviest: heaviest(&keys, candidate),
            outcomes: shown.iter().map(|index| all[*index].clone()).collect(),
            named: named.and_then(|(index, why)| Some((position(index)?, why))),
            strictest: strictest.and_then(position),
            points: points.map(|key| Point::new(key, candidate)).collect(),
            length,
        }
    }

    /// The time from the first to the last request, without pauses of [`LONG_PAUSE`](super::LONG_PAUSE) or more.
    #[must_use]
    pub const fn length(&self) -> Duration {
        self.length
    }

    /// Number of keys.
    #[must_use]
    pub const fn keys(&self) -> u64 {
        self.people + self.machines
    }

    /// The candidate to use.
    #[must_use]
    pub fn named(&self) -> Option<&Outcome> {
        self.named.and_then(|(index, _)| self.outcomes.get(index))
    }

    /// The harmless candidate that denies the most requests of an attack, if it denies any.
    #[must_use]
    pub fn strictest(&self) -> Option<&Outcome> {
        self.strictest.and_then(|index| self.outcomes.get(index))
    }

    /// The next lower candidate of the same [family](Outcome::family).
    #[must_use]
    pub fn next_lower(&self) -> Option<&Outcome> {
        let named = self.named()?;
        let is_next = |it: &&Outcome| it.family == named.family && it.limit < named.limit;
        self.outcomes.iter().filter(is_next).max_by_key(|it| it.limit)
    }
}

impl Usual {
    fn of(survey: &Survey) -> Self {
        let sampled = || survey.keys.keys().filter(|it| it.is_in_sample);
        let all = Percentiles::of(sampled().map(|it| it.value.profile.busiest()));
        let volume = (VOLUME_FACTOR * all.p90).max(ATTACK_REQUESTS);
        let people = sampled().filter(|it| !Evidence::of(it.value, volume).is_machine());
        let people: Vec<u64> = people.map(|it| it.value.profile.busiest()).collect();
        // Without people, machines are compared with each other.
        if people.is_empty() {
            return Self { busiest: all, volume, attack: volume };
        }
        let busiest = Percentiles::of(people.into_iter());
        Self { busiest, volume, attack: ATTACK_REQUESTS.max(busiest.p99 + 1) }
    }
}

/// The keys of the survey, each with its class.
fn classify<'a>(survey: &'a Survey, usual: &Usual) -> Vec<Classified<'a>> {
    let (share, certain) = (survey.keys.share(), survey.keys.certain());
    let classified = |Sampled { key, value: record, is_in_sample }: Sampled<'a, KeyRecord>| {
        let evidence = Evidence::of(record, usual.volume);
        let is_attack = evidence.is_machine() && record.profile.busiest() >= usual.attack;
        let is_certain = is_attack || record.profile.requests() > certain;
        let weight = match (is_certain, is_in_sample) {
            (true, _) => 1,
            (false, true) => share,
            (false, false) => 0,
        };
        Classified { key, record, evidence, is_attack, weight }
    };
    survey.keys.keys().map(classified).collect()
}

impl Outcome {
    fn new(candidate: &Candidate, index: usize, keys: &[Classified<'_>]) -> Self {
        let denied = || keys.iter().filter(|key| key.weight > 0 && key.record.denied(index) > 0);
        let count = |of: fn(&Classified<'_>) -> bool| {
            denied().filter(|key| of(key)).map(|key| key.weight).sum()
        };
        let requests = |key: &Classified<'_>| key.weight * key.record.denied(index);
        let of = |key: &Classified<'_>| DeniedKey {
            key: key.key.into(),
            requests: key.record.profile.requests(),
            denied: key.record.denied(index),
        };
        Self {
            policy: candidate.policy.clone(),
            ten_minutes: candidate.admits(LONG),
            hour: candidate.admits(HOUR),
            is_harmless: false,
            keys: count(|_| true),
            people: count(|key| !key.evidence.is_machine()),
            machines: count(|key| key.evidence.is_machine()),
            attackers: count(|key| key.is_attack),
            requests: denied().map(requests).sum(),
            attack_requests: denied().filter(|key| key.is_attack).map(requests).sum(),
            heaviest: denied().max_by(|one, other| by_requests(one, other)).map(of),
            lightest: denied().min_by(|one, other| by_requests(one, other)).map(of),
            candidate: index,
            limit: candidate.gcra.limit(),
            family: candidate.family,
        }
    }

    /// With the fact whether it is harmless to that many keys that do not look like an attack.
    fn judged(mut self, others: u64, pace: u64) -> Self {
        self.is_harmless = self.other_keys() * ONE_OF <= others && self.hour >= pace;
        self
    }

    /// The candidates that it is one of, with `N` for their size.
    #[must_use]
    pub const fn family(&self) -> &'static str {
        self.family.text()
    }

    /// Number of keys that do not look like an attack, of which it denies any request.
    #[must_use]
    pub const fn other_keys(&self) -> u64 {
        self.keys - self.attackers
    }
}

impl Evidence {
    fn of(record: &KeyRecord, volume: u64) -> Self {
        let profile = &record.profile;
        Self {
            no_pause: profile.has_no_pause(),
            even_pace: profile.has_even_pace(),
            volume: profile.busiest() >= volume,
        }
    }

    /// Whether the key looks like a machine.
    #[must_use]
    pub const fn is_machine(self) -> bool {
        self.no_pause || self.even_pace || self.volume
    }
}

impl Percentiles {
    fn of(values: impl Iterator<Item = u64>) -> Self {
        let mut values: Vec<u64> = values.collect();
        values.sort_unstable();
        let at = |percent: usize| {
            let rank = (values.len() * percent).div_ceil(100);
            values.get(rank.saturating_sub(1)).copied().unwrap_or(0)
        };
        Self { p50: at(50), p90: at(90), p99: at(99) }
    }
}

impl Point {
    fn new(key: &Classified<'_>, named: Option<usize>) -> Self {
        Self {
            keys: key.weight,
            requests: key.record.profile.requests(),
            busiest: key.record.profile.busiest(),
            is_machine: key.evidence.is_machine(),
            is_denied: named.is_some_and(|index| key.record.denied(index) > 0),
        }
    }
}

/// The order by requests, and then by key.
fn by_requests(one: &Classified<'_>, other: &Classified<'_>) -> Ordering {
    let requests = |key: &Classified<'_>| key.record.profile.requests();
    requests(one).cmp(&requests(other)).then_with(|| one.key.cmp(other.key))
}

/// The harmless candidates, each with its index.
fn harmless(all: &[Outcome]) -> impl Iterator<Item = (usize, &Outcome)> {
    all.iter().enumerate().filter(|(_, outcome)| outcome.is_harmless)
}

/// The harmless candidate that denies the most requests of an attack: of several, the most generous.
fn strictest(all: &[Outcome]) -> Option<usize> {
    let denies = harmless(all).filter(|(_, it)| it.attack_requests > 0);
    let (index, _) = denies.max_by_key(|(_, it)| (it.attack_requests, it.ten_minutes, it.limit))?;
    Some(index)
}

/// The candidate to use against an attack of that many requests.
fn choose(all: &[Outcome], strictest: Option<usize>, attack: u64) -> Option<(usize, Named)> {
    let most = strictest.map_or(0, |index| all[index].attack_requests);
    if attack > 0 && most * 100 >= attack * HELPS {
        let enough = harmless(all).filter(|(_, it)| it.attack_requests * 100 >= most * ENOUGH);
        let (index, _) = enough.max_by_key(|(_, it)| (it.ten_minutes, it.limit))?;
        return Some((index, Named::DeniesAttack));
    }
    let plain = harmless(all).filter(|(_, outcome)| outcome.family == Family::Minute);
    let (index, _) = plain.min_by_key(|(_, outcome)| outcome.limit)?;
    Some((index, if attack > 0 { Named::SparesAttack } else { Named::NoAttack }))
}

/// The candidates to show, the least generous first: the named one, its neighbours in its family, the strictest one, the
/// least generous that denies no key, and the one of another family that denies nearest to as many requests.
fn shown(all: &[Outcome], named: Option<usize>, strictest: Option<usize>) -> Vec<usize> {
    let Some(named) = named else {
        // The ladder ends too low: its upper end.
        let mut ends: Vec<usize> = (0..all.len()).collect();
        ends.sort_by_key(|index| Reverse(all[*index].ten_minutes));
        ends.truncate(3);
        ends.reverse();
        return ends;
    };
    let is_same_family = |index: &usize| all[*index].family == all[named].family;
    let neighbours = [named.checked_sub(1), Some(named + 1).filter(|it| *it < all.len())];
    let denies_none = (0..all.len()).filter(|index| all[*index].keys == 0);
    let denies_none = denies_none.min_by_key(|index| (all[*index].ten_minutes, all[*index].limit));
    let distance = |index: &usize| {
        (all[*index].requests.abs_diff(all[named].requests), all[*index].ten_minutes)
    };
    let other = (0..all.len()).filter(|index| !is_same_family(index)).min_by_key(distance);
    let mut shown = vec![named];
    shown.extend(neighbours.into_iter().flatten().filter(is_same_family));
    shown.extend(strictest);
    shown.extend(denies_none);
    shown.extend(other);
    shown.sort_by_key(|index| (all[*index].ten_minutes, all[*index].limit));
    shown.dedup();
    shown
}

/// The keys that look like an attack, with what the candidate of that index denies of them.
fn heaviest(keys: &[Classified<'_>], named: Option<usize>) -> Vec<Attacker> {
    let mut found: Vec<&Classified<'_>> = keys.iter().filter(|key| key.is_attack).collect();
    found.sort_by_key(|key| (Reverse(key.record.profile.requests()), key.key));
    found.truncate(MAX_LISTED);
    let attacker = |key: &&Classified<'_>| Attacker {
        key: key.key.into(),
        requests: key.record.profile.requests(),
        busiest: key.record.profile.busiest(),
        denied: named.map_or(0, |index| key.record.denied(index)),
        evidence: key.evidence,
    };
    found.iter().map(attacker).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Outcomes of the first candidates, by family and index: denied keys that do not look like an attack, and denied requests
    /// of an attack.
    fn outcomes(denied: &[(Family, &[(u64, u64)])]) -> Vec<Outcome> {
        let all = Candidate::all();
        let of_family = |(family, denied): &(Family, &[(u64, u64)])| {
            let ours = all.iter().enumerate().filter(|(_, it)| it.family == *family);
            let outcome =
                |((index, candidate), (keys, requests)): ((usize, &Candidate), &(u64, u64))| {
                    let mut outcome = Outcome::new(candidate, index, &[]);
                    outcome.keys = *keys;
                    outcome.attack_requests = *requests;
                    outcome
                };
            ours.zip(denied.iter()).map(outcome).collect::<Vec<_>>()
        };
        denied.iter().flat_map(of_family).collect()
    }

    /// The candidate to use, of outcomes among `others` keys, against an attack of that many requests.
    fn chosen(
        denied: &[(Family, &[(u64, u64)])],
        others: u64,
        attack: u64,
    ) -> Option<(String, Named)> {
        let all = outcomes(denied).into_iter().map(|it| it.judged(others, 0));
        let all: Vec<Outcome> = all.collect();
        let (index, why) = choose(&all, strictest(&all), attack)?;
        Some((all[index].policy.to_string(), why))
    }

    #[test]
    fn choose_is_the_most_generous_that_denies_enough_of_the_attack() {
        let minute: &[(u64, u64)] = &[(9, 1000), (1, 990), (0, 900), (0, 895), (0, 100)];
        // One key of a thousand may be denied, and 900 of 990 is more than 90 %.
        let named = |policy: &str| Some((policy.to_owned(), Named::DeniesAttack));
        assert_eq!(chosen(&[(Family::Minute, minute)], 1000, 1000), named("gcra:30/1m"));
        assert_eq!(chosen(&[(Family::Minute, minute)], 999, 1000), named("gcra:30/1m"));
        let large: &[(u64, u64)] = &[(0, 0), (0, 899), (0, 0)];
        let both = [(Family::Minute, minute), (Family::LargeBurst, large)];
        assert_eq!(chosen(&both, 1000, 1000), named("gcra:30/1m"));
        // What denies too many other keys is no measure.
        let harmful: &[(u64, u64)] = &[(2, 1000), (0, 250)];
        assert_eq!(chosen(&[(Family::Minute, harmful)], 1000, 1000), named("gcra:10/1m"));
    }

    #[test]
    fn choose_without_attack_is_the_lowest_limit_per_minute() {
        let minute: &[(u64, u64)] = &[(9, 0), (2, 0), (1, 0), (0, 0)];
        let large: &[(u64, u64)] = &[(0, 0)];
        let both = [(Family::Minute, minute), (Family::LargeBurst, large)];
        let named = |policy: &str| Some((policy.to_owned(), Named::NoAttack));
        assert_eq!(chosen(&both, 1000, 0), named("gcra:20/1m"));
        assert_eq!(chosen(&both, 999, 0), named("gcra:30/1m"));
        assert_eq!(chosen(&[(Family::Minute, &[(1, 0)])], 1, 0), None);
    }

    #[test]
    fn choose_attack_of_which_no_candidate_denies_a_quarter_is_spared() {
        let minute: &[(u64, u64)] = &[(5, 1000), (0, 0), (0, 0)];
        let hour: &[(u64, u64)] = &[(5, 1000), (0, 249)];
        let both = [(Family::Minute, minute), (Family::Hour, hour)];
        let chosen = |attack| chosen(&both, 100, attack);
        assert_eq!(chosen(1000), Some(("gcra:10/1m".to_owned(), Named::SparesAttack)));
        assert_eq!(chosen(996), Some(("gcra:10/1h".to_owned(), Named::DeniesAttack)));
    }

    #[test]
    fn judged_candidate_admits_an_hour_at_the_pace_of_people() {
        let hour = Candidate::all().into_iter().enumerate().skip(42);
        let judged = |(index, it): (usize, Candidate)| Outcome::new(&it, index, &[]).judged(9, 240);
        let harmless = hour.map(judged).find(|it| it.is_harmless).unwrap();
        // 100 at once and 100 within the hour are fewer.
        assert_eq!((harmless.policy.to_string(), harmless.hour), ("gcra:200/1h".to_owned(), 399));
    }

    proptest! {
        /// What the named candidate is said to be is true of all candidates.
        #[test]
        fn choose_is_what_it_is_said_to_be(
            denied in proptest::collection::vec((0..3_u64, 0..1200_u64), 3 * 21),
            (others, pace, attack) in (500..3000_u64, 0..4000_u64, 0..4000_u64),
        ) {
            let judged = |(index, (candidate, (keys, requests))): (usize, (&Candidate, &(u64, u64)))| {
                let mut outcome = Outcome::new(candidate, index, &[]);
                (outcome.keys, outcome.attack_requests) = (*keys, (*requests).min(attack));
                outcome.judged(others, pace)
            };
            let candidates = Candidate::all();
            let all: Vec<Outcome> = candidates.iter().zip(&denied).enumerate().map(judged).collect();
            let is_harmless = |it: &&Outcome| it.keys * 1000 <= others && it.hour >= pace;
            let harmless: Vec<&Outcome> = all.iter().filter(is_harmless).collect();
            let most = harmless.iter().map(|it| it.attack_requests).max().unwrap_or(0);
            let strictest = strictest(&all);
            prop_assert_eq!(strictest.map_or(0, |index| all[index].attack_requests), most);
            let Some((index, why)) = choose(&all, strictest, attack) else {
                prop_assert!(!harmless.iter().any(|it| it.family == Family::Minute));
                return Ok(());
            };
            let named = &all[index];
            prop_assert!(harmless.iter().any(|it| it.policy == named.policy));
            let helps = |it: &Outcome| attack > 0 && it.attack_requests * 4 >= attack;
            prop_assert_eq!(why == Named::NoAttack, attack == 0);
            prop_assert_eq!(why == Named::DeniesAttack, harmless.iter().any(|it| helps(it)));
            for other in harmless {
                let (mut is_beaten, denies) = (false, other.attack_requests * 10 >= most * 9);
                match why {
                    Named::DeniesAttack => is_beaten |= denies && other.ten_minutes > named.ten_minutes,
                    _ => is_beaten |= other.family == Family::Minute && other.limit < named.limit,
                }
                prop_assert!(!is_beaten, "{} beats {}", other.policy, named.policy);
            }
        }
    }

    #[test]
    fn shown_are_the_named_one_and_a_few_others_in_order() {
        let minute: &[(u64, u64)] = &[(9, 1000), (4, 990), (1, 900), (1, 895), (0, 0), (0, 0)];
        let all = outcomes(&[(Family::Minute, minute), (Family::LargeBurst, &[(3, 0), (0, 0)])]);
        let policies = |named, strictest| -> Vec<String> {
            let shown = shown(&all, named, strictest);
            shown.iter().map(|index| all[*index].policy.to_string()).collect()
        };
        let expected =
            ["gcra:5/1m:burst=25", "gcra:10/1m", "gcra:10/1m:burst=50", "gcra:20/1m", "gcra:30/1m"];
        assert_eq!(policies(Some(2), Some(2)), expected);
        assert_eq!(policies(Some(2), Some(0))[0], "gcra:5/1m");
        assert_eq!(policies(Some(0), None).len(), 4);
        assert_eq!(policies(None, None), ["gcra:30/1m", "gcra:60/1m", "gcra:100/1m"]);
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let of = |values: std::ops::RangeInclusive<u64>| Percentiles::of(values);
        assert_eq!(of(1..=1000), Percentiles { p50: 500, p90: 900, p99: 990 });
        assert_eq!(of(1..=10), Percentiles { p50: 5, p90: 9, p99: 10 });
        assert_eq!(of(7..=7), Percentiles { p50: 7, p90: 7, p99: 7 });
        #[expect(clippy::reversed_empty_ranges, reason = "no values")]
        let none = of(1..=0);
        assert_eq!(none, Percentiles::default());
    }
}
