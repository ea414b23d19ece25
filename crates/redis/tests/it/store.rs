//! The scripts as a store for the conformance kit: the time is an argument.

use std::collections::HashMap;

use redis::{Connection, Value};
use sluicegate_conformance::{Answer, CoreSubject, Invocation, Subject};
use sluicegate_core::{Entry, Operation};
use sluicegate_redis::script::{Arguments, Plan, Reply, TEST_PREFIX};

/// One connection, and the plans of the policies so far.
pub(crate) struct Store {
    pub(crate) connection: Connection,
    plans: HashMap<String, Plan>,
}

impl Store {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { connection, plans: HashMap::new() }
    }

    /// Runs the script of `plan`.
    pub(crate) fn run(
        connection: &mut Connection,
        plan: &Plan,
        key: &[u8],
        arguments: &Arguments<'_>,
    ) -> Result<Value, String> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(plan.script().sha1()).arg(1).arg(key);
        for argument in arguments.iter() {
            command.arg(argument);
        }
        let actual = |error: redis::RedisError| {
            let code = error.code().unwrap_or_default();
            format!("{code} {}", error.detail().unwrap_or_default())
        };
        match command.query(connection).map_err(actual) {
            Err(error) if error.starts_with("NOSCRIPT") => {
                let mut load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(plan.script().text());
                let sha1: String = load.query(connection).map_err(actual)?;
                assert_eq!(sha1, plan.script().sha1());
                command.query(connection).map_err(actual)
            }
            answer => answer,
        }
    }

    pub(crate) fn stored(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        redis::cmd("GET").arg(test_key(key)).query(&mut self.connection).unwrap()
    }
}

pub(crate) fn test_key(key: &[u8]) -> Vec<u8> {
    [TEST_PREFIX, key].concat()
}

/// Parses the reply of a plan's script to `operation`.
pub(crate) fn parse_reply(
    plan: &Plan,
    operation: Operation,
    reply: &Value,
) -> Result<Reply, String> {
    let Value::Int(debt) = reply else { return read(reply) };
    plan.decision_from_debt(operation, *debt)
        .map(Reply::Decision)
        .map_err(|error| error.to_string())
}

/// The result in a script's reply.
pub(crate) fn read(value: &Value) -> Result<Reply, String> {
    let Value::Array(elements) = value else { return Err(format!("no array: {value:?}")) };
    Reply::read(elements).map_err(|error| error.to_string())
}

impl Subject for Store {
    fn apply(&mut self, question: Invocation<'_>) -> Answer {
        let Invocation { key, policy, now, operation } = question;
        let plan = self.plans.entry(policy.to_string()).or_insert_with(|| Plan::new(policy));
        let key = test_key(key);
        let mut calendars = Vec::new();
        // Only the script of a hold may request calendars twice.
        let calls = if operation.id().is_some() { 3 } else { 2 };
        for _ in 0..calls {
            let arguments = plan.arguments(operation, now, Some(now), &calendars);
            let arguments = arguments.map_err(|error| error.to_string())?;
            let reply = Self::run(&mut self.connection, plan, &key, &arguments)?;
            match parse_reply(plan, operation, &reply)? {
                Reply::Decision(decision) => return Ok(decision),
                Reply::Calendars { now: actual, calendars: further } => {
                    assert_eq!(actual, now);
                    calendars.extend(further);
                }
            }
        }
        Err(format!("the script requests calendars {calls} times"))
    }
}

/// A store of which every state is compared with the core's, byte by byte.
pub(crate) struct Compared {
    pub(crate) store: Store,
    core: CoreSubject,
    /// Whether the core's bytes then replace the stored ones.
    replaces: bool,
}

impl Compared {
    pub(crate) fn new(connection: Connection, replaces: bool) -> Self {
        Self { store: Store::new(connection), core: CoreSubject::default(), replaces }
    }
}

impl Subject for Compared {
    fn apply(&mut self, question: Invocation<'_>) -> Answer {
        let key = question.key;
        let answer = self.store.apply(question);
        let _ = self.core.apply(question);
        let (entry, stored) = (self.core.entry(key), self.store.stored(key));
        let expected = entry.map(Entry::encode);
        let logs = expected.as_ref().is_some_and(|_| entry.is_some_and(Entry::grows));
        let found = stored.as_deref().map(Entry::decode).transpose();
        let found = found.map_err(|error| format!("{error}: {stored:02x?}"))?;
        // A log may be stored with wider fields than it needs.
        let same = if logs { found.map(|it| it.encode()) == expected } else { stored == expected };
        if !same {
            return Err(format!("stored are {stored:02x?}, and should be {expected:02x?}"));
        }
        if let Some(bytes) = expected.filter(|_| self.replaces) {
            let mut set = redis::cmd("SET");
            set.arg(test_key(key)).arg(bytes).arg("KEEPTTL");
            set.query::<()>(&mut self.store.connection).unwrap();
        }
        answer
    }
}
