//! The log of hostile clients: at most one line per client and minute.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use sluicegate_core::Timestamp;

use crate::net::clients::Client;

/// The time between two lines about one client.
const PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of addresses that are logged separately; the rest share a line.
const MAX_ADDRESSES: usize = 1024;

/// The last line about each address.
#[derive(Debug, Default)]
pub(crate) struct Incidents(Mutex<HashMap<String, LoggedIncident>>);

/// The last line about an address.
#[derive(Clone, Copy, Debug)]
struct LoggedIncident {
    at: Timestamp,
    /// Incidents since then.
    since: u64,
}

impl Incidents {
    /// Logs that `client` did `what`, unless its address was logged within the last minute.
    pub(crate) fn note(&self, client: &Client, now: Timestamp, what: &str) {
        let address = client.address.rsplit_once(':').map_or(&*client.address, |(host, _)| host);
        if let Some((address, before)) = self.count(address, now) {
            tracing::warn!(client = address, suppressed = before, "{what}");
        }
    }

    /// Counts an incident. If a line is due, returns its address and the number of incidents since the
    /// previous one.
    fn count<'a>(&self, address: &'a str, now: Timestamp) -> Option<(&'a str, u64)> {
        let mut logged = self.0.lock();
        if logged.len() >= MAX_ADDRESSES && !logged.contains_key(address) {
            logged.retain(|_, last| now < last.at + PAUSE);
        }
        let full = logged.len() >= MAX_ADDRESSES && !logged.contains_key(address);
        let address = if full { "many addresses" } else { address };
        if let Some(last) = logged.get_mut(address)
            && now < last.at + PAUSE
        {
            last.since += 1;
            return None;
        }
        let last = logged.insert(address.to_owned(), LoggedIncident { at: now, since: 0 });
        Some((address, last.map_or(0, |last| last.since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000).unwrap()
    }

    #[test]
    fn count_one_address_is_logged_once_a_minute() {
        let incidents = Incidents::default();
        assert_eq!(incidents.count("a", at(0)), Some(("a", 0)));
        assert_eq!(incidents.count("b", at(1)), Some(("b", 0)));
        (1..60).for_each(|second| assert_eq!(incidents.count("a", at(second)), None));
        assert_eq!(incidents.count("a", at(60)), Some(("a", 59)));
    }

    #[test]
    fn count_many_addresses_share_a_line() {
        let incidents = Incidents::default();
        let addresses: Vec<_> = (0..MAX_ADDRESSES + 50).map(|number| number.to_string()).collect();
        let logged = addresses.iter().filter(|it| incidents.count(it, at(0)).is_some()).count();
        assert_eq!(logged, MAX_ADDRESSES + 1);
        assert!(incidents.0.lock().len() <= MAX_ADDRESSES + 1);
        assert_eq!(incidents.count("new", at(61)), Some(("new", 0)));
        assert_eq!(incidents.0.lock().len(), 1);
    }
}
