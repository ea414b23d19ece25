# Short names for what Cargo and xtask do. CI calls `cargo xtask test`, and `cargo xtask test --all` each night.

# Style and structure, without running a test
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --locked -- -D warnings
    cargo xtask tidy

# What CI runs for each commit; `just test --all` runs every test
test *ARGS:
    cargo xtask test {{ARGS}}

# One benchmark, or the list of them
bench *ARGS:
    cargo xtask bench {{ARGS}}

# The binary, as `just run serve`
run *ARGS:
    cargo run --release --locked -- {{ARGS}}
