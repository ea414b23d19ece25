//! The Unix socket.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    net::Shutdown,
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use sluicegate_server::Server;

use crate::harness::{Running, TempDir, config, simple};

fn exchange(stream: &mut UnixStream, text: &str) -> String {
    stream.write_all(text.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut received = String::new();
    stream.read_to_string(&mut received).unwrap();
    received
}

#[test]
fn unix_socket_serves_resp() {
    let folder = TempDir::new();
    let path = folder.file("socket");
    let mut server = Running::with(|config| config.resp.unix = Some(path.clone()));
    let mut stream = UnixStream::connect(&path).unwrap();
    let received = exchange(&mut stream, "PING\r\nCL.THROTTLE k 0 1 3600\r\nCLIENT INFO\r\n");
    assert!(
        received.starts_with("+PONG\r\n*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:3600\r\n$"),
        "{received}"
    );
    assert!(received.contains(&format!(" addr={}:0 ", path.display())), "{received}");
    assert_eq!(server.connect().integers("CL.THROTTLE k 0 1 3600")[0], 1, "one state for both");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);

    let mut left = UnixStream::connect(&path).unwrap();
    left.write_all(b"PING\r\n").unwrap();
    left.read_exact(&mut [0; 7]).unwrap();
    left.write_all(b"PING\r\n").unwrap();
    server.begin_to_stop();
    let mut received = String::new();
    left.read_to_string(&mut received).unwrap();
    assert_eq!(received, "+PONG\r\n", "the sent command is answered");
    drop(server);
    assert_eq!(folder.names(), Vec::<String>::new(), "the file is removed");
}

/// The file of a server that drains may be removed, so that its successor listens there already.
#[test]
fn unix_socket_of_a_successor_is_not_removed() {
    let folder = TempDir::new();
    let path = folder.file("socket");
    let start = || Running::with(|config| config.resp.unix = Some(path.clone()));
    let first = start();
    fs::remove_file(&path).unwrap();
    let _second = start();
    drop(first);
    let mut stream = UnixStream::connect(&path).unwrap();
    assert_eq!(exchange(&mut stream, "PING\r\n"), "+PONG\r\n");
}

#[test]
fn unix_socket_unused_file_is_replaced() {
    let folder = TempDir::new();
    let path = folder.file("socket");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let server = Running::with(|config| {
        config.resp.unix = Some(path.clone());
        config.resp.unix_permissions = 0o770;
    });
    assert_eq!(exchange(&mut UnixStream::connect(&path).unwrap(), "PING\r\n"), "+PONG\r\n");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o770);

    // One that is listened on is not, nor is a file of another kind.
    let file = folder.file("file");
    fs::write(&file, "precious").unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for path in [path, file.clone()] {
        let mut config = config();
        config.resp.unix = Some(path.clone());
        let error = runtime.block_on(Server::bind(config)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    assert_eq!(server.connect().call("PING"), simple("PONG"));
}

/// RELIABILITY 63: the socket never has wider permissions than configured, not even while it is created.
#[test]
fn unix_socket_is_private_from_the_start() {
    let folder = TempDir::new();
    let path = folder.file("socket");
    let watching = Arc::new(AtomicBool::new(true));
    let watcher = {
        let (path, watching) = (path.clone(), Arc::clone(&watching));
        thread::spawn(move || {
            // Every mode that anybody sees at its path, and of every socket in a folder that others may enter.
            let mut modes = BTreeSet::new();
            while watching.load(Ordering::Relaxed) {
                if let Ok(found) = fs::symlink_metadata(&path) {
                    modes.insert(found.permissions().mode() & 0o777);
                }
                for entry in fs::read_dir(path.parent().unwrap()).unwrap().flatten() {
                    let Ok(found) = entry.metadata() else { continue };
                    if found.is_dir() && found.permissions().mode() & 0o077 != 0 {
                        modes.insert(found.permissions().mode() & 0o777);
                    }
                }
            }
            modes
        })
    };
    for _ in 0..50 {
        let server = Running::with(|config| {
            config.resp.unix = Some(path.clone());
            config.resp.unix_permissions = 0o600;
        });
        assert!(UnixStream::connect(&path).is_ok());
        drop(server);
    }
    watching.store(false, Ordering::Relaxed);
    let modes = watcher.join().unwrap();
    let modes: Vec<_> = modes.into_iter().map(|mode| format!("{mode:o}")).collect();
    println!("figure: in 50 starts the socket was seen with modes {modes:?}");
    assert!(modes.iter().all(|mode| mode == "600"), "{modes:?}");
    assert!(folder.names().is_empty(), "{:?}", folder.names());
}
