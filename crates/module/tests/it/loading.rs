//! Loading, repeatedly and with invalid options; options; unloading.

use redis::Value;
use sluicegate_testing::{Engine, Server, TempDir};

use crate::{
    on_both,
    server::{module, serve, with_test_clock},
};

/// The log of a server that ends because the module rejects its options.
fn refused(engine: Engine, arguments: &[&str]) -> String {
    let all = [&["--loadmodule", module()][..], arguments].concat();
    Server::within(engine, TempDir::new(), &all, &[]).expect_err("it is refused")
}

fn load_invalid_option_logs_error(engine: Engine) {
    for (arguments, words) in [
        (
            &["colour", "blue"][..],
            "unknown option `colour`: expected notify-denials, test-clock or test-panic",
        ),
        (&["test-clock", "maybe"], "invalid option `test-clock maybe`: expected `yes` or `no`"),
        (&["test-clock"], "option `test-clock` has no value: expected `yes` or `no`"),
    ] {
        let log = refused(engine, arguments);
        assert!(log.contains(words), "{log}");
    }
}

fn options_are_settable_by_config(engine: Engine) {
    let loads = ["--loadmodule", module()];
    let set = ["--sluicegate.test-clock", "yes"];
    let server = Server::with(engine, &[&loads[..], &set].concat());
    let mut peer = server.raw_client();
    assert_eq!(peer.integers("SG.TAKE k gcra:1/1s AT 5")[0], 1);
    assert_eq!(peer.text("CONFIG SET sluicegate.notify-denials yes"), "OK");
    let actual = format!("{:?}", peer.call("CONFIG GET sluicegate.notify-denials"));
    assert!(actual.contains("yes"), "{actual}");
    assert!(peer.error("CONFIG SET sluicegate.test-clock no").starts_with("ERR"));
    assert!(peer.error("CONFIG SET sluicegate.notify-denials maybe").starts_with("ERR"));
}

fn unload_and_load_again_works(engine: Engine) {
    let server = with_test_clock(engine);
    let mut peer = server.raw_client();
    let path = module().to_owned();
    assert!(peer.error(&format!("MODULE LOAD {path}")).starts_with("ERR"), "a second time");
    assert_eq!(peer.integers("SG.TAKE k gcra:1/1h AT 5")[0], 1, "the first is not disturbed");
    for _ in 0..3 {
        assert_eq!(peer.text("MODULE UNLOAD sluicegate"), "OK");
        assert!(peer.error("SG.TAKE k gcra:1/1h").starts_with("ERR unknown command"));
        assert_eq!(peer.text(&format!("MODULE LOAD {path}")), "OK");
        assert_eq!(
            peer.integers("SG.TAKE k gcra:1/1h")[0],
            1,
            "the state at 5 us has long recovered"
        );
        let error = peer.error("SG.TAKE k gcra:1/1h AT 5");
        assert!(error.starts_with("ERR option AT is unavailable"), "{error}");
        assert_eq!(peer.call("SG.RESET k"), Ok(Value::Int(1)));
    }
}

/// The server does not unload the module while a client waits.
fn unload_with_waiting_client_is_rejected(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    peer.integers("SG.TAKE k gcra:1/1h");
    let mut waiter = server.raw_client();
    let thread = std::thread::spawn(move || waiter.call("SG.WAIT k gcra:1/1h TIMEOUT 10000000000"));
    peer.eventually_true(|it| it.info_value("sluicegate", "sluicegate_waiting") == 1);
    assert!(peer.error("MODULE UNLOAD sluicegate").starts_with("ERR"));
    peer.call("SG.RESET k").unwrap();
    assert!(thread.join().unwrap().is_ok());
    peer.eventually_true(|it| it.call("MODULE UNLOAD sluicegate").is_ok());
}

/// The log would name a missing function of the module API.
fn load_logs_no_warning(engine: Engine) {
    let server = serve(engine);
    let log = server.log();
    assert!(server.folder().path().exists() && log.contains("'sluicegate' loaded"), "{log}");
    assert!(!log.contains("not documented") && !log.contains("is taken"), "{log}");
}

on_both! {
    load_invalid_option_logs_error
    options_are_settable_by_config
    unload_and_load_again_works
    unload_with_waiting_client_is_rejected
    load_logs_no_warning
}
