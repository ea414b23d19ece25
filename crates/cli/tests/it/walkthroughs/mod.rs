//! The walkthroughs of `docs/` work, word for word: each page is done step by step, as a reader does it, in a
//! folder that is like a fresh clone. How pages are read is in `page.rs`.

mod page;
mod shell;

use self::{
    page::{Step, agree, steps},
    shell::{Shell, build_axum, build_javascript, build_python},
};

fn walk(path: &str) {
    let mut shell = Shell::new();
    let page = shell.read(path);
    let steps = steps(&page);
    assert!(steps.iter().any(|step| matches!(step, Step::Run { .. })), "{path} has no command");
    for step in steps {
        match step {
            Step::Write { name, text } => shell.write(&name, &text),
            Step::Compare { path: file, text } => {
                assert_eq!(shell.read(&file), text, "{path}: {file}")
            }
            Step::Start { command, ports } => shell.start(&command, &ports),
            Step::Run { command, printed: shown, varies } => {
                let printed = shell.run(&command);
                assert!(
                    agree(&shown, &printed, varies),
                    "{path}: `{command}` printed\n{printed}\nand the page shows\n{shown}\n{}",
                    shell.logs()
                );
            }
        }
    }
}

#[test]
fn walkthrough_quickstart_works() {
    walk("docs/quickstart.md");
}

#[test]
fn walkthrough_third_party_works() {
    walk("docs/walkthroughs/third-party.md");
}

#[test]
fn walkthrough_axum_works() {
    build_axum();
    walk("docs/walkthroughs/axum.md");
}

#[test]
fn walkthrough_envoy_works() {
    walk("docs/walkthroughs/envoy.md");
}

#[test]
fn walkthrough_fastapi_works() {
    build_python();
    walk("docs/walkthroughs/fastapi.md");
}

#[test]
fn walkthrough_express_works() {
    build_javascript();
    walk("docs/walkthroughs/express.md");
}

#[test]
fn walkthrough_nginx_works() {
    walk("docs/walkthroughs/nginx.md");
}

#[test]
fn walkthrough_redis_cell_works() {
    assert!(sluicegate_testing::module().ends_with(".so"));
    walk("docs/walkthroughs/redis-cell.md");
}
