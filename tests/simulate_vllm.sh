#!/usr/bin/env bash
# Compares the step times of `rolldock simulate`, after `rolldock calibrate`, with the step times of runs on two real
# vLLM servers that have a tiny random model. The figures are times of this machine, so nothing else should run on it.
# usage: tests/simulate_vllm.sh [PORT]   (uses PORT, which is 18131 by default, and PORT + 1)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
vllm=../shared/vllm
if [[ ! -x $vllm/setup.sh ]]; then
  echo "skipped: $vllm/setup.sh does not exist or is not executable"
  exit 0
fi
"$vllm/setup.sh"
# A caller that has already built the binary sets ROLLDOCK_BINARY.
rolldock=${ROLLDOCK_BINARY:-}
if [[ -z $rolldock ]]; then
  cargo build --workspace --quiet --bin rolldock
  rolldock=${CARGO_TARGET_DIR:-target}/debug/rolldock
fi
work=$(mktemp -d)
started=()
stop() {
  for pid in "${started[@]}"; do kill -- "-$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap stop EXIT
port=${1:-18131}
urls=()
for server in "$port" "$((port + 1))"; do
  set -m
  VLLM_ENABLE_V1_MULTIPROCESSING=0 "$vllm/start.sh" "$server" --enable-scale-out >"$work/vllm-$server" 2>&1 &
  set +m
  started+=($!)
  urls+=("http://127.0.0.1:$server")
done
for url in "${urls[@]}"; do
  for _ in $(seq 240); do
    curl -sf "$url/health" >/dev/null && break
    sleep 1
  done
  curl -sf "$url/health" || { cat "$work"/vllm-*; exit 1; }
done
python3 tests/simulate_vllm.py "$rolldock" "$work" "$(realpath "$vllm/tokenizer")" "${urls[@]}"
