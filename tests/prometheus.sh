#!/bin/sh
# Lets Debian's Prometheus scrape a run and a served queue, and checks that it has every documented metric.
# Does nothing if Prometheus is not installed.
set -eu
cd "$(dirname "$0")/.."
if ! command -v prometheus >/dev/null; then
    echo "skipped: prometheus is not installed (apt-get install --no-install-recommends prometheus)"
    exit 0
fi

# A caller that has already built the binary sets ROLLDOCK_BINARY.
rolldock=${ROLLDOCK_BINARY:-}
if [ -z "$rolldock" ]; then
    cargo build --workspace --quiet --bin rolldock
    rolldock=${CARGO_TARGET_DIR:-target}/debug/rolldock
fi
exec python3 tests/prometheus.py "$rolldock"
