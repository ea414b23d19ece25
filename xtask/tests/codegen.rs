//! What is committed of `crates/proto` is what its protos say.
//!
//! `cargo xtask codegen` runs this with `SLUICEGATE_CODEGEN` set: then what differs is written.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

use std::{collections::BTreeMap, env, fs, path::Path};

use protox::prost::Message;

/// The files that are compiled; what they import is found.
const FILES: [&str; 2] =
    ["envoy/service/ratelimit/v3/rls.proto", "envoy/service/rate_limit_quota/v3/rlqs.proto"];

/// The descriptors of all that was compiled, for reflection.
const DESCRIPTORS: &str = "descriptors.bin";

#[test]
fn codegen_output_equals_the_committed_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/proto");
    let committed = root.join("src/generated");
    let fresh = generate(&root.join("proto"));
    if env::var_os("SLUICEGATE_CODEGEN").is_some() {
        for (name, bytes) in &fresh {
            fs::write(committed.join(name), bytes).unwrap();
        }
        let names = read(&committed).into_keys().filter(|name| !fresh.contains_key(name));
        names.for_each(|name| fs::remove_file(committed.join(name)).unwrap());
    }
    let old = read(&committed);
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&old), names(&fresh), "run `cargo xtask codegen`");
    for (name, bytes) in fresh {
        assert!(
            old[&name] == bytes,
            "{name} is not what the protos say: run `cargo xtask codegen`"
        );
    }
}

/// What the protos in `folder` say, by the names of the files that are to hold it.
fn generate(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let descriptors = protox::compile(FILES, [folder]).unwrap();
    let out = env::temp_dir().join(format!("sluicegate-codegen-{}", std::process::id()));
    fs::create_dir_all(&out).unwrap();
    tonic_prost_build::configure()
        .build_transport(false)
        .emit_package(false)
        .codec_path("crate::codec::MessageCodec")
        .btree_map(".envoy.service.rate_limit_quota")
        .out_dir(&out)
        .compile_fds(descriptors.clone())
        .unwrap();
    let mut files = read(&out);
    fs::remove_dir_all(&out).unwrap();
    files.insert(DESCRIPTORS.to_owned(), descriptors.encode_to_vec());
    files
}

fn read(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            // Rust's way to write the package `envoy.type.v3`.
            let name = entry.file_name().into_string().unwrap().replace("r#", "");
            (name, fs::read(entry.path()).unwrap())
        })
        .collect()
}
