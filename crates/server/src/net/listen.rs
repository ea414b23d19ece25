//! Where clients connect: a TCP port for each protocol, and a Unix socket if one is configured.

use std::{
    future::poll_fn,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    task::{Context, Poll},
};

use sluicegate_commands::plain_error;
use socket2::SockRef;
#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::net::{TcpListener, TcpSocket};

use crate::net::{protocol::Protocol, stream::Socket};

/// Maximum number of clients that are connected but not accepted, limited by the system (`net.core.somaxconn`).
/// The system drops further ones, which then retry after a second.
const BACKLOG: u32 = 65_535;

/// Maximum number of clients of a listener that are accepted when the server stops, so that a flood of new ones cannot delay
/// the stop: as many as Linux lets wait by default (`net.core.somaxconn`).
const MAX_LAST: usize = 4096;

/// Where the server listens.
#[derive(Debug)]
pub(crate) struct Listeners {
    listeners: Vec<(usize, Listener)>,
    pub(crate) addresses: Addresses,
    /// The listener that is polled first for the next client, in turn, so that none can starve another.
    next: usize,
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(Unix),
}

/// The TCP addresses of the server, with actual ports in place of port 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct Addresses(Vec<(&'static str, SocketAddr)>);

/// A client that has connected.
#[derive(Debug)]
pub(crate) struct AcceptedClient {
    /// The index of its protocol in the order of registration.
    pub(crate) protocol: usize,
    pub(crate) socket: Socket,
    /// Its address, as text.
    pub(crate) address: String,
}

/// A Unix socket. Its file is removed on drop, unless another one has its path by then.
#[cfg(unix)]
#[derive(Debug)]
struct Unix {
    listener: UnixListener,
    path: std::path::PathBuf,
    /// The device and the number of its file.
    file: Option<(u64, u64)>,
}

impl Addresses {
    /// Where `protocol` is spoken, if it is.
    pub(crate) fn address_of(&self, protocol: &Protocol) -> Option<SocketAddr> {
        self.0.iter().find(|(name, _)| *name == protocol.name).map(|(_, address)| *address)
    }
}

impl Listeners {
    /// Listens for each protocol that has an address. Clients of the Unix socket speak the first one.
    pub(crate) fn bind(
        protocols: &[(&'static Protocol, Option<SocketAddr>)],
        unix: Option<(&Path, u32)>,
    ) -> io::Result<Self> {
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for (index, (protocol, address)) in protocols.iter().enumerate() {
            let Some(address) = address else { continue };
            let listener = bind(protocol, *address)?;
            addresses.push((protocol.name, listener.local_addr()?));
            listeners.push((index, Listener::Tcp(listener)));
        }
        #[cfg(unix)]
        if let Some((path, permissions)) = unix {
            listeners.push((0, Listener::Unix(Unix::bind(path, permissions)?)));
        }
        #[cfg(not(unix))]
        if unix.is_some() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self { listeners, addresses: Addresses(addresses), next: 0 })
    }

    /// The next client. Cancel safe.
    pub(crate) async fn accept(&mut self) -> io::Result<AcceptedClient> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<AcceptedClient>> {
        for turn in 0..self.listeners.len() {
            let place = (self.next + turn) % self.listeners.len();
            let (protocol, listener) = &self.listeners[place];
            if let Poll::Ready(accepted) = listener.poll_accept(context) {
                self.next = place + 1;
                return Poll::Ready(accepted.map(|it| AcceptedClient::new(*protocol, it)));
            }
        }
        Poll::Pending
    }

    /// Stops listening. First `admit` gets the clients that have connected and are not accepted yet, because they may
    /// have sent requests: at most [`MAX_LAST`] of each listener.
    pub(crate) fn close(self, mut admit: impl FnMut(AcceptedClient)) {
        for (protocol, listener) in self.listeners {
            for _ in 0..MAX_LAST {
                match listener.accept_now() {
                    Ok(accepted) => admit(AcceptedClient::new(protocol, accepted)),
                    // This client has left.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(_) => break,
                }
            }
        }
    }
}

impl AcceptedClient {
    fn new(protocol: usize, (socket, address): (Socket, String)) -> Self {
        Self { protocol, socket, address }
    }
}

impl Listener {
    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<(Socket, String)>> {
        match self {
            Self::Tcp(listener) => listener.poll_accept(context).map(|accepted| {
                let (stream, peer) = accepted?;
                Ok((Socket::Tcp(stream.into_std()?), address_text(peer)))
            }),
            #[cfg(unix)]
            Self::Unix(unix) => unix.listener.poll_accept(context).map(|accepted| {
                let (stream, _) = accepted?;
                Ok((Socket::Unix(stream.into_std()?), unix.client_address()))
            }),
        }
    }

