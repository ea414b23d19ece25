//! Where clients come in: a TCP port, and a Unix socket if one is asked for.

use std::{io, net::SocketAddr};

use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::UnixListener;

use crate::{Config, stream::Socket};

/// What clients connect to.
#[derive(Debug)]
pub(crate) struct Listeners {
    tcp: TcpListener,
    #[cfg(unix)]
    unix: Option<Unix>,
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
        let tcp = TcpListener::bind(config.listen).await?;
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
            tcp,
            #[cfg(unix)]
            unix,
        })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// The next client, and where it comes from. To drop this halfway loses none.
    pub(crate) async fn accept(&self) -> io::Result<(Socket, String)> {
        #[cfg(unix)]
        if let Some(unix) = &self.unix {
            return tokio::select! {
                accepted = self.tcp.accept() => tcp(accepted?),
                accepted = unix.listener.accept() => {
                    let (stream, _) = accepted?;
                    let address = format!("{}:0", unix.path.display().to_string().escape_debug());
                    Ok((Socket::Unix(stream.into_std()?), address))
                }
            };
        }
        tcp(self.tcp.accept().await?)
    }
}

fn tcp((stream, peer): (tokio::net::TcpStream, SocketAddr)) -> io::Result<(Socket, String)> {
    Ok((Socket::Tcp(stream.into_std()?), peer.to_string()))
}

#[cfg(unix)]
impl Unix {
    fn bind(path: &std::path::Path, permissions: u32) -> io::Result<Self> {
        use std::os::unix::{fs::FileTypeExt, fs::PermissionsExt, net::UnixStream};

        let told = |error: io::Error| {
            io::Error::new(error.kind(), format!("unix socket {}: {error}", path.display()))
        };
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if is_socket && UnixStream::connect(path).is_err_and(refused) {
            // What a server left behind that was killed.
            std::fs::remove_file(path).map_err(told)?;
        }
        let listener = UnixListener::bind(path).map_err(told)?;
        let unix = Self { listener, path: path.to_owned() };
        let permissions = std::fs::Permissions::from_mode(permissions);
        std::fs::set_permissions(path, permissions).map_err(told)?;
        Ok(unix)
    }
}

#[cfg(unix)]
impl Drop for Unix {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}
