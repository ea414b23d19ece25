//! The log of hostile clients: at most one line per kind of incident, client and minute.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use sluicegate_core::Timestamp;

use crate::net::clients::Client;

/// The time between two lines about one client.
const PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of addresses that are logged separately; the rest share a line.
const MAX_ADDRESSES: usize = 1024;

/// What a client did.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Incident {
    WrongPassword,
    WrongToken,
    HttpRequest,
}

/// The last lines about each kind of incident.
#[derive(Debug, Default)]
pub(crate) struct Incidents {
    wrong_passwords: LastLines,
    wrong_tokens: LastLines,
    http_requests: LastLines,
}

/// The last line about each address.
#[derive(Debug, Default)]
struct LastLines(Mutex<HashMap<String, LoggedIncident>>);

/// The last line about an address.
#[derive(Clone, Copy, Debug)]
struct LoggedIncident {
    at: Timestamp,
    /// Incidents since then.
    since: u64,
}

impl Incidents {
    /// Logs what `client` did, unless its address was logged for the same within the last minute.
    pub(crate) fn note(&self, client: &Client, now: Timestamp, incident: Incident) {
        let address = client.address.rsplit_once(':').map_or(&*client.address, |(host, _)| host);
        let (lines, what) = self.lines(incident);
        if let Some((address, before)) = lines.count(address, now) {
            tracing::warn!(client = address, suppressed = before, "{what}");
        }
    }

    /// The last lines about an incident, and their text.
    const fn lines(&self, incident: Incident) -> (&LastLines, &'static str) {
        match incident {
            Incident::WrongPassword => (&self.wrong_passwords, "wrong password"),
            Incident::WrongToken => (&self.wrong_tokens, "wrong token"),
            Incident::HttpRequest => (
                &self.http_requests,
                "HTTP request on the RESP port: a web page may have made a browser send it",
            ),
        }
    }
}

impl LastLines {
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
        let lines = LastLines::default();
        assert_eq!(lines.count("a", at(0)), Some(("a", 0)));
        assert_eq!(lines.count("b", at(1)), Some(("b", 0)));
        (1..60).for_each(|second| assert_eq!(lines.count("a", at(second)), None));
        assert_eq!(lines.count("a", at(60)), Some(("a", 59)));
    }

    /// An HTTP request once a minute does not hide guesses of a password.
    #[test]
    fn count_incidents_of_each_kind_are_logged() {
        let incidents = Incidents::default();
        for incident in [Incident::HttpRequest, Incident::WrongPassword, Incident::WrongToken] {
            assert_eq!(incidents.lines(incident).0.count("a", at(0)), Some(("a", 0)));
        }
    }

    #[test]
    fn count_many_addresses_share_a_line() {
        let lines = LastLines::default();
        let addresses: Vec<_> = (0..MAX_ADDRESSES + 50).map(|number| number.to_string()).collect();
        let logged = addresses.iter().filter(|it| lines.count(it, at(0)).is_some()).count();
        assert_eq!(logged, MAX_ADDRESSES + 1);
        assert!(lines.0.lock().len() <= MAX_ADDRESSES + 1);
        assert_eq!(lines.count("new", at(61)), Some(("new", 0)));
        assert_eq!(lines.0.lock().len(), 1);
    }
}