    /// A client that has connected. The system is asked, because the runtime may not know of the client yet.
    ///
    /// # Errors
    /// There is none ([`WouldBlock`](io::ErrorKind::WouldBlock)), or the system cannot accept it.
    fn accept_now(&self) -> io::Result<(Socket, String)> {
        let listener = match self {
            Self::Tcp(listener) => SockRef::from(listener),
            #[cfg(unix)]
            Self::Unix(unix) => SockRef::from(&unix.listener),
        };
        let (stream, peer) = listener.accept()?;
        stream.set_nonblocking(true)?;
        Ok(match self {
            Self::Tcp(_) => {
                let peer = peer.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
                (Socket::Tcp(stream.into()), address_text(peer))
            }
            #[cfg(unix)]
            Self::Unix(unix) => (Socket::Unix(stream.into()), unix.client_address()),
        })
    }
}

/// The address of a client as text. A socket for both families maps addresses of IPv4 to IPv6.
fn address_text(peer: SocketAddr) -> String {
    SocketAddr::new(peer.ip().to_canonical(), peer.port()).to_string()
}

/// As [`TcpListener::bind`], but with [`BACKLOG`], and `[::]` is all addresses of IPv4 and IPv6.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let (socket, address) = open(address, TcpSocket::new_v6)?;
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A socket for `address`, and the address to bind: that of IPv4 for `[::]` on a system without IPv6.
fn open(
    address: SocketAddr,
    new_v6: impl FnOnce() -> io::Result<TcpSocket>,
) -> io::Result<(TcpSocket, SocketAddr)> {
    if address.is_ipv4() {
        return Ok((TcpSocket::new_v4()?, address));
    }
    let is_all = address.ip() == Ipv6Addr::UNSPECIFIED;
    match new_v6() {
        Ok(socket) => {
            if is_all {
                SockRef::from(&socket).set_only_v6(false)?;
            }
            Ok((socket, address))
        }
        Err(_) if is_all => {
            Ok((TcpSocket::new_v4()?, (Ipv4Addr::UNSPECIFIED, address.port()).into()))
        }
        Err(error) => Err(error),
    }
}

fn bind(protocol: &Protocol, address: SocketAddr) -> io::Result<TcpListener> {
    listen(address).map_err(|error| {
        let (setting, ip, port) = (protocol.setting, address.ip(), address.port());
        let text = match error.kind() {
            io::ErrorKind::AddrInUse => format!(
                "port {port} of {ip} is in use: choose another with --{setting}, or port 0 for any free one"
            ),
            _ => format!("cannot listen on {address} (--{setting}): {}", plain_error(&error)),
        };
        io::Error::new(error.kind(), text)
    })
}

#[cfg(unix)]
impl Unix {
    /// The text that stands for the address of a client: its clients have none.
    fn client_address(&self) -> String {
        format!("{}:0", self.path.display().to_string().escape_debug())
    }

