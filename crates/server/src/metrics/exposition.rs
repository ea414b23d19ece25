//! Metrics as text, in the two formats that Prometheus reads: OpenMetrics 1.0 and the older text format
//! 0.0.4.
//!
//! They differ in the names of families (`requests` and `requests_total`), in the type `info`, and in the
//! last line.

use std::{
    fmt::{Display, Write as _},
    mem,
};

use hyper::{HeaderMap, header::ACCEPT};

/// A format of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    OpenMetrics,
    /// Version 0.0.4.
    Text,
}

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

/// Names and values of labels.
pub(super) type Labels<'a> = [(&'a str, &'a str)];

/// The text of metrics, written family by family.
#[derive(Debug)]
pub(super) struct Exposition {
    format: Format,
    text: String,
}

/// Writes the samples of one family.
#[derive(Debug)]
pub(super) struct Family<'e> {
    name: &'static str,
    kind: Kind,
    text: &'e mut String,
}

impl Format {
    /// The preferred format of the client: OpenMetrics, unless it accepts only `text/plain`, or prefers it.
    pub(crate) fn negotiate(headers: &HeaderMap) -> Self {
        let (mut open, mut text) = (0, 0);
        let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        for range in accepted.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default();
            let (mut quality, mut version) = (Some(1000), None);
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                if name.eq_ignore_ascii_case("q") {
                    quality = thousandths(value);
                } else if name.eq_ignore_ascii_case("version") {
                    version = Some(value.trim_matches('"'));
                }
            }
            let quality = quality.unwrap_or(0);
            if media_type.eq_ignore_ascii_case("application/openmetrics-text") {
                open = quality.max(open);
            } else if media_type.eq_ignore_ascii_case("text/plain")
                && matches!(version, None | Some("0.0.4"))
            {
                text = quality.max(text);
            }
        }
        if text > open { Self::Text } else { Self::OpenMetrics }
    }

    pub(crate) const fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// A quality value: at most three decimals, from 0 to 1. `None`: it is invalid.
fn thousandths(text: &str) -> Option<u32> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_number = part.len() <= 3 && part.bytes().all(|byte| byte.is_ascii_digit());
    let part: u32 = format!("{part:0<3}").parse().ok().filter(|_| is_number)?;
    match whole {
        "0" => Some(part),
        "1" if part == 0 => Some(1000),
        _ => None,
    }
}

impl Kind {
    /// The suffix of the names of samples.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Info => "_info",
            Self::Gauge | Self::Histogram => "",
        }
    }
}

impl Exposition {
    pub(super) const fn new(format: Format) -> Self {
        Self { format, text: String::new() }
    }

    /// Begins a family.
    pub(super) fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> Family<'_> {
        let (suffix, word) = match (self.format, kind) {
            (Format::OpenMetrics, Kind::Info) => ("", "info"),
            (Format::Text, Kind::Info) => ("_info", "gauge"),
            (Format::OpenMetrics, Kind::Counter) => ("", "counter"),
            (Format::Text, Kind::Counter) => ("_total", "counter"),
            (_, Kind::Gauge) => ("", "gauge"),
            (_, Kind::Histogram) => ("", "histogram"),
        };
        // Writing to a string never fails.
        let _ = write!(self.text, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {word}\n");
        Family { name, kind, text: &mut self.text }
    }

    /// Continues a family whose header was already written.
    pub(super) fn resume(&mut self, name: &'static str, kind: Kind) -> Family<'_> {
        Family { name, kind, text: &mut self.text }
    }

    /// The length of the text, in bytes.
    pub(super) const fn size(&self) -> usize {
        self.text.len()
    }

    /// Writes the last line.
    pub(super) fn end(&mut self) {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
    }

    /// Takes the text since the last call.
    pub(super) fn take_text(&mut self) -> String {
        mem::take(&mut self.text)
    }
}

impl Family<'_> {
    pub(super) fn sample(&mut self, labels: &Labels<'_>, value: impl Display) {
        self.line(self.kind.suffix(), labels, None, value);
    }

