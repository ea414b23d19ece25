//! Forward authentication as the manifests have it: nginx with the headers that ingress-nginx sends for its
//! annotations, and a real Traefik with the specification of the middleware.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
};

use sluicegate_testing::{TempDir, eventually, free_port};

use super::{find, manifests, pods::Process, tool};

/// A proxy until dropped.
struct Proxy {
    child: Child,
    port: u16,
    folder: TempDir,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Proxy {
    fn start(folder: TempDir, port: u16, program: &str, arguments: &[&str]) -> Self {
        let log = fs::File::create(folder.path().join("log")).unwrap();
        // Killed with this thread, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", program]).args(arguments);
        command.env("HOME", folder.path()).current_dir(folder.path());
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Self { child: command.spawn().unwrap(), port, folder }
    }

    /// The status of a login of a client that describes another request.
    fn login(&self) -> Result<u16, String> {
        let log = || fs::read_to_string(self.folder.path().join("log")).unwrap();
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else {
            return Err(log());
        };
        let fields = "X-Original-URI: /\r\nX-Original-Method: GET\r\nX-Real-IP: 192.0.2.1\r\n\
                      X-Forwarded-Uri: /\r\nX-Forwarded-Method: GET\r\nAuthorization: Bearer other\r\n";
        let head = format!(
            "POST /login HTTP/1.0\r\nHost: app.example.com\r\n{fields}Content-Length: 0\r\n\r\n"
        );
        let mut reply = String::new();
        let done =
            stream.write_all(head.as_bytes()).and_then(|()| stream.read_to_string(&mut reply));
        match reply.get(9..12).and_then(|it| it.parse().ok()) {
            // Traefik listens before it has read its configuration.
            Some(404) | None => Err(format!("{done:?} {}", log())),
            Some(status) => Ok(status),
        }
    }

    /// Five logins pass, whatever headers the client sends, and the sixth gets `denied`.
    fn limits_logins(&self, denied: u16) {
        let first = eventually("the proxy serves", || self.login());
        let more: Vec<_> = (0..5).map(|_| self.login().unwrap()).collect();
        assert_eq!((first, &*more), (200, &[200, 200, 200, 200, denied][..]));
    }
}

/// An application that answers 200, for as long as the test runs.
fn application() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            while lines.next().is_some_and(|line| !line.is_empty()) {}
            let _ = (&stream)
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    address
}

#[test]
fn gates_ingress_nginx_annotations_limit_logins() {
    let all = manifests();
    let file = "ingress-nginx.yaml";
    let settings = find(all, file, "ConfigMap", "sluicegate-gate")["data"].as_object().unwrap();
    let settings = settings.iter().map(|(name, it)| format!("{name}={}", it.as_str().unwrap()));
    let settings: Vec<_> = settings.collect();
    let settings: Vec<_> = settings.iter().map(String::as_str).collect();
    let process = Process::start(all, "single/statefulset.yaml", &settings);
    let annotations = &find(all, file, "Ingress", "app")["metadata"]["annotations"];
    let annotation =
        |name: &str| annotations[format!("nginx.ingress.kubernetes.io/{name}")].as_str().unwrap();
    let url = annotation("auth-url");
    let service = "http://sluicegate.default.svc.cluster.local:8080";
    let path = url.strip_prefix(service).unwrap_or_else(|| panic!("{url}"));
    let headers = annotation("auth-proxy-set-headers").strip_prefix("default/").unwrap();
    let headers = find(all, file, "ConfigMap", headers)["data"].as_object().unwrap().iter();
    let headers = headers.map(|(name, value)| format!("proxy_set_header {name} {value};\n"));
    let (folder, port, app) = (TempDir::new(), free_port(), application());
    let configuration = format!(
        "daemon off; pid nginx.pid; error_log stderr; events {{}}
         http {{
           access_log off;
           client_body_temp_path a; proxy_temp_path b; fastcgi_temp_path c; uwsgi_temp_path d; scgi_temp_path e;
           server {{
             listen 127.0.0.1:{port};
             location / {{ auth_request /gate; proxy_pass http://{app}; }}
             location = /gate {{
               internal;
               proxy_pass http://{}{path};
               proxy_method {};
               proxy_pass_request_body off;
               proxy_set_header Content-Length \"\";
               proxy_set_header X-Original-URI $request_uri;
               proxy_set_header X-Original-URL $scheme://$http_host$request_uri;
               proxy_set_header X-Original-Method $request_method;
               proxy_set_header X-Real-IP $remote_addr;
               proxy_set_header X-Forwarded-For $remote_addr;
               {}
             }}
           }}
         }}",
        process.http,
        annotation("auth-method"),
        headers.collect::<String>()
    );
    fs::write(folder.path().join("nginx.conf"), configuration).unwrap();
    let place = folder.path().to_str().unwrap().to_owned();
    let arguments = ["-p", &place, "-c", "nginx.conf", "-e", "stderr", "-g", "master_process off;"];
    Proxy::start(folder, port, "nginx", &arguments).limits_logins(403);
}

#[test]
fn gates_traefik_middleware_limits_logins() {
    let all = manifests();
    let process = Process::start(all, "traefik-values.yaml", &[]);
    let middleware = &find(all, "traefik.yaml", "Middleware", "sluicegate")["spec"];
    let mut middleware = middleware.clone();
    let address = middleware["forwardAuth"]["address"].as_str().unwrap();
    middleware["forwardAuth"]["address"] = address.replace("127.0.0.1:8081", &process.http).into();
    let (folder, port, app) = (TempDir::new(), free_port(), application());
    let file = serde_json::json!({"http": {
        "middlewares": {"sluicegate": middleware},
        "routers": {"app": {"rule": "PathPrefix(`/`)", "middlewares": ["sluicegate"], "service": "app"}},
        "services": {"app": {"loadBalancer": {"servers": [{"url": format!("http://{app}")}]}}},
    }});
    // JSON is YAML.
    fs::write(folder.path().join("dynamic.yaml"), file.to_string()).unwrap();
    let traefik = tool("proxies/bin/traefik");
    let entry = format!("--entryPoints.web.address=127.0.0.1:{port}");
    let arguments = [entry.as_str(), "--providers.file.filename=dynamic.yaml"];
    let proxy = Proxy::start(folder, port, traefik.to_str().unwrap(), &arguments);
    proxy.limits_logins(429);
}
