//! `AUTH [user] password`: authenticates the connection. There is one user, `default`.

use super::spec::{PRE_AUTH_FLAGS, optional, text};
use crate::{
    net::incidents::Incident,
    protocols::resp::{
        call::{CallResult, CommandCall, Next, ServerCommand, command},
        session::Session,
    },
};

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

pub(super) const AUTH: ServerCommand = command(
    "AUTH",
    -2,
    PRE_AUTH_FLAGS,
    &[optional("username"), text("password")],
    "Authenticates the connection.",
    run,
);

fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    match *call.arguments_after_name() {
        [_] if call.session.shared.password.is_none() => {
            return Err("ERR AUTH <password> called without any password configured for the \
                        default user. Are you sure your configuration is correct?"
                .into());
        }
        [password] => authenticate(call.session, b"default", password)?,
        [user, password] => authenticate(call.session, user, password)?,
        _ => return Err("ERR syntax error".into()),
    }
    call.writer().simple("OK");
    Ok(Next::Limits(call.session.limits()))
}

/// Checks the password, and records the result in the session.
pub(super) fn authenticate(
    session: &mut Session<'_>,
    user: &[u8],
    password: &[u8],
) -> Result<(), String> {
    // The password is compared whatever the user, so that the duration does not show which is wrong.
    let is_right = session.shared.is_password(password);
    if user != b"default" || !is_right {
        session.login_failed = true;
        session.shared.incidents.note(session.client, session.now, Incident::WrongPassword);
        session.worker.stats().login_failures.add();
        return Err(WRONG_PASSWORD.into());
    }
    session.authenticated = true;
    Ok(())
}
