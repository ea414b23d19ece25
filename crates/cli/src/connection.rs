//! Options of commands that connect to a Sluicegate server.

use std::str::FromStr;

use clap::Args;
use sluicegate_server::Config;

use crate::values;

/// Address and password of a server.
#[derive(Args, Debug)]
pub(crate) struct Connection {
    /// Address of the server
    #[arg(
        long,
        env = "SLUICEGATE_SERVER",
        value_name = "resp://HOST:PORT",
        default_value = format!("{SCHEME}{}", Config::default().resp.address)
    )]
    pub(crate) server: Address,
    #[command(flatten)]
    pub(crate) password: Password,
}

#[derive(Args, Debug)]
pub(crate) struct Password {
    /// Password of the server
    #[arg(
        long = "password",
        env = "SLUICEGATE_PASSWORD",
        hide_env_values = true,
        value_name = "PASSWORD",
        value_parser = values::secret
    )]
    pub(crate) text: Option<String>,
}

/// `HOST:PORT` of a server.
#[derive(Clone, Debug)]
pub(crate) struct Address(pub(crate) String);

pub(crate) const SCHEME: &str = "resp://";

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address = text.strip_prefix(SCHEME).unwrap_or(text);
        if address.contains("://") {
            return Err("expected resp://HOST:PORT, the address of a Sluicegate server".to_owned());
        }
        match address.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && values::port(port).is_some() => {
                Ok(Self(address.to_owned()))
            }
            _ => Err("expected resp://HOST:PORT, such as `resp://127.0.0.1:6380`".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_parse_expects_host_and_port() {
        for text in ["resp://localhost:6380", "127.0.0.1:1", "[::1]:6380"] {
            assert!(text.parse::<Address>().is_ok(), "{text}");
        }
        for text in
            ["", "localhost", ":6380", "resp://h:port", "resp://h:65536", "redis://h:1", "h:+1"]
        {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
