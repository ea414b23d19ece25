//! Spans for OpenTelemetry.

use clap::Args;
use sluicegate_server::{OtlpEndpoint, Telemetry};

#[derive(Args, Debug)]
pub(super) struct Otlp {
    /// Send spans of requests, and of round trips to the store, to this OpenTelemetry collector (OTLP over
    /// HTTP): http://HOST:4318
    #[arg(long, value_name = "URL")]
    otlp: Option<OtlpEndpoint>,
    /// Share of the requests to record, from 0 to 1, among those whose caller sends no `traceparent`
    #[arg(long, value_name = "RATIO", default_value = "0.01", value_parser = ratio)]
    otlp_sample: f64,
}

impl Otlp {
    /// The recorder of spans, if there is a collector.
    pub(super) fn telemetry(self) -> Option<Telemetry> {
        self.otlp.map(|endpoint| Telemetry::new(endpoint, self.otlp_sample))
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| "expected a number from 0 to 1, such as 0.01".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_from_0_to_1() {
        assert_eq!((ratio("0"), ratio("0.25"), ratio("1")), (Ok(0.0), Ok(0.25), Ok(1.0)));
        for text in ["", "-0.1", "1.1", "NaN", "inf", "1%"] {
            assert!(ratio(text).is_err(), "{text}");
        }
    }
}
