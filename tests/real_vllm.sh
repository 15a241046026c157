#!/usr/bin/env bash
# Installs vLLM for CPU, starts two servers with a tiny random model, and runs the tests that need them.
# Prints that it is skipped where the folder with the installer is not beside the checkout.
# usage: tests/real_vllm.sh [PORT]   (PORT and PORT + 1 are used; 18101 by default)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
vllm=../shared/vllm
first=${1:-18101}
second=$((first + 1))
if [[ ! -x $vllm/setup.sh ]]; then
  echo "skipped: $vllm is not there"
  exit 0
fi

logs=$(mktemp -d)
servers=()
stop_servers() {
  # vLLM's engine is a process of its own: the whole group has to go.
  for pid in "${servers[@]}"; do kill -KILL -- "-$pid" 2>/dev/null || true; done
  rm -rf "$logs"
}
trap stop_servers EXIT

# With job control, each job gets a process group of its own.
start_server() {
  local port=$1
  shift
  set -m
  "$vllm/start.sh" "$port" "$@" >"$logs/$port" 2>&1 &
  set +m
  servers+=($!)
}

wait_for_server() {
  local port=$1 pid=$2
  for _ in $(seq 300); do
    curl -sf "http://127.0.0.1:$port/health" >/dev/null && return
    if ! kill -0 "$pid" 2>/dev/null; then break; fi
    sleep 1
  done
  echo "the server at port $port did not start:" >&2
  tail -40 "$logs/$port" >&2
  return 1
}

"$vllm/setup.sh"
start_server "$first" --enable-scale-out
start_server "$second"
wait_for_server "$first" "${servers[0]}"
wait_for_server "$second" "${servers[1]}"
ROLLDOCK_VLLM_ENDPOINTS="http://127.0.0.1:$first,http://127.0.0.1:$second" \
  cargo test --locked --workspace --test real_vllm -- --nocapture
