//! The metrics of the server, as a client of HTTP reads them.

use std::collections::BTreeMap;

use sluicegate_server::simulation::{SimulatedProtocol, SimulatedServer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{network::Link, random::RandomByTime};

/// Without a length or chunks in the response.
const REQUEST: &[u8] = b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";

/// Samples: their names with labels, and their values.
#[derive(Debug, Default)]
pub(crate) struct Metrics(BTreeMap<String, u64>);

impl Metrics {
    /// Reads the metrics of a server. `Err`: what is wrong with the response.
    pub(super) async fn read(
        server: &SimulatedServer,
        random: RandomByTime,
    ) -> Result<Self, String> {
        let (mut stream, of_server) = Link::new(random).open();
        if !server.connect(SimulatedProtocol::Http, Box::new(of_server), "metrics".to_owned()) {
            return Err("the server rejects a client".to_owned());
        }
        let mut response = String::new();
        let read = async {
            stream.write_all(REQUEST).await?;
            stream.read_to_string(&mut response).await
        };
        read.await.map_err(|error| error.to_string())?;
        let (head, body) = response.split_once("\r\n\r\n").ok_or("a response without an end")?;
        if !head.contains(" 200 ") {
            return Err(head.to_owned());
        }
        Ok(Self::parse(body))
    }

    /// Keeps the samples that are whole numbers.
    fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let sample = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Self(lines.filter_map(sample).collect())
    }

    /// The sum of the samples of a metric that have all these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let has = |sample: &str| {
            let rest = sample.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
                && labels.iter().all(|(label, value)| {
                    let pair = format!("{label}=\"{value}\"");
                    sample.contains(&format!("{{{pair}")) || sample.contains(&format!(",{pair}"))
                })
        };
        self.0.iter().filter(|it| has(it.0)).map(|it| it.1).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_with_labels_are_added_up() {
        let metrics = Metrics::parse(
            "# TYPE a counter\na_total{rule=\"x\",outcome=\"denied\"} 3\na_total{rule=\"y\",outcome=\"denied\"} 4\n\
             a_total{rule=\"x\",outcome=\"allowed\"} 5\nb_total 6\na_seconds 0.5\n",
        );
        assert_eq!(metrics.sum("a_total", &[("outcome", "denied")]), 7);
        assert_eq!(metrics.sum("a_total", &[("rule", "x"), ("outcome", "denied")]), 3);
        assert_eq!(metrics.sum("a_total", &[]), 12);
        assert_eq!(metrics.sum("b_total", &[]), 6);
        assert_eq!(metrics.sum("a", &[]), 0);
    }
}
