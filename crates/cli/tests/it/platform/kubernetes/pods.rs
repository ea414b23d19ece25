//! The containers of the manifests as processes: their arguments, probes, secrets and rules.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::symlink,
    path::Path,
    process::{Child, ChildStdout, Stdio},
};

use serde_json::Value;
use sluicegate_testing::{Engine, Server as Redis, TempDir, eventually};

use super::{arguments, containers, find, items, manifests};
use crate::run::sluicegate;

/// A container as a process, until dropped.
pub(super) struct Process {
    child: Child,
    /// The addresses of RESP, and of HTTP.
    resp: String,
    pub(super) http: String,
    _out: BufReader<ChildStdout>,
    volumes: TempDir,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// The container of a file, on free ports of loopback, with volumes in a folder.
    pub(super) fn start(all: &[(String, Value)], file: &str, more: &[&str]) -> Self {
        let found = containers(all).into_iter().find(|it| it.0 == file);
        let (_, pod, container) = found.unwrap_or_else(|| panic!("no container in {file}"));
        let volumes = TempDir::new();
        for volume in items(&pod["volumes"]) {
            if let Some(name) = volume["configMap"]["name"].as_str() {
                let is_map = |it: &&(String, Value)| {
                    it.1["kind"] == "ConfigMap" && it.1["metadata"]["name"] == name
                };
                let map =
                    &all.iter().find(is_map).unwrap_or_else(|| panic!("no ConfigMap {name}")).1;
                mount(&volumes.path().join(name), "..1", &map["data"]);
            }
        }
        let mut command = sluicegate();
        for argument in arguments(container) {
            command.arg(adapted(argument, pod, container, volumes.path()));
        }
        let secret = &find(all, "secret.example.yaml", "Secret", "sluicegate")["stringData"];
        for variable in items(&container["env"]) {
            let reference = &variable["valueFrom"]["secretKeyRef"];
            assert_eq!(reference["name"], "sluicegate");
            let value = &secret[reference["key"].as_str().unwrap()];
            command.env(variable["name"].as_str().unwrap(), value.as_str().unwrap());
        }
        for setting in more {
            let (name, value) = setting.split_once('=').unwrap();
            command.env(name, value);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut address = |start: &str| {
            let mut line = String::new();
            out.read_line(&mut line).unwrap();
            let address = line.trim_end().strip_prefix(start);
            address.unwrap_or_else(|| panic!("{file}: {start}{line}")).to_owned()
        };
        let (resp, http) = (address("listening on "), address("http on "));
        Self { child, resp, http, _out: out, volumes }
    }

    /// The status and the body of a GET.
    pub(super) fn get(&self, path: &str, fields: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.http).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n{fields}\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }

    /// The first line of the reply to a command.
    fn command(&self, command: &str) -> String {
        let mut stream = TcpStream::connect(&self.resp).unwrap();
        write!(stream, "{command}\r\nQUIT\r\n").unwrap();
        BufReader::new(stream).lines().next().unwrap().unwrap()
    }
}

/// Writes a ConfigMap as the kubelet does: `..data` is a link to a folder, and each file is a link into it.
fn mount(folder: &Path, version: &str, data: &Value) {
    let data = data.as_object().unwrap();
    fs::create_dir_all(folder.join(version)).unwrap();
    for (name, text) in data {
        fs::write(folder.join(version).join(name), text.as_str().unwrap()).unwrap();
        // It exists already when the map changes.
        let _ = symlink(Path::new("..data").join(name), folder.join(name));
    }
    let fresh = folder.join("..data_tmp");
    symlink(version, &fresh).unwrap();
    fs::rename(&fresh, folder.join("..data")).unwrap();
}

/// An argument with a free port, and the folders of volumes.
fn adapted(argument: &str, pod: &Value, container: &Value, volumes: &Path) -> String {
    if let Some((flag, address)) = argument.split_once('=')
        && ["--listen", "--http", "--grpc"].contains(&flag)
        && address != "off"
    {
        return format!("{flag}=127.0.0.1:0");
    }
    for mount in items(&container["volumeMounts"]) {
        let path = mount["mountPath"].as_str().unwrap();
        if argument.contains(path) {
            let volume = items(&pod["volumes"]).iter().find(|it| it["name"] == mount["name"]);
            let map = volume.and_then(|it| it["configMap"]["name"].as_str());
            let folder = volumes.join(map.unwrap_or(path.trim_start_matches('/')));
            fs::create_dir_all(&folder).unwrap();
            return argument.replace(path, folder.to_str().unwrap());
        }
    }
    argument.to_owned()
}

#[test]
fn pods_of_both_forms_start_answer_probes_and_require_secrets() {
    let all = manifests();
    let redis = Redis::with(Engine::Redis70, &["--requirepass", "CHANGE-ME-REDIS-PASSWORD"]);
    let store = redis.url().replace("redis://", "redis://:CHANGE-ME-REDIS-PASSWORD@");
    let store = format!("SLUICEGATE_STORE={store}");
    for (file, more) in
        [("replicas/deployment.yaml", &[store.as_str()][..]), ("single/statefulset.yaml", &[])]
    {
        let process = Process::start(all, file, more);
        let container = containers(all).into_iter().find(|it| it.0 == file).unwrap().2;
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            if let Some(path) = container[probe]["httpGet"]["path"].as_str() {
                eventually("the probe succeeds", || match process.get(path, "") {
                    (200, _) => Ok(()),
                    other => Err(other),
                });
            }
        }
        assert_eq!(process.get("/metrics", "").0, 401, "{file}");
        let token = "Authorization: Bearer CHANGE-ME-TOKEN\r\n";
        assert_eq!(process.get("/metrics", token).0, 200, "{file}");
        assert!(process.command("SG.TAKE k gcra:1/1s").starts_with("-NOAUTH"), "{file}");
        assert_eq!(process.command("AUTH CHANGE-ME-PASSWORD"), "+OK", "{file}");
    }
}

#[test]
fn pods_reload_rules_when_the_config_map_changes() {
    let all = manifests();
    let process = Process::start(all, "single/statefulset.yaml", &[]);
    let version = || {
        let text = process.get("/metrics", "Authorization: Bearer CHANGE-ME-TOKEN\r\n").1;
        let line = text.lines().find_map(|it| it.strip_prefix("sluicegate_rules_version "));
        line.unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(version(), 1);
    let rules = find(all, "base/rules.yaml", "ConfigMap", "sluicegate-rules");
    let mut data = rules["data"].clone();
    let text = data["rules.yaml"].as_str().unwrap().replace("gcra:100/1s", "gcra:50/1s");
    data["rules.yaml"] = text.into();
    mount(&process.volumes.path().join("sluicegate-rules"), "..2", &data);
    eventually("the rules are read again", || match version() {
        2 => Ok(()),
        other => Err(other),
    });
}

#[test]
fn pods_of_sidecars_start_and_pass_their_probe() {
    let all = manifests();
    for file in ["sidecar.yaml", "envoy.yaml", "traefik-values.yaml"] {
        let process = Process::start(all, file, &[]);
        assert_eq!(process.get("/readyz", "").0, 200, "{file}");
        let container = containers(all).into_iter().find(|it| it.0 == file).unwrap().2;
        let probe = &container["startupProbe"]["exec"]["command"];
        if let [program, arguments @ ..] = items(probe) {
            assert_eq!(program, "sluicegate");
            let mut command = sluicegate();
            command.args(arguments.iter().map(|it| it.as_str().unwrap()));
            command.env("SLUICEGATE_HTTP", &process.http);
            assert!(command.output().unwrap().status.success(), "{file}");
        }
    }
}