    fn bind(path: &std::path::Path, permissions: u32) -> io::Result<Self> {
        use std::os::unix::{fs::FileTypeExt, fs::PermissionsExt, net::UnixStream};

        let cannot_listen = |error: io::Error| {
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
        let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if is_socket && UnixStream::connect(path).is_err_and(is_refused) {
            // A killed server has left it.
            std::fs::remove_file(path).map_err(cannot_listen)?;
        }
        // The socket is created in a private directory and linked to its path once its permissions are set, so that
        // they are never wider. A link does not replace an existing file.
        let private = Private::new(path).map_err(cannot_listen)?;
        let listener = UnixListener::bind(private.socket()).map_err(cannot_listen)?;
        let permissions = std::fs::Permissions::from_mode(permissions);
        std::fs::set_permissions(private.socket(), permissions).map_err(cannot_listen)?;
        std::fs::hard_link(private.socket(), path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => in_use("another process listens on it"),
            _ => cannot_listen(error),
        })?;
        Ok(Self { listener, path: path.to_owned(), file: file_of(path) })
    }
}

/// A directory next to a socket that only its owner can use, until dropped.
#[cfg(unix)]
#[derive(Debug)]
struct Private(std::path::PathBuf);

#[cfg(unix)]
impl Private {
    fn new(beside: &std::path::Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;

        let parent = beside.parent().unwrap_or(std::path::Path::new(""));
        // The name is short, because the path of a socket is limited to about a hundred bytes.
        let folder = parent.join(format!(".{:x}", std::process::id()));
        let private = Self(folder);
        let create = || std::fs::DirBuilder::new().mode(0o700).create(&private.0);
        create().or_else(|error| {
            if error.kind() != io::ErrorKind::AlreadyExists {
                return Err(error);
            }
            // A killed process with the same id has left it.
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
        // The file may already be removed, and be that of a server that has replaced this one.
        if self.file.is_some() && file_of(&self.path) == self.file {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The device and the number of the file at `path`.
#[cfg(unix)]
fn file_of(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;

    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{
        fs,
        net::{IpAddr, TcpStream},
        time::Duration,
    };

    use super::*;

    #[tokio::test]
    async fn listen_on_all_addresses_accepts_both_families() {
        let listener = listen("[::]:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let listener = Listener::Tcp(listener);
        let mut loopbacks: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into()];
        // A machine may have no address of IPv6.
        if std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            loopbacks.push(Ipv6Addr::LOCALHOST.into());
        }
        for ip in loopbacks {
            let client = TcpStream::connect_timeout(&(ip, port).into(), Duration::from_secs(10));
            let client = client.unwrap().local_addr().unwrap();
            let (_, address) = poll_fn(|context| listener.poll_accept(context)).await.unwrap();
            assert_eq!(address, client.to_string(), "the client's own address");
        }
    }

    #[tokio::test]
    async fn open_without_ipv6_takes_ipv4_for_all_addresses_only() {
        let none = || Err(io::Error::from(io::ErrorKind::Unsupported));
        let (socket, address) = open("[::]:6380".parse().unwrap(), none).unwrap();
        assert_eq!(address.to_string(), "0.0.0.0:6380");
        assert!(SockRef::from(&socket).local_addr().unwrap().is_ipv4());
        assert!(open("[::1]:6380".parse().unwrap(), none).is_err());
    }

    /// A burst of connections does not make a further client retry after a second.
    #[tokio::test]
    async fn listen_backlog_holds_a_burst_of_clients() {
        let most = fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let most: usize = most.trim().parse().unwrap();
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        for count in 0..most.min(3000) {
            let connected = TcpStream::connect_timeout(&address, Duration::from_millis(500));
            // The connection stays in the backlog until it is accepted.
            drop(connected.unwrap_or_else(|error| panic!("after {count} clients: {error}")));
        }
    }

    /// A client that connects again and again does not delay a stop for ever.
    #[tokio::test]
    async fn close_under_a_flood_of_clients_ends() {
        static PROTOCOL: Protocol = Protocol {
            name: "test",
            setting: "test",
            tls_settings: "test",
            alpn: &[],
            reserves_health: false,
            rejection: b"",
        };
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listeners = Listeners::bind(&[(&PROTOCOL, Some(local))], None).unwrap();
        let address = listeners.addresses.address_of(&PROTOCOL).unwrap();
        let connect = || drop(TcpStream::connect(address).unwrap());
        connect();
        let mut accepted = 0;
        listeners.close(|_| {
            accepted += 1;
            connect();
        });
        assert_eq!(accepted, MAX_LAST);
    }
}
