#!/usr/bin/env bash
# Installs vLLM for CPU, and runs the tests with two real servers that have a tiny random model. The tests use
# the servers, pause, stop and kill them, and give them new versions. Prints a note and skips the tests if
# shared/vllm/setup.sh, which installs vLLM, is not beside the checkout.
# usage: tests/real_vllm.sh [PORT]   (uses PORT, which is 18101 by default, and PORT + 1)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
vllm=../shared/vllm
if [[ ! -x $vllm/setup.sh ]]; then
  echo "skipped: $vllm/setup.sh does not exist or is not executable"
  exit 0
fi
"$vllm/setup.sh"
# With the test `binary`, cargo builds the binary that the others run.
ROLLDOCK_VLLM_START=$(realpath "$vllm/start.sh") ROLLDOCK_VLLM_PORT=${1:-18101} \
  cargo test --locked --workspace --test end_to_end --test binary -- --nocapture real_vllm::
