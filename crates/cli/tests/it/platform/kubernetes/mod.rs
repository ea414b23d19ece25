//! The manifests for Kubernetes: against its schemas, against each other, and with the real server.

mod gates;
mod pods;

use std::{collections::BTreeSet, process::Command, sync::LazyLock};

use serde_json::Value;
use sluicegate_testing::TempDir;

use super::{read, root, succeed, tool};
use crate::{envoy::proxy, run::output};

/// The oldest version that the manifests work with, and the newest with schemas.
const VERSIONS: [&str; 2] = ["1.30", "1.37"];

/// The documents of `dist/kubernetes`, valid by the schemas, with their files.
fn manifests() -> &'static [(String, Value)] {
    static MANIFESTS: LazyLock<Vec<(String, Value)>> = LazyLock::new(validated);
    &MANIFESTS
}

fn validated() -> Vec<(String, Value)> {
    let script = root().join("crates/cli/tests/platform/manifests.py");
    let mut python = Command::new(tool("kubernetes/bin/python"));
    python.arg(script).arg(root().join("dist/kubernetes")).args(VERSIONS);
    let documents: Vec<Value> = serde_json::from_str(&succeed(&mut python)).unwrap();
    let parts = |mut it: Value| (it["file"].as_str().unwrap().to_owned(), it["document"].take());
    documents.into_iter().map(parts).collect()
}

/// The one document of this kind, name and file.
fn find<'a>(all: &'a [(String, Value)], file: &str, kind: &str, name: &str) -> &'a Value {
    let is_it = |(path, it): &&(String, Value)| {
        path == file && it["kind"] == kind && it["metadata"]["name"] == name
    };
    let found: Vec<_> = all.iter().filter(is_it).collect();
    let [(_, document)] = found[..] else { panic!("{} of {kind} {name} in {file}", found.len()) };
    document
}

