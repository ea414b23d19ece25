use redis::{Connection, Value};

use crate::until;

/// A connection that asks in words.
pub struct Peer(
    /// As the client library has it.
    pub Connection,
);

impl std::fmt::Debug for Peer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Peer")
    }
}

impl Peer {
    /// Asks with these arguments.
    ///
    /// # Errors
    /// The whole text of the error that came.
    pub fn ask(&mut self, arguments: &[&[u8]]) -> Result<Value, String> {
        let mut command = redis::Cmd::new();
        for argument in arguments {
            command.arg(*argument);
        }
        command.query(&mut self.0).map_err(|error| words(&error))
    }

    /// Asks with the words of a line.
    ///
    /// # Errors
    /// The whole text of the error that came.
    pub fn say(&mut self, line: &str) -> Result<Value, String> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.ask(&words)
    }

    /// The integers that a line is answered with.
    pub fn integers(&mut self, line: &str) -> Vec<i64> {
        integers(&self.say(line).unwrap_or_else(|error| panic!("{line}: {error}")))
    }

    /// The text that a line is answered with.
    pub fn text(&mut self, line: &str) -> String {
        match self.say(line).unwrap_or_else(|error| panic!("{line}: {error}")) {
            Value::BulkString(bytes) => String::from_utf8(bytes).unwrap(),
            Value::SimpleString(text) | Value::VerbatimString { text, .. } => text,
            Value::Okay => "OK".to_owned(),
            other => panic!("{line}: {other:?}"),
        }
    }

    /// The error that a line is answered with.
    pub fn error(&mut self, line: &str) -> String {
        self.say(line).expect_err(line)
    }

    /// A number that `INFO` tells.
    pub fn told(&mut self, section: &str, name: &str) -> u64 {
        let text = self.text(&format!("INFO {section}"));
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    /// Asks until `is_so`.
    pub fn until(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) {
        until("what is asked for", || is_so(self));
    }
}

/// The elements of an array of integers.
///
/// # Panics
/// It is something else.
#[must_use]
pub fn integers(value: &Value) -> Vec<i64> {
    let Value::Array(elements) = value else { panic!("no array: {value:?}") };
    let integers = elements.iter().map(|element| match element {
        Value::Int(integer) => *integer,
        other => panic!("no integer: {other:?}"),
    });
    integers.collect()
}

fn words(error: &redis::RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        _ => format!("broken: {error}"),
    }
}
