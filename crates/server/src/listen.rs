//! Where clients come in: a TCP port for each face, and a Unix socket if one is asked for.

use std::{future::pending, io, net::SocketAddr};

use sluicegate_commands::plain_error;
#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::net::{TcpListener, TcpSocket};

use crate::{Config, face::Face, stream::Socket};

/// Clients that may connect before they are accepted, as far as the system allows (`net.core.somaxconn`).
/// One more is dropped by the system, and tries again after a second.
const BACKLOG: u32 = 65_535;

/// What clients connect to.
#[derive(Debug)]
pub(crate) struct Listeners {
    resp: TcpListener,
    http: Option<TcpListener>,
    grpc: Option<TcpListener>,
    #[cfg(unix)]
    unix: Option<Unix>,
}

/// Where the server really listens: the ports that were picked for port 0 included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) resp: SocketAddr,
    pub(crate) http: Option<SocketAddr>,
    pub(crate) grpc: Option<SocketAddr>,
}

/// A client that has come in.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) socket: Socket,
    pub(crate) face: Face,
    /// Where it comes from, in words.
    pub(crate) address: String,
}

/// A Unix socket; its file goes when this does.
#[cfg(unix)]
#[derive(Debug)]
struct Unix {
    listener: UnixListener,
    path: std::path::PathBuf,
}

impl Listeners {
    pub(crate) async fn bind(config: &Config) -> io::Result<Self> {
        let resp = bind(Face::Resp, config.listen)?;
        let http = bind_some(Face::Http, config.http)?;
        let grpc = bind_some(Face::Grpc, config.grpc)?;
        #[cfg(unix)]
        let unix = match &config.unix {
            Some(path) => Some(Unix::bind(path, config.unix_permissions)?),
            None => None,
        };
        #[cfg(not(unix))]
        if config.unix.is_some() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self {
            resp,
            http,
            grpc,
            #[cfg(unix)]
            unix,
        })
    }

    pub(crate) fn addresses(&self) -> io::Result<Addresses> {
        let address = |listener: &Option<TcpListener>| {
            listener.as_ref().map(TcpListener::local_addr).transpose()
        };
        Ok(Addresses {
            resp: self.resp.local_addr()?,
            http: address(&self.http)?,
            grpc: address(&self.grpc)?,
        })
    }

    /// The next client. To drop this halfway loses none.
    pub(crate) async fn accept(&self) -> io::Result<Accepted> {
        tokio::select! {
            accepted = self.resp.accept() => tcp(Face::Resp, accepted?),
            accepted = accept(self.http.as_ref()) => tcp(Face::Http, accepted?),
            accepted = accept(self.grpc.as_ref()) => tcp(Face::Grpc, accepted?),
            accepted = self.accept_unix() => accepted,
        }
    }

    #[cfg(unix)]
    async fn accept_unix(&self) -> io::Result<Accepted> {
        let Some(unix) = &self.unix else { return pending().await };
        let (stream, _) = unix.listener.accept().await?;
        let address = format!("{}:0", unix.path.display().to_string().escape_debug());
        Ok(Accepted { socket: Socket::Unix(stream.into_std()?), face: Face::Resp, address })
    }

    #[cfg(not(unix))]
    async fn accept_unix(&self) -> io::Result<Accepted> {
        pending().await
    }
}

fn bind_some(face: Face, address: Option<SocketAddr>) -> io::Result<Option<TcpListener>> {
    address.map(|address| bind(face, address)).transpose()
}

/// As [`TcpListener::bind`], but for the backlog.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn bind(face: Face, address: SocketAddr) -> io::Result<TcpListener> {
    listen(address).map_err(|error| {
        let (setting, ip, port) = (face.setting(), address.ip(), address.port());
        let text = match error.kind() {
            io::ErrorKind::AddrInUse => format!(
                "port {port} of {ip} is in use: choose another with --{setting}, or port 0 for any free one"
            ),
            _ => format!("cannot listen on {address} (--{setting}): {}", plain_error(&error)),
        };
        io::Error::new(error.kind(), text)
    })
}

