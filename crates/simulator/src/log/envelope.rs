//! Lines of a log inside the lines of another one: those of a container.

use std::borrow::Cow;

use super::{LogFault, json, time};

/// What the lines of the log are inside of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Envelope {
    /// Nothing.
    #[default]
    None,
    /// `2025-10-10T13:55:00.31Z stdout F line`, the files of Kubernetes.
    Cri,
    /// `{"log":"line\n","stream":"stdout"}`, the files of Docker; and `MESSAGE` of `journalctl -o json`.
    Json,
}

/// Members of an object that hold a line.
const MEMBERS: [&str; 3] = ["log", "MESSAGE", "message"];

impl Envelope {
    /// All of them, in the order in which they are detected.
    pub(super) const ALL: [Self; 3] = [Self::None, Self::Cri, Self::Json];

    /// The line inside of `line`.
    pub(super) fn open(self, line: &[u8]) -> Result<Cow<'_, [u8]>, LogFault> {
        match self {
            Self::None => Ok(Cow::Borrowed(line)),
            Self::Cri => cri(line).map(Cow::Borrowed),
            Self::Json => {
                let mut values = Vec::new();
                json::read(&MEMBERS.map(str::to_owned), line, &mut values)?;
                let value = values.into_iter().flatten().find(|value| value.get().starts_with('"'));
                Ok(match json::text(value.ok_or(LogFault::Json)?) {
                    Cow::Borrowed(text) => Cow::Borrowed(text.trim_ascii_end()),
                    Cow::Owned(text) => Cow::Owned(text.trim_ascii_end().to_vec()),
                })
            }
        }
    }
}

fn cri(line: &[u8]) -> Result<&[u8], LogFault> {
    let fault = || LogFault::Missing { after: String::new(), text: (&b"TIME stdout F"[..]).into() };
    let mut words = line.splitn(4, |byte| *byte == b' ');
    let mut word = || words.next().ok_or_else(fault);
    let (written, stream, tag, rest) = (word()?, word()?, word()?, word()?);
    if !matches!(stream, b"stdout" | b"stderr") || time::parse(written).is_none() {
        return Err(fault());
    }
    match tag {
        b"F" => Ok(rest),
        b"P" => Err(LogFault::Part),
        _ => Err(fault()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_line_of_container_is_what_it_wrote() {
        let open = |envelope: Envelope, line: &str| match envelope.open(line.as_bytes()) {
            Ok(line) => String::from_utf8_lossy(&line).into_owned(),
            Err(fault) => fault.to_string(),
        };
        for (envelope, line, expected) in [
            (Envelope::None, "a b", "a b"),
            (Envelope::Cri, "2025-10-10T13:55:00.31+00:00 stdout F a b", "a b"),
            (Envelope::Cri, "2025-10-10T13:55:00.31Z stderr F ", ""),
            (
                Envelope::Cri,
                "2025-10-10T13:55:00.31Z stdout P a",
                "expected a whole line, found a part of one",
            ),
            (Envelope::Cri, "a b c d", "expected `TIME stdout F` at the beginning"),
            (Envelope::Cri, "a", "expected `TIME stdout F` at the beginning"),
            (Envelope::Json, r#"{"log":"a \"b\"\n","stream":"stdout"}"#, "a \"b\""),
            (Envelope::Json, r#"{"_PID":"7","MESSAGE":"a"}"#, "a"),
            (Envelope::Json, r#"{"MESSAGE":[1,2]}"#, "expected a JSON object"),
            (Envelope::Json, "a", "expected a JSON object"),
        ] {
            assert_eq!(open(envelope, line), expected);
        }
    }
}
