use redis::{Connection, Value};

use crate::eventually_true;

/// A connection that sends commands given as text.
pub struct RawClient(
    /// The connection of the client library.
    pub Connection,
);

impl std::fmt::Debug for RawClient {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("RawClient")
    }
}

impl RawClient {
    /// Sends a command with these arguments, and returns the reply.
    ///
    /// # Errors
    /// The full text of an error reply.
    pub fn call_bytes(&mut self, arguments: &[&[u8]]) -> Result<Value, String> {
        let mut command = redis::Cmd::new();
        for argument in arguments {
            command.arg(*argument);
        }
        command.query(&mut self.0).map_err(|error| error_text(&error))
    }

    /// Sends a command whose arguments are separated by spaces, and returns the reply.
    ///
    /// # Errors
    /// The full text of an error reply.
    pub fn call(&mut self, line: &str) -> Result<Value, String> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.call_bytes(&words)
    }

    /// The integers of the reply to a command.
    pub fn integers(&mut self, line: &str) -> Vec<i64> {
        integers(&self.call(line).unwrap_or_else(|error| panic!("{line}: {error}")))
    }

    /// The text of the reply to a command.
    pub fn text(&mut self, line: &str) -> String {
        match self.call(line).unwrap_or_else(|error| panic!("{line}: {error}")) {
            Value::BulkString(bytes) => String::from_utf8(bytes).unwrap(),
            Value::SimpleString(text) | Value::VerbatimString { text, .. } => text,
            Value::Okay => "OK".to_owned(),
            other => panic!("{line}: {other:?}"),
        }
    }

    /// The error reply to a command.
    pub fn error(&mut self, line: &str) -> String {
        self.call(line).expect_err(line)
    }

    /// A number in the reply of `INFO`.
    pub fn info_value(&mut self, section: &str, name: &str) -> u64 {
        let text = self.text(&format!("INFO {section}"));
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    /// Repeats `is_so` until it is true.
    pub fn eventually_true(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) {
        eventually_true("the condition on the server", || is_so(self));
    }
}

/// The elements of an array of integers.
///
/// # Panics
/// If it is another value.
#[must_use]
pub fn integers(value: &Value) -> Vec<i64> {
    let Value::Array(elements) = value else { panic!("not an array: {value:?}") };
    let integers = elements.iter().map(|element| match element {
        Value::Int(integer) => *integer,
        other => panic!("not an integer: {other:?}"),
    });
    integers.collect()
}

fn error_text(error: &redis::RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        _ => format!("broken: {error}"),
    }
}