type FromTcp = (tokio::net::TcpStream, SocketAddr);

/// Nobody comes in where there is no port.
async fn accept(listener: Option<&TcpListener>) -> io::Result<FromTcp> {
    match listener {
        Some(listener) => listener.accept().await,
        None => pending().await,
    }
}

fn tcp(face: Face, (stream, peer): FromTcp) -> io::Result<Accepted> {
    Ok(Accepted { socket: Socket::Tcp(stream.into_std()?), face, address: peer.to_string() })
}

#[cfg(unix)]
impl Unix {
    fn bind(path: &std::path::Path, permissions: u32) -> io::Result<Self> {
        use std::os::unix::{fs::FileTypeExt, fs::PermissionsExt, net::UnixStream};

        let told = |error: io::Error| {
            let (shown, reason) = (path.display(), plain_error(&error));
            io::Error::new(error.kind(), format!("cannot listen on {shown} (--unix): {reason}"))
        };
        let in_use = |what: &str| {
            let text = format!("cannot listen on {} (--unix): {what}", path.display());
            io::Error::new(io::ErrorKind::AddrInUse, text)
        };
        let found = std::fs::symlink_metadata(path).ok().map(|it| it.file_type());
        if let Some(found) = found.filter(|found| !found.is_socket()) {
            return Err(in_use(match found {
                kind if kind.is_dir() => "it is a folder: expected a path in it",
                kind if kind.is_symlink() => "it is a symbolic link: expected a socket, or no file",
                _ => "it is a file that is not a socket: remove it, or choose another path",
            }));
        }
        let is_socket = found.is_some();
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if is_socket && UnixStream::connect(path).is_err_and(refused) {
            // What a server left behind that was killed.
            std::fs::remove_file(path).map_err(told)?;
        }
        // It is made where nobody else comes in, and linked into its place when its permissions are set:
        // there, they hold from the first moment. A link takes the place of nothing that is there.
        let private = Private::new(path).map_err(told)?;
        let listener = UnixListener::bind(private.socket()).map_err(told)?;
        let permissions = std::fs::Permissions::from_mode(permissions);
        std::fs::set_permissions(private.socket(), permissions).map_err(told)?;
        std::fs::hard_link(private.socket(), path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => in_use("another process listens on it"),
            _ => told(error),
        })?;
        Ok(Self { listener, path: path.to_owned() })
    }
}

/// A folder beside a socket that only its owner can use, until dropped.
#[cfg(unix)]
#[derive(Debug)]
struct Private(std::path::PathBuf);

#[cfg(unix)]
impl Private {
    fn new(beside: &std::path::Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;

        let parent = beside.parent().unwrap_or(std::path::Path::new(""));
        // Short: the path of a socket may have about a hundred bytes.
        let folder = parent.join(format!(".{:x}", std::process::id()));
        let private = Self(folder);
        let create = || std::fs::DirBuilder::new().mode(0o700).create(&private.0);
        create().or_else(|error| {
            if error.kind() != io::ErrorKind::AlreadyExists {
                return Err(error);
            }
            // A killed process of the same number has left it.
            let _ = std::fs::remove_file(private.socket());
            std::fs::remove_dir(&private.0)?;
            create()
        })?;
        Ok(private)
    }

    fn socket(&self) -> std::path::PathBuf {
        self.0.join("s")
    }
}

#[cfg(unix)]
impl Drop for Private {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.socket());
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[cfg(unix)]
impl Drop for Unix {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{fs, net::TcpStream, time::Duration};

    use super::*;

    /// A burst of clients that connect does not make another one try again after a second.
    #[tokio::test]
    async fn many_clients_may_connect_before_one_is_accepted() {
        let most = fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let most: usize = most.trim().parse().unwrap();
        let listener = bind(Face::Resp, "127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        for count in 0..most.min(3000) {
            let connected = TcpStream::connect_timeout(&address, Duration::from_millis(500));
            // It stays with the system until it is accepted.
            drop(connected.unwrap_or_else(|error| panic!("after {count} clients: {error}")));
        }
    }
}