    /// A histogram, as the count of each bucket with its upper bound; the last bucket has no bound.
    pub(super) fn histogram(
        &mut self,
        labels: &Labels<'_>,
        buckets: impl Iterator<Item = (Option<f64>, u64)>,
        sum: f64,
    ) {
        let mut count = 0;
        for (bound, more) in buckets {
            count += more;
            let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| format!("{bound:?}"));
            self.line("_bucket", labels, Some(&bound), count);
        }
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, count);
    }

    fn line(
        &mut self,
        suffix: &str,
        labels: &Labels<'_>,
        bound: Option<&str>,
        value: impl Display,
    ) {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        let bound = bound.map(|bound| ("le", bound));
        let mut separator = '{';
        for (name, value) in labels.iter().copied().chain(bound) {
            self.text.push(separator);
            self.text.push_str(name);
            self.text.push_str("=\"");
            escape(value, self.text);
            self.text.push('"');
            separator = ',';
        }
        if separator == ',' {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }
}

/// Appends the value of a label.
fn escape(value: &str, out: &mut String) {
    for character in value.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negotiate_accept_header_picks_the_preferred_format() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,\
                          application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, expected) in [
            ("", Format::OpenMetrics),
            ("*/*", Format::OpenMetrics),
            ("text/html, */*;q=0.8", Format::OpenMetrics),
            (prometheus, Format::OpenMetrics),
            ("text/plain;version=0.0.4", Format::Text),
            ("text/plain; version=\"0.0.4\"; charset=utf-8", Format::Text),
            ("TEXT/PLAIN", Format::Text),
            ("text/plain;version=1.0.0", Format::OpenMetrics),
            ("text/plain;q=0", Format::OpenMetrics),
            ("text/plain;q=nonsense", Format::OpenMetrics),
            ("text/plain;q=1.5", Format::OpenMetrics),
            ("text/plain;q=0.125, application/openmetrics-text;q=0.1", Format::Text),
            ("text/plain, application/openmetrics-text", Format::OpenMetrics),
            (";;=,,q=", Format::OpenMetrics),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            assert_eq!(Format::negotiate(&headers), expected, "{accept}");
        }
        assert_eq!(Format::negotiate(&HeaderMap::new()), Format::OpenMetrics);
    }

    fn written(format: Format) -> String {
        let mut out = Exposition::new(format);
        out.family("a_build", Kind::Info, "The build").sample(&[("version", "1")], 1);
        out.family("a_requests", Kind::Counter, "Requests").sample(&[("b", "q\"\\\n")], 2);
        out.family("a_keys", Kind::Gauge, "Keys").sample(&[], 3);
        let buckets = [(Some(0.000_025), 1), (Some(1.0), 2), (None, 3)];
        out.family("a_seconds", Kind::Histogram, "Durations").histogram(
            &[("c", "d")],
            buckets.into_iter(),
            0.5,
        );
        out.end();
        out.take_text()
    }

    #[test]
    fn family_each_format_has_its_names() {
        let samples = "a_seconds_bucket{c=\"d\",le=\"2.5e-5\"} 1\n\
                       a_seconds_bucket{c=\"d\",le=\"1.0\"} 3\n\
                       a_seconds_bucket{c=\"d\",le=\"+Inf\"} 6\n\
                       a_seconds_sum{c=\"d\"} 0.5\na_seconds_count{c=\"d\"} 6\n";
        let keys = "# HELP a_keys Keys\n# TYPE a_keys gauge\na_keys 3\n";
        let durations = "# HELP a_seconds Durations\n# TYPE a_seconds histogram\n";
        assert_eq!(
            written(Format::OpenMetrics),
            format!(
                "# HELP a_build The build\n# TYPE a_build info\na_build_info{{version=\"1\"}} 1\n\
                 # HELP a_requests Requests\n# TYPE a_requests counter\n\
                 a_requests_total{{b=\"q\\\"\\\\\\n\"}} 2\n{keys}{durations}{samples}# EOF\n"
            )
        );
        assert_eq!(
            written(Format::Text),
            format!(
                "# HELP a_build_info The build\n# TYPE a_build_info gauge\na_build_info{{version=\"1\"}} 1\n\
                 # HELP a_requests_total Requests\n# TYPE a_requests_total counter\n\
                 a_requests_total{{b=\"q\\\"\\\\\\n\"}} 2\n{keys}{durations}{samples}"
            )
        );
    }
}
