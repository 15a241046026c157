#!/usr/bin/env bash
# Teaches a small model over a real vLLM server on the CPU: examples/learn. Prints a note and skips this if the
# vLLM servers are not installed.
# usage: tests/learn.sh                       its tests, 12 steps of a model that learns to add, and 10 steps of
#                                             an agent that learns to use a calculator through the gateway
#        tests/learn.sh ARGUMENTS...          examples/learn/learn.py with these arguments; --all for all runs
#        tests/learn.sh --agent ARGUMENTS...  examples/learn/learn_agent.py with these arguments
#
# A caller that has installed the wheel and pytest sets ROLLDOCK_SITE to their folder, and ROLLDOCK_BINARY to
# the binary. Otherwise the script builds the wheel.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
home=${ROLLDOCK_LEARN_HOME:-$HOME/.cache/rolldock-learn}
python=${ROLLDOCK_VLLM_HOME:-$HOME/.cache/rolldock-vllm}/venv/bin/python
export PIP_QUIET=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
if [[ ! -x $python ]]; then
  echo "skipped: the learning run, because $python does not exist"
  exit 0
fi
mkdir -p "$home"
if [[ -z ${ROLLDOCK_SITE:-} ]]; then
  "$python" -m pip wheel ./python --no-deps --wheel-dir "$home/wheels"
  ROLLDOCK_SITE=$home/site
  "$python" -m pip install --no-deps --upgrade --target "$ROLLDOCK_SITE" \
    --requirement tests/wheel-torch-requirements.txt "$home"/wheels/rolldock-*.whl
  ROLLDOCK_BINARY=$ROLLDOCK_SITE/bin/rolldock
fi
export PYTHONPATH=$ROLLDOCK_SITE ROLLDOCK_BINARY
cd examples/learn
adder() { timeout 3600 "$python" learn.py --out "$home" "$@"; }
agent() { timeout 3600 "$python" learn_agent.py --out "$home/agent" "$@"; }
if [[ $# == 0 ]]; then
  "$python" -m pytest -q -p no:cacheprovider test_learn.py test_learn_agent.py
  # The model begins at 0.25. 50 steps reach more than 0.8.
  adder --steps 12 --learned 0.4
  # The agent begins at 0.23. 60 steps reach more than 0.8.
  agent --steps 10 --learned 0.4
elif [[ $1 == --agent ]]; then
  agent "${@:2}"
else
  adder "$@"
fi
