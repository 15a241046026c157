#!/usr/bin/env bash
# Builds the Python wheel in the profile of tests, checks its types and its style, runs its tests, and runs
# the quickstart with the wheel in an environment that has nothing else, without Rust.
# The tests of torch run with the Python of the vLLM servers, where those are installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${ROLLDOCK_WHEEL_ENV:-$HOME/.cache/rolldock-wheel}
vllm=${ROLLDOCK_VLLM_HOME:-$HOME/.cache/rolldock-vllm}/venv
[[ -x $python/bin/python ]] || python3 -m venv "$python"
export PIP_QUIET=1 PIP_DISABLE_PIP_VERSION_CHECK=1
"$python/bin/pip" install --requirement tests/wheel-requirements.txt
export ROLLDOCK_WHEEL_PROFILE=dev
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A caller that has already built the binary sets ROLLDOCK_BINARY.
if [[ -n ${ROLLDOCK_BINARY:-} ]]; then
  ROLLDOCK_BINARY=$(realpath "$ROLLDOCK_BINARY")
fi
PATH=$python/bin:$PATH "$python/bin/pip" wheel ./python --no-deps --no-build-isolation --wheel-dir "$work"
unset ROLLDOCK_BINARY
"$python/bin/pip" install --no-deps --force-reinstall "$work"/rolldock-*.whl
(
  cd python
  "$python/bin/ruff" format --check .
  "$python/bin/ruff" check .
  "$python/bin/mypy" rolldock tests
  "$python/bin/ruff" format --check --config pyproject.toml ../examples/learn ../bench/peers
  "$python/bin/ruff" check --config pyproject.toml ../examples/learn ../bench/peers
  # The example reads TOML with the standard library, which Python 3.11 and newer have.
  "$python/bin/mypy" --python-version 3.11 ../examples/learn/*.py
  "$python/bin/pytest"
)
if [[ -x $vllm/bin/python ]]; then
  "$python/bin/pip" install --no-deps --target "$work/torch" \
    --requirement tests/wheel-torch-requirements.txt "$work"/rolldock-*.whl
  # Python looks in the current folder first, and `python/rolldock` has no extension module.
  tests=$PWD/python/tests
  (cd "$work" && ROLLDOCK_BINARY=$python/bin/rolldock PYTHONPATH=$work/torch "$vllm/bin/python" -m pytest -q \
    "$tests/test_torch.py" "$tests"/test_{packing,loader,loader_state,loader_options,torchrun}.py \
    "$tests"/test_transfer_queue*.py "$tests"/test_verl*.py)
  (cd "$work" && ROLLDOCK_BINARY=$python/bin/rolldock PYTHONPATH=$work/torch "$vllm/bin/python" -m pytest -q \
    "$tests/test_guide.py" -k "torch or verl or transfer_queue")
  ROLLDOCK_BINARY=$python/bin/rolldock ROLLDOCK_SITE=$work/torch tests/transfer_queue.sh
  ROLLDOCK_BINARY=$python/bin/rolldock ROLLDOCK_SITE=$work/torch tests/learn.sh
else
  echo "skipped: the tests of torch, because $vllm does not exist"
fi

# Another environment has nothing but the wheel, and no Rust in its path.
python3 -m venv "$work/alone"
"$work/alone/bin/pip" install --no-index "$work"/rolldock-*.whl
cd "$work"
alone=(env -i HOME="$work" PATH=/usr/bin:/bin)
"${alone[@]}" alone/bin/rolldock run recipes/quickstart.toml --steps 1 | tail -n 4
"${alone[@]}" alone/bin/python - <<'PROGRAM'
import rolldock

client = rolldock.Client.open("runs/quickstart/queue")
print(client.status("train")["rows"], "rows from the wheel")
assert client.status("train")["rows"] > 0
PROGRAM
