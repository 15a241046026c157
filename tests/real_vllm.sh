#!/usr/bin/env bash
# Installs vLLM for CPU and runs the test that starts two servers with a tiny random model, uses them, ends them in every
# way there is, and gives them new versions. Prints that it is skipped where the folder with the installer is not beside
# the checkout.
# usage: tests/real_vllm.sh [PORT]   (PORT and PORT + 1 are used; 18101 by default)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
vllm=../shared/vllm
if [[ ! -x $vllm/setup.sh ]]; then
  echo "skipped: $vllm does not exist"
  exit 0
fi
"$vllm/setup.sh"
ROLLDOCK_VLLM_START=$(realpath "$vllm/start.sh") ROLLDOCK_VLLM_PORT=${1:-18101} \
  cargo test --locked --workspace --test end_to_end -- --nocapture real_vllm::
