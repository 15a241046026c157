#!/bin/sh
# Tests the figures of a run with the tools that read them: TensorBoard and MLflow read the numbers back, and
# headless Chromium opens the page of `rolldock report`. Installs the two packages into a separate folder.
# Without Chromium the page is not opened. With ROLLDOCK_REPORT_PICTURE=FILE, a picture of the page is
# written.
set -eu
cd "$(dirname "$0")/.."
python=${ROLLDOCK_REPORT_ENV:-$HOME/.cache/rolldock-report}
[ -x "$python/bin/python" ] || python3 -m venv "$python"
"$python/bin/pip" install --quiet --disable-pip-version-check "tensorboard==2.21.0" "mlflow-skinny==3.17.2"

# A caller that has already built the binary sets ROLLDOCK_BINARY.
rolldock=${ROLLDOCK_BINARY:-}
if [ -z "$rolldock" ]; then
    cargo build --workspace --quiet --bin rolldock
    rolldock=${CARGO_TARGET_DIR:-target}/debug/rolldock
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
run=$folder/quickstart

# Two processes make the run, so that the second process continues the files of the first.
for steps in 4 12; do
    "$rolldock" run recipes/quickstart.toml --out "$run" --no-progress --steps $steps \
        --set report.tensorboard=true --set fleet.simulated.time_scale=0.01 --set rollout.train_batch_size=16 \
        --set rollout.gen_batch_size=32 --set rollout.early_stop=first >"$folder/log"
done
[ "$(wc -l <"$run/steps.jsonl")" = 12 ] || { echo "expected 12 lines"; exit 1; }

# The small package of MLflow has no other local store.
export MLFLOW_ALLOW_FILE_STORE=true
MLFLOW_TRACKING_URI=file:$folder/mlruns "$python/bin/python" orchestrator/examples/mlflow_hook.py \
    <"$run/steps.jsonl" >"$folder/mlflow" 2>&1 || { cat "$folder/mlflow"; exit 1; }
"$python/bin/python" -m py_compile orchestrator/examples/wandb_hook.py
"$python/bin/python" tests/report_figures.py "$run" "file:$folder/mlruns"

"$rolldock" report "$run"
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$chromium" ]; then
    echo "skipped: the page is not opened, because Chromium is not installed"
    exit 0
fi
"$python/bin/python" tests/report_page.py "$chromium" "$run" ${ROLLDOCK_REPORT_PICTURE:-}
