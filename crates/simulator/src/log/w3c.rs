//! Lines of the W3C extended log format, as IIS and CloudFront write them: `#Fields` names the columns of the rows
//! below it.

use std::borrow::Cow;

use super::LogFault;

/// The columns of the rows, by name; none before the first `#Fields`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Columns(Vec<String>);

/// A row, with its columns.
#[derive(Debug)]
pub(super) struct Row<'a> {
    columns: &'a Columns,
    fields: Vec<&'a [u8]>,
}

impl Columns {
    /// Reads a line that begins with `#`.
    pub(super) fn read_directive(&mut self, line: &[u8]) {
        if let Some(names) = line.strip_prefix(b"#Fields:") {
            let names = String::from_utf8_lossy(names);
            self.0 = names.split_ascii_whitespace().map(str::to_owned).collect();
        }
    }

    /// Splits a row: at tabs if it has any, as those of CloudFront, else at spaces.
    pub(super) fn row<'a>(&'a self, line: &'a [u8]) -> Result<Row<'a>, LogFault> {
        if self.0.is_empty() {
            return Err(LogFault::NoColumns);
        }
        let separator = if memchr::memchr(b'\t', line).is_some() { b'\t' } else { b' ' };
        let fields: Vec<_> = line.split(|byte| *byte == separator).collect();
        match (fields.len(), self.0.len()) {
            (found, expected) if found != expected => Err(LogFault::Columns { found, expected }),
            _ => Ok(Row { columns: self, fields }),
        }
    }
}

impl<'a> Row<'a> {
    /// The value of a field: one of the usual names, or a column. Durations are in milliseconds, but in seconds in the
    /// logs of CloudFront.
    pub(super) fn value(&self, name: &str) -> Option<Cow<'a, [u8]>> {
        let is_cloudfront = self.column("x-edge-location").is_some();
        let column = match name {
            "remote_addr" => "c-ip",
            "remote_user" => "cs-username",
            "request_method" => "cs-method",
            "status" => "sc-status",
            "http_user_agent" => "cs(User-Agent)",
            "http_referer" => "cs(Referer)",
            "host" => {
                let names = ["x-host-header", "cs-host", "cs(Host)"];
                return names.into_iter().find_map(|it| self.column(it)).map(Cow::Borrowed);
            }
            "duration" if is_cloudfront => "time-taken",
            "duration_ms" if !is_cloudfront => "time-taken",
            "time" => return self.joined("date", b' ', "time"),
            "request_uri" => return self.joined("cs-uri-stem", b'?', "cs-uri-query"),
            other => other,
        };
        self.column(column).map(Cow::Borrowed)
    }

    fn column(&self, name: &str) -> Option<&'a [u8]> {
        let index = self.columns.0.iter().position(|column| column == name)?;
        Some(self.fields[index]).filter(|value| !matches!(**value, [] | [b'-']))
    }

    /// The first column and, if it has a value, the second one behind `separator`.
    fn joined(&self, first: &str, separator: u8, second: &str) -> Option<Cow<'a, [u8]>> {
        let first = self.column(first)?;
        Some(match self.column(second) {
            Some(second) => Cow::Owned([first, &[separator], second].concat()),
            None => Cow::Borrowed(first),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_values_are_found_by_usual_names_and_columns() {
        for (header, row, duration) in [
            (
                "#Fields: date time c-ip cs-method cs-uri-stem cs-uri-query cs-username time-taken",
                "2025-10-10 13:55:01 203.0.113.5 GET /a b=c - 15",
                "duration_ms",
            ),
            (
                "#Fields: date time x-edge-location c-ip cs-method cs-uri-stem cs-uri-query cs-username time-taken",
                "2025-10-10\t13:55:01\tFRA2\t203.0.113.5\tGET\t/a\tb=c\t-\t15",
                "duration",
            ),
        ] {
            let mut columns = Columns::default();
            columns.read_directive(b"#Version: 1.0");
            assert_eq!(columns.row(row.as_bytes()).unwrap_err(), LogFault::NoColumns);
            columns.read_directive(header.as_bytes());
            let row = columns.row(row.as_bytes()).unwrap();
            for (name, value) in [
                ("remote_addr", Some("203.0.113.5")),
                ("time", Some("2025-10-10 13:55:01")),
                ("request_uri", Some("/a?b=c")),
                ("cs-uri-stem", Some("/a")),
                ("remote_user", None),
                (duration, Some("15")),
                ("status", None),
            ] {
                assert_eq!(row.value(name).as_deref(), value.map(str::as_bytes), "{name}");
            }
            let fault = columns.row(b"2025-10-10 13:55:01").unwrap_err();
            assert!(matches!(fault, LogFault::Columns { found: 2, .. }), "{fault}");
        }
    }
}
