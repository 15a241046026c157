#!/usr/bin/env bash
# Runs agents from PyPI through a gateway, and compares the gateway's rows with what the engine made. Each agent has a
# Python environment of its own.
#
# tests/agents.sh          the openai and anthropic packages, on a simulated server that follows a script; then a run
#                          with each of the two as [agent], with weight updates during turns; then faults: the
#                          gateway, agents and engines are killed (10 rounds, or ROLLDOCK_AGENT_FAULT_ROUNDS)
# tests/agents.sh --all    also smolagents, openai-agents and mini-swe-agent
# tests/agents.sh --vllm   on a vLLM server on the CPU with random weights, which this script starts if VLLM_URL is not
#                          set; needs ../shared/vllm
set -euo pipefail
cd "$(dirname "$0")/.."
agents=(openai anthropic)
vllm=
for option in "$@"; do
  case $option in
    --all) agents=(openai anthropic openai-agents smolagents mini-swe-agent) ;;
    --vllm) vllm=1 ;;
    *) echo "usage: tests/agents.sh [--all] [--vllm]" >&2; exit 2 ;;
  esac
done
environments=${ROLLDOCK_AGENTS_ENV:-$HOME/.cache/rolldock-agents}
install() {
  local python=$1
  shift
  [[ -x $python/bin/python ]] || python3 -m venv "$python"
  "$python/bin/pip" install --quiet --disable-pip-version-check "$@"
}
install "$environments/driver" "pyarrow==26.0.1"
for agent in "${agents[@]}"; do
  install "$environments/$agent" -r "tests/agents/$agent-requirements.txt"
done

# A caller that has already built the binary sets ROLLDOCK_BINARY.
rolldock=${ROLLDOCK_BINARY:-}
if [[ -z $rolldock ]]; then
  cargo build --workspace --quiet --bin rolldock
  rolldock=${CARGO_TARGET_DIR:-target}/debug/rolldock
fi
words=("$rolldock" "$environments" "${agents[@]}")
if [[ -z $vllm ]]; then
  "$environments/driver/bin/python" tests/agents/main.py "${words[@]}"
  "$environments/driver/bin/python" tests/agents/run.py "${words[@]}"
  "$environments/driver/bin/python" tests/agents/faults.py "$rolldock" "${ROLLDOCK_AGENT_FAULT_ROUNDS:-10}"
  exit
fi

url=${VLLM_URL:-}
if [[ -z $url ]]; then
  url=http://127.0.0.1:8391
  log=$(mktemp)
  ../shared/vllm/start.sh 8391 --enable-scale-out --enable-auto-tool-choice --tool-call-parser hermes >"$log" 2>&1 &
  server=$!
  trap 'kill $server 2>/dev/null || true; wait $server 2>/dev/null || true; rm -f "$log"' EXIT
  until curl -sf "$url/health"; do
    kill -0 $server 2>/dev/null || { tail -50 "$log"; exit 1; }
    sleep 1
  done
fi
"$environments/driver/bin/python" tests/agents/main.py --vllm "$url" ../shared/vllm/tokenizer "${words[@]}"
