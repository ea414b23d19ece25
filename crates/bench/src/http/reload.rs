//! Rule changes under load: requests of a proxy to `/v1/gate`, with 10 000 rules, while the rules file is
//! replaced and reloaded as fast as possible.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use memchr::memmem;

use super::{
    load::{self, Request},
    servers::{in_process_with, named, process_with},
};
use crate::{
    keys::{KeySequence, Random},
    load::{REPLY_TIMEOUT, Sample, Sizes},
    pin,
    report::{Bar, Peer, Table},
    resp::peers,
};

/// Measures the server without reloads, and then with them.
pub(super) fn run(sizes: &Sizes, quick: bool) -> io::Result<()> {
    let count = if quick { 100 } else { 10_000 };
    let file = peers::folder()?.join(format!("rules-{}.yaml", std::process::id()));
    write(&file, count, 1)?;
    let server = if quick {
        in_process_with(Some(file.clone()))?
    } else {
        let (load_core, _) = pin::load_and_server_core()?;
        let server = process_with(Some(&file))?;
        pin::pin(&[load_core])?;
        server
    };
    let request = Request::gate();
    load::send_one(server.address, &request).map_err(|error| named("/v1/gate", &error))?;
    let measure = || -> io::Result<Sample> {
        let draw = KeySequence::Random(Random::new(1), count);
        let load = load::connect(server.address, sizes.connections, &request, draw)?;
        load.measure(sizes, || Ok(None))
    };
    let calm = measure()?;
    let done = AtomicBool::new(false);
    let (changing, reloads) = thread::scope(|scope| {
        let reloads = scope.spawn(|| reload(server.address, &file, count, &done));
        // Any status other than 200, and any broken connection, is an error here.
        let changing = measure();
        done.store(true, Ordering::Relaxed);
        let reloads = reloads.join().map_err(|_| io::Error::other("reloading failed"))?;
        Ok::<_, io::Error>((changing?, reloads?))
    })?;
    fs::remove_file(&file)?;
    let rate = |it: &Sample| it.requests / it.seconds;
    let rate_text = |it: &Sample| format!("{:.1} k/s", rate(it) / 1e3);
    let mut table = Table::comparison();
    table.compare(
        &format!("/v1/gate, {count} rules, {reloads} reloads"),
        rate_text(&changing),
        Peer::new("no reloads", rate_text(&calm)),
        rate(&changing) / rate(&calm),
        "x",
        Bar::None,
    );
    table.compare(
        "failed requests during reloads",
        "0".to_owned(),
        Peer::none(),
        0.0,
        "",
        Bar::AtMost(0.0),
    );
    println!("{table}");
    Ok(())
}

/// Replaces and reloads the file until `done`. Returns the number of reloads.
fn reload(address: SocketAddr, file: &Path, count: u64, done: &AtomicBool) -> io::Result<u64> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
    let mut reloads = 0;
    while !done.load(Ordering::Relaxed) {
        write(file, count, 2 + reloads)?;
        socket.write_all(b"POST /admin/reload HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\r\n")?;
        let mut answer = [0; 4096];
        let length = socket.read(&mut answer)?;
        let answer = &answer[..length];
        if !answer.starts_with(b"HTTP/1.1 200 ") || memmem::find(answer, b"\"rules\":").is_none() {
            return Err(io::Error::other(String::from_utf8_lossy(answer).into_owned()));
        }
        reloads += 1;
    }
    Ok(reloads)
}

/// Replaces the file atomically with another version of the rules.
fn write(file: &Path, count: u64, version: u64) -> io::Result<()> {
    let mut text =
        format!("policies: {{plan: 'gcra:{}/1s:burst=1000000000'}}\nrules:\n", 1_000_000 + version);
    for index in 0..count {
        text += &format!(
            "- {{name: r{index}, match: {{path: '/p{index:06}/**'}}, key: path, policy: plan}}\n"
        );
    }
    let new: PathBuf = file.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(new, file)
}
