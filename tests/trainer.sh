#!/usr/bin/env bash
# Trains 30 steps with recipes/dapo_qwen3_8b.toml and examples/trainer.py, in sync and in fully_async, and checks the
# batches. Only sizes, paths, endpoints, model, tokenizer and the scorer differ from the recipe; the filter stays on. On
# simulated servers, the run in sync is interrupted and resumed, and its trainer waits for it.
# usage: tests/trainer.sh                two simulated servers
#        tests/trainer.sh --vllm [PORT]  two real vLLM servers with a tiny random model, at PORT (18111) and PORT + 1
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
steps=${ROLLDOCK_TRAINER_STEPS:-30}
vllm=../shared/vllm
if [[ ${1:-} == --vllm && ! -x $vllm/setup.sh ]]; then
  echo "skipped: $vllm/setup.sh does not exist or is not executable"
  exit 0
fi
python=${ROLLDOCK_TRAINER_ENV:-$HOME/.cache/rolldock-trainer}
[[ -x $python/bin/python ]] || python3 -m venv "$python"
"$python/bin/pip" install --quiet --disable-pip-version-check "pyarrow==26.0.1" numpy

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
# `start LOG COMMAND...` starts a command in a process group of its own.
start() {
  local log=$1
  shift
  set -m
  "$@" >"$log" 2>&1 &
  set +m
  started+=($!)
}
# `until_said LOG WORDS COUNT SECONDS` waits for COUNT lines with WORDS in LOG, for at most SECONDS.
until_said() {
  for _ in $(seq "$(($4 * 10))"); do
    [[ $(grep -c "$2" "$1" || true) -ge $3 ]] && return
    sleep 0.1
  done
  echo "no \"$2\" in:"
  cat "$1"
  exit 1
}

if [[ ${1:-} == --vllm ]]; then
  "$vllm/setup.sh"
  port=${2:-18111}
  for server in "$port" "$((port + 1))"; do
    VLLM_ENABLE_V1_MULTIPROCESSING=0 start "$work/vllm-$server" "$vllm/start.sh" "$server" --enable-scale-out
  done
  for server in "$port" "$((port + 1))"; do
    for _ in $(seq 240); do
      curl -sf "http://127.0.0.1:$server/health" >/dev/null && break
      sleep 1
    done
    curl -sf "http://127.0.0.1:$server/health" || { cat "$work/vllm-$server"; exit 1; }
  done
  urls="http://127.0.0.1:$port http://127.0.0.1:$((port + 1))"
  downloaded=../shared/data/dapo_math_17k.svs.parquet
  settings=(model.name=tiny-qwen3 "model.tokenizer=$(realpath "$vllm/tokenizer")" rollout.max_response_length=32)
else
  start "$work/servers" "$rolldock" simengine --ports 0,0 --time-scale 0.002 --mean-response-length 40
  until_said "$work/servers" " serves " 2 120
  urls=$(grep " serves " "$work/servers" | cut -d ' ' -f 1 | tr '\n' ' ')
  downloaded=data/arithmetic/train.jsonl
  settings=(model.name=simulated model.tokenizer=builtin rollout.max_response_length=128)
fi
settings+=(
  "data.train=$work/train.jsonl" "data.validation=$work/validation.jsonl"
  rollout.train_batch_size=4 rollout.gen_batch_size=8 rollout.samples_per_prompt=4
  reward.overlong.buffer_length=16 "reward.python=$PWD/tests/trainer.py:compute_score"
  queue.listen=127.0.0.1:0 policy.listen=127.0.0.1:0
)
set_all=()
for setting in "${settings[@]}"; do set_all+=(--set "$setting"); done
endpoints=()
for url in $urls; do endpoints+=(--endpoint "$url"); done
"$rolldock" data prepare recipes/dapo_qwen3_8b.toml "${set_all[@]}" --train "$downloaded" --validation-prompts 8

for mode in sync fully_async; do
  staleness=$([[ $mode == sync ]] && echo 0 || echo 1)
  # The servers have the version of the previous run, and a new run begins with version 0.
  for url in $urls; do
    curl -sf "$url/update_weight_version" -H 'content-type: application/json' -d '{"new_version": "0"}' >/dev/null
  done
  run=(run recipes/dapo_qwen3_8b.toml --no-progress --out "$work/$mode" --steps "$steps" "${endpoints[@]}")
  start "$work/$mode.log" "$rolldock" "${run[@]}" "${set_all[@]}" --set "policy.mode=$mode"
  running=${started[-1]}
  until_said "$work/$mode.log" "serving the queue at " 1 300
  queue=$(sed -n 's/^serving the queue at //p' "$work/$mode.log")
  policy=$(sed -n 's/^policy versions are announced at \(.*\)\/v1\/policy\/announce$/\1/p' "$work/$mode.log")
  trainer=(--queue "$queue" --policy "$policy" --groups 4 --state "$work/$mode.json")
  start "$work/trainer.log" "$python/bin/python" tests/trainer.py "$steps" 4 4 "$staleness" "${trainer[@]}"
  training=${started[-1]}
  if [[ $mode == sync && ${1:-} != --vllm ]]; then
    until_said "$work/trainer.log" " rows of version " 2 300
    kill -INT "$running"
    wait "$running" || { cat "$work/$mode.log"; exit 1; }
    until_said "$work/trainer.log" "; waiting for the run" 1 60
    mv "$work/$mode.log" "$work/$mode-1.log"
    start "$work/$mode.log" "$rolldock" run --resume "$work/$mode" --no-progress \
      --set "queue.listen=${queue#http://}" --set "policy.listen=${policy#http://}"
    running=${started[-1]}
  fi
  if ! wait "$training"; then
    cat "$work/$mode.log" "$work/trainer.log"
    exit 1
  fi
  tail -n 1 "$work/trainer.log"
  wait "$running" || { cat "$work/$mode.log"; exit 1; }
  grep "^done: $steps steps; " "$work/$mode.log"
  grep -hq "^validation after step 0: " "$work/$mode"*.log || { echo "no validation before training"; exit 1; }
done
