//! Our own automation: `cargo xtask` prints what there is.

mod bench;
mod chaos;
mod codegen;
mod dist;
mod docs;
mod dst;
mod extent;
mod figures;
mod fuzz;
mod install;
mod javascript;
mod loom;
mod planted;
mod python;
mod screenshots;
mod shell;
mod soak;
mod test;
mod tidy;
mod wasm;
mod workspace;

use std::{env, process::ExitCode};

use anyhow::{Result, bail};

use self::extent::Extent;

const HELP: &str = "\
cargo xtask COMMAND

  test [--all] [--no-install]      the everyday run: format, lints, tidy, tests with Redis and Valkey, 200 seeds of
                                   the simulation, the Python package, documentation. --all adds tests with other programs,
                                   the JavaScript package, model checks, 1000 seeds and fresh ones, benchmarks (briefly), and dist --try.
                                   Installs what is missing and says so first; with --no-install it lists
                                   that and stops
  dist [PART...] [--target TRIPLE] [--try]
                                   builds a release into target/dist: tarball, module, deb, wheel,
                                   python, javascript, image, sbom, crates, with checksums; other targets than x86-64
                                   Linux have fewer parts; --try installs each one and makes a
                                   first decision with it. All parts take 20 to 40 minutes on two cores
  codegen                          regenerates crates/proto/src/generated from the protos
  tidy                             checks of the repository itself: which crate may use which,
                                   manifests, licences, sources, links
  docs [--no-tests]                checks of what users read: links, words, and the tests that run
                                   the commands, programs and walkthroughs of docs/
  bench [NAME] [-- ARGS]           runs a benchmark, after installing what it needs; without a name,
                                   lists them
  screenshots                      makes the pictures of the dashboard, docs/figures/
  figures                          draws the pictures of docs/ and writes what the commands there
                                   print; that they are up to date is one of the tests
  python                           builds the Python package, and runs its tests and type checks
  javascript [--pack | FILE...]    builds the JavaScript package, and runs its tests (or those in FILE) with Redis,
                                   Valkey, a server, Bun, Deno and workerd; --pack packs it into target/javascript
  wasm                             builds the core as WebAssembly for the JavaScript package, by the
                                   toolchain or by Debian's compiler for the web
  fuzz [TARGET] [--seconds N]      runs one fuzz target, or each in turn, for N seconds (60)
  dst [--seeds N] [--from SEED] [--minutes M] [--jobs N] | --replay SEED | --script FILE
                                   deterministic simulation: production code in one thread and in
                                   virtual time, with faults, by seed (docs/testing.md)
  dst --fresh                      runs 10 000 seeds that no other commit has run
  dst --planted [NAME | FILE] [--seeds N] [--seconds N]
                                   plants bugs of crates/dst/planted.toml, or of FILE, one at a time, and prints
                                   after how many of N seeds (10000) the simulation finds each
  loom                             model checks of what threads share in the in-memory table, and
                                   leases under random schedules of threads
  soak [PACKAGE...]                the tests of faults and bounds in their full sizes, of all packages
                                   or of these, and a table of what they measured; takes some
                                   twenty minutes
  chaos [PACKAGE...]               the same of the store on Redis and Valkey, while servers,
                                   networks and processes fail; takes some twenty minutes";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &arguments[..] {
        [] | ["help" | "--help" | "-h"] | [_, "--help" | "-h"] => {
            println!("{HELP}");
            Ok(())
        }
        ["test"] => test::run(Extent::Everyday, true),
        ["test", "--no-install"] => test::run(Extent::Everyday, false),
        ["test", "--all"] => test::run(Extent::All, true),
        ["test", "--all", "--no-install"] | ["test", "--no-install", "--all"] => {
            test::run(Extent::All, false)
        }
        ["tidy"] => tidy::run(),
        ["docs"] => docs::run(),
        ["docs", "--no-tests"] => docs::check(),
        ["dist", rest @ ..] => dist::run(rest),
        ["codegen"] => codegen::run(),
        ["figures"] => figures::run(),
        ["python"] => python::run(),
        ["wasm"] => wasm::run(),
        ["javascript", rest @ ..] => javascript::run(rest),
        ["bench", rest @ ..] => bench::run(rest),
        ["fuzz", rest @ ..] => fuzz::run(rest),
        ["dst", "--fresh"] => dst::run_fresh(),
        ["dst", "--planted", rest @ ..] => planted::run(rest),
        ["dst", rest @ ..] => dst::run(rest),
        ["loom"] => loom::run(),
        ["soak", packages @ ..] => soak::run(packages),
        ["chaos", packages @ ..] => chaos::run(packages),
        ["screenshots"] => screenshots::run(),
        [
            "test" | "tidy" | "docs" | "codegen" | "figures" | "python" | "wasm" | "loom"
            | "screenshots",
            rest @ ..,
        ] => {
            bail!("unknown argument `{}`\n\n{HELP}", rest.join(" "))
        }
        [command, ..] => bail!("unknown command `{command}`\n\n{HELP}"),
    }
}
