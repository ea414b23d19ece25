//! `examples/envoy/run.sh`, run unchanged except for the ports, which must be free.

use std::{
    env, fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use sluicegate_testing::{TempDir, eventually_true, free_port};

use super::{
    free, patient,
    proxy::{Client, example, program},
};

/// The script, with all processes that it has started, until dropped.
struct Script {
    child: Child,
    folder: TempDir,
    /// Where the shop is.
    shop: String,
}

impl Script {
    fn start() -> Self {
        let folder = TempDir::new();
        let ports: [u16; 4] = std::array::from_fn(|_| free_port());
        let [shop, upstream, limiter, admin] = ports;
        let mut envoy = patient(&example("envoy.yaml"));
        // The longest first: one begins like another.
        for (known, port) in [(10001, upstream), (10000, shop), (9901, admin), (8081, limiter)] {
            let known = format!("port_value: {known} ");
            assert!(envoy.contains(&known), "{known}");
            envoy = envoy.replace(&known, &format!("port_value: {port} "));
        }
        fs::write(folder.path().join("envoy.yaml"), envoy).unwrap();
        for file in ["rules.yaml", "run.sh"] {
            fs::write(folder.path().join(file), example(file)).unwrap();
        }

        let (envoy, sluicegate) = (program(), env!("CARGO_BIN_EXE_sluicegate"));
        let ours = [sluicegate.as_ref(), &*envoy].map(|it| Path::new(it).parent().unwrap());
        let ours = ours.map(Path::to_owned);
        let theirs = env::var_os("PATH").unwrap();
        let path = env::join_paths(ours.into_iter().chain(env::split_paths(&theirs))).unwrap();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        // The system stops it when this thread ends, for any reason.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--", "sh"]).arg(folder.path().join("run.sh"));
        command.env("PATH", path).env("SLUICEGATE_LISTEN", "127.0.0.1:0");
        command.env("SLUICEGATE_GRPC", format!("127.0.0.1:{limiter}"));
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap();
        Self { child, folder, shop: format!("127.0.0.1:{shop}") }
    }

    fn is_up(&mut self) -> bool {
        let ended = self.child.try_wait().unwrap();
        let log = || fs::read_to_string(self.folder.path().join("log")).unwrap();
        assert!(ended.is_none(), "it has ended: {}", log());
        // Envoy lets everybody pass until it has received of the service.
        let answer = std::net::TcpStream::connect(&self.shop)
            .is_ok()
            .then(|| Client::connect(&self.shop).get("/", &free("nobody")));
        answer.is_some_and(|it| it.field("x-ratelimit-limit").is_some())
    }

    fn stop(&mut self) -> bool {
        if matches!(self.child.try_wait(), Ok(None)) {
            let id = self.child.id().to_string();
            let _ = Command::new("kill").args(["-TERM", &id]).status();
        }
        self.child.wait().is_ok_and(|ended| ended.success())
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.stop();
    }
}

#[test]
fn envoy_example_script_runs_unchanged() {
    let mut script = Script::start();
    eventually_true("the shop is open", || script.is_up());
    let mut client = Client::connect(&script.shop);
    let codes: Vec<_> = (0..12).map(|_| client.get("/", &free("ada")).code).collect();
    assert_eq!(codes, [vec![200; 10], vec![429; 2]].concat());
    let codes: Vec<_> = (0..5).map(|_| client.get("/login", &[]).code).collect();
    assert_eq!(codes, vec![200; 5]);
    let denied = client.get("/login", &[]);
    assert_eq!(denied.code, 429);
    let header = |name: &str| denied.field(name).unwrap();
    assert_eq!(header("x-ratelimit-limit"), "5, 5;w=3600;name=\"login\"");
    assert_eq!((header("x-ratelimit-remaining"), header("x-envoy-ratelimited")), ("0", "true"));

    // Rules that change while it runs: usage carries over.
    let rules = script.folder.path().join("rules.yaml");
    let text = fs::read_to_string(&rules).unwrap();
    fs::write(&rules, text.replace("gcra:10/1h", "gcra:20/1h")).unwrap();
    eventually_true("the new rules are in force", || client.get("/", &free("ada")).code == 200);
    let codes: Vec<_> = (0..12).map(|_| client.get("/", &free("ada")).code).collect();
    assert_eq!(codes, [vec![200; 9], vec![429; 3]].concat());
    assert!(script.stop(), "it ends when it is stopped");
}
