//! Test 43 (H1): spellings of one path, through the Envoy of the example to real applications.

use std::net::SocketAddr;

use sluicegate_testing::{Application, LOGIN_SPELLINGS, LOGIN_VARIANTS, get};

use super::{
    File, patient,
    proxy::{Envoy, Upstream, example},
    serve,
};

/// The example before an application, with `logins` per hour.
fn with_example<T>(app: &Application, logins: u32, run: impl FnOnce(SocketAddr) -> T) -> T {
    let text = example("rules.yaml");
    assert!(text.contains("sliding-log:5/1h"));
    let rules = text.replace("sliding-log:5/1h", &format!("fixed-window:{logins}/1h"));
    let name = format!("spellings-{}-{logins}", app.address.port());
    let rules = File::new(&name, &rules);
    let server = serve(&rules);
    let upstream = Upstream::at(app.address.port());
    let envoy = Envoy::start(&name, &server.grpc, &upstream, patient);
    run(envoy.address.parse().unwrap())
}

/// Whether the application was reached, and read the target as `/login`.
fn is_login((status, body): &(u16, String)) -> bool {
    *status == 200 && body.lines().any(|line| line == "/login")
}

/// Test 68 (L13): a header that comes several times makes no other key.
#[test]
fn envoy_repeated_header_is_rejected() {
    let app = Application::python();
    with_example(&app, 2, |envoy| {
        let status = |fields: &str| get(envoy, "/", fields).0;
        let statuses: Vec<_> = (0..11).map(|_| status("x-plan: free\r\nx-user: ada\r\n")).collect();
        assert_eq!(statuses, [&[200; 10][..], &[429]].concat());
        for fields in [
            "x-plan: free\r\nx-user: ada\r\nx-user: 1\r\n",
            "x-plan: free\r\nx-user: 2\r\nx-user: ada\r\n",
            "x-plan: free\r\nx-plan: gold\r\nx-user: ada\r\n",
        ] {
            assert_eq!(status(fields), 400, "{fields}");
        }
    });
}

#[test]
fn spellings_through_envoy_share_one_limit() {
    for (name, app) in [("Python", Application::python()), ("Node", Application::node())] {
        let all = || LOGIN_SPELLINGS.into_iter().chain(LOGIN_VARIANTS);
        let answers: Vec<_> = with_example(&app, 1_000_000, |envoy| {
            all().map(|target| (target, get(envoy, target, ""))).collect()
        });
        let logins: Vec<&str> =
            answers.iter().filter(|it| is_login(&it.1)).map(|(target, _)| *target).collect();
        assert!(logins.len() >= 6, "{answers:?}");
        with_example(&app, 2, |envoy| {
            let mut passed = Vec::new();
            for target in logins.iter().cycle().take(200) {
                if get(envoy, target, "").0 == 200 {
                    passed.push(*target);
                }
            }
            println!(
                "figure: Envoy before {name}: {} of {} spellings reach /login, {} of 200 requests pass",
                logins.len(),
                all().count(),
                passed.len()
            );
            assert_eq!(passed.len(), 2, "{name}: {passed:?}");
            for target in all() {
                assert!(!is_login(&get(envoy, target, "")), "{name}: {target}");
            }
            // The route of the example leaves none of these apart.
            for target in LOGIN_VARIANTS {
                assert_eq!(get(envoy, target, "").0, 429, "{name}: {target}");
            }
        });
    }
}