/// The pod of a workload, of whatever kind.
fn pod(document: &Value) -> Option<&Value> {
    match document["kind"].as_str().unwrap() {
        "Deployment" | "StatefulSet" => Some(&document["spec"]["template"]["spec"]),
        "Pod" => Some(&document["spec"]),
        _ => None,
    }
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The containers of Sluicegate, with the file and the pod of each.
fn containers(all: &[(String, Value)]) -> Vec<(&str, &Value, &Value)> {
    let pods = all.iter().filter_map(|(file, it)| Some((file.as_str(), pod(it)?)));
    let containers = pods.flat_map(|(file, pod)| {
        let both = [&pod["initContainers"], &pod["containers"]];
        both.into_iter().flat_map(items).map(move |container| (file, pod, container))
    });
    containers.filter(|(_, _, it)| it["name"] == "sluicegate").collect()
}

fn arguments(container: &Value) -> Vec<&str> {
    items(&container["args"]).iter().map(|it| it.as_str().unwrap()).collect()
}

#[test]
fn manifests_are_valid_and_belong_together() {
    let all = manifests();
    let labels = &find(all, "base/service.yaml", "Service", "sluicegate")["metadata"]["labels"];
    let service = &find(all, "base/service.yaml", "Service", "sluicegate")["spec"];
    let workloads = [
        find(all, "replicas/deployment.yaml", "Deployment", "sluicegate"),
        find(all, "single/statefulset.yaml", "StatefulSet", "sluicegate"),
    ];
    for workload in workloads {
        let template = &workload["spec"]["template"];
        assert_eq!(template["metadata"]["labels"], service["selector"]);
        assert_eq!(workload["spec"]["selector"]["matchLabels"], service["selector"]);
        let container = &template["spec"]["containers"][0];
        let ports: Vec<_> = items(&container["ports"]).iter().map(|it| &it["name"]).collect();
        assert!(items(&service["ports"]).iter().all(|it| ports.contains(&&it["targetPort"])));
        for probe in ["livenessProbe", "readinessProbe"] {
            assert!(ports.contains(&&container[probe]["httpGet"]["port"]), "{probe}");
        }
    }
    let spec = |file: &str, kind: &str| &find(all, file, kind, "sluicegate")["spec"];
    let budget = spec("replicas/poddisruptionbudget.yaml", "PodDisruptionBudget");
    assert_eq!(budget["selector"]["matchLabels"], service["selector"]);
    let policy = spec("base/networkpolicy.yaml", "NetworkPolicy");
    assert_eq!(policy["podSelector"]["matchLabels"], service["selector"]);
    let scaler = spec("replicas/horizontalpodautoscaler.yaml", "HorizontalPodAutoscaler");
    assert_eq!(scaler["scaleTargetRef"]["name"], workloads[0]["metadata"]["name"]);

    // Custom resources, whose schemas are not available.
    let version = |file: &str, kind: &str, name: &str| {
        find(all, file, kind, name)["apiVersion"].as_str().unwrap().to_owned()
    };
    let monitor = spec("servicemonitor.yaml", "ServiceMonitor");
    assert_eq!(
        version("servicemonitor.yaml", "ServiceMonitor", "sluicegate"),
        "monitoring.coreos.com/v1"
    );
    assert_eq!(&monitor["selector"]["matchLabels"], labels);
    let endpoint = &monitor["endpoints"][0];
    assert!(items(&service["ports"]).iter().any(|it| it["name"] == endpoint["port"]));
    let secret = find(all, "secret.example.yaml", "Secret", "sluicegate");
    let credentials = &endpoint["authorization"]["credentials"];
    assert_eq!(credentials["name"], secret["metadata"]["name"]);
    assert!(secret["stringData"][credentials["key"].as_str().unwrap()].is_string());
    for (kind, name) in [("Middleware", "sluicegate"), ("IngressRoute", "app")] {
        assert_eq!(version("traefik.yaml", kind, name), "traefik.io/v1alpha1");
    }
    let route = &find(all, "traefik.yaml", "IngressRoute", "app")["spec"]["routes"][0];
    assert_eq!(route["middlewares"][0]["name"], "sluicegate");
    assert!(route["match"].is_string() && route["services"][0]["port"].is_u64(), "{route}");
    for (file, it) in all.iter().filter(|(_, it)| it["kind"] == "Kustomization") {
        let folder = root().join("dist/kubernetes").join(file).parent().unwrap().to_owned();
        for resource in items(&it["resources"]) {
            assert!(folder.join(resource.as_str().unwrap()).exists(), "{file}: {resource}");
        }
    }
}

/// The restricted Pod Security Standard, and a read-only file system.
#[test]
fn manifests_run_sluicegate_without_privileges() {
    let all = manifests();
    let containers = containers(all);
    assert_eq!(containers.len(), 5, "a Deployment, a StatefulSet, and three sidecars");
    for (file, pod, container) in containers {
        let own = &container["securityContext"];
        assert_eq!(own["allowPrivilegeEscalation"], false, "{file}");
        assert_eq!(own["readOnlyRootFilesystem"], true, "{file}");
        assert_eq!(own["capabilities"]["drop"], serde_json::json!(["ALL"]), "{file}");
        // The container's value, or else the pod's.
        let either =
            |path: &str| own.pointer(path).or_else(|| pod["securityContext"].pointer(path));
        assert_eq!(either("/runAsNonRoot"), Some(&true.into()), "{file}");
        assert!(either("/runAsUser").and_then(Value::as_u64).is_some_and(|it| it > 0), "{file}");
        assert_eq!(either("/seccompProfile/type"), Some(&"RuntimeDefault".into()), "{file}");
        assert!(container["resources"]["limits"]["memory"].is_string(), "{file}");
    }
}

/// A port beyond loopback has a password or a token.
#[test]
fn manifests_expose_no_port_without_a_secret() {
    let all = manifests();
    for (file, _, container) in containers(all) {
        let secrets: Vec<_> = items(&container["env"]).iter().map(|it| &it["name"]).collect();
        for (flag, secret) in [
            ("--listen=", Some("SLUICEGATE_REQUIREPASS")),
            ("--http=", Some("SLUICEGATE_HTTP_TOKEN")),
            ("--grpc=", None),
        ] {
            let address = arguments(container).into_iter().find_map(|it| it.strip_prefix(flag));
            let address = address.unwrap_or_else(|| panic!("{file}: {flag} depends on the image"));
            let is_closed = address == "off" || address.starts_with("127.0.0.1:");
            let has_secret = secret.is_some_and(|it| secrets.iter().any(|name| **name == *it));
            assert!(is_closed || has_secret, "{file}: {flag}{address}");
        }
    }
}

#[test]
fn manifests_rules_are_valid_and_their_tests_pass() {
    let all = manifests();
    let mut seen = 0;
    for (file, it) in all {
        let Some(rules) = it["data"]["rules.yaml"].as_str() else { continue };
        let folder = TempDir::new();
        let path = folder.path().join("rules.yaml");
        std::fs::write(&path, rules).unwrap();
        let path = path.to_str().unwrap();
        let text = output(&["rules", "check", path], "");
        assert!(!text.contains("warning"), "{file}: {text}");
        if rules.contains("\ntests:\n") {
            output(&["rules", "test", path], "");
        }
        seen += 1;
    }
    assert_eq!(seen, 2);
}

#[test]
fn manifests_envoy_accepts_its_configuration() {
    let all = manifests();
    let folder = TempDir::new();
    let file = folder.path().join("envoy.yaml");
    let text =
        find(all, "envoy.yaml", "ConfigMap", "envoy")["data"]["envoy.yaml"].as_str().unwrap();
    std::fs::write(&file, text).unwrap();
    let mut envoy = Command::new(proxy::program());
    succeed(envoy.args(["--mode", "validate", "--log-level", "error", "-c"]).arg(file));
    // Where the sidecar of the same file listens.
    let all = containers(all);
    let (_, _, container) = all.iter().find(|(file, ..)| *file == "envoy.yaml").unwrap();
    let port = arguments(container).into_iter().find_map(|it| it.strip_prefix("--grpc=127.0.0.1:"));
    assert!(text.contains(&format!("port_value: {} }}", port.unwrap())));
}

/// Every file is described in the page, and every file that it names exists.
#[test]
fn manifests_page_has_every_file() {
    let page = read("docs/kubernetes.md");
    let files: BTreeSet<_> = manifests().iter().map(|(file, _)| file).collect();
    for file in files.into_iter().filter(|it| !it.ends_with("kustomization.yaml")) {
        assert!(page.contains(&format!("(../dist/kubernetes/{file})")), "{file}");
    }
}
