//! The protocols that are spoken, each at a port of its own.

/// A protocol that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Face {
    /// The protocol of Redis.
    Resp,
    /// HTTP with JSON.
    Http,
    /// gRPC: the rate limit service of Envoy.
    Grpc,
}

impl Face {
    pub(crate) const ALL: [Self; 3] = [Self::Resp, Self::Http, Self::Grpc];

    /// Its place in [`Self::ALL`].
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Resp => 0,
            Self::Http => 1,
            Self::Grpc => 2,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Resp => "resp",
            Self::Http => "http",
            Self::Grpc => "grpc",
        }
    }

    /// The setting of its address, without dashes.
    pub(crate) const fn setting(self) -> &'static str {
        match self {
            Self::Resp => "listen",
            Self::Http => "http",
            Self::Grpc => "grpc",
        }
    }

    /// What the settings of its TLS files begin with.
    pub(crate) const fn tls_settings(self) -> &'static str {
        match self {
            Self::Resp => "--tls",
            Self::Http => "--http-tls",
            Self::Grpc => "--grpc-tls",
        }
    }

    /// What is agreed on within TLS, the best first.
    pub(crate) const fn protocols(self) -> &'static [&'static [u8]] {
        match self {
            Self::Resp => &[],
            Self::Http => &[b"h2", b"http/1.1"],
            Self::Grpc => &[b"h2"],
        }
    }

    /// What a client hears for which there is no room.
    pub(crate) const fn full(self) -> &'static [u8] {
        match self {
            Self::Resp => b"-ERR max number of clients reached\r\n",
            Self::Http => {
                b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n\
                  Content-Length: 0\r\n\r\n"
            }
            // A client of HTTP/2 tries elsewhere, or later, when it is closed before it has begun.
            Self::Grpc => b"",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stands_at_its_index() {
        for (index, face) in Face::ALL.into_iter().enumerate() {
            assert_eq!(face.index(), index, "{}", face.name());
        }
    }
}
