//! A Redis on a free port of the loopback, which ends with the test.

use std::{
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

use sluicegate::{Limiter, Options};

pub(crate) struct Redis {
    child: Child,
    port: u16,
}

impl Redis {
    pub(crate) fn start() -> Self {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        // Killed with this thread, however that ends.
        let mut command = Command::new("setpriv");
        command.args([
            "--pdeathsig",
            "KILL",
            "--",
            "redis-server",
            "--bind",
            "127.0.0.1",
            "--save",
            "",
        ]);
        command.args(["--port", &port.to_string()]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "redis-server has ended");
            std::thread::yield_now();
        }
        Self { child, port }
    }

    pub(crate) async fn limiter(&self) -> Limiter {
        let mut options = Options::default();
        // What a busy machine keeps.
        options.deadline = std::time::Duration::from_secs(5);
        options.connect_timeout = options.deadline;
        let url = format!("redis://127.0.0.1:{}", self.port);
        Limiter::connect_with(&url, options).await.unwrap()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
