#!/usr/bin/env bash
# Runs the tests and tutorials of the package transfer_queue over `rolldock.transfer_queue`, compares its
# signatures with ours, and prints a table. Only the wheel of the package is downloaded. The code of
# the package is not imported.
#
# A caller that has installed rolldock and the packages of transfer_queue/requirements.txt sets ROLLDOCK_SITE to
# their folder. The Python of the vLLM servers uses this folder with its own torch. Without ROLLDOCK_SITE the
# script builds the wheel, and installs it with torch into a folder of its own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
home=${ROLLDOCK_PEER_ENV:-$HOME/.cache/rolldock-peer}
vllm=${ROLLDOCK_VLLM_HOME:-$HOME/.cache/rolldock-vllm}/venv
export PIP_QUIET=1 PIP_DISABLE_PIP_VERSION_CHECK=1
skip() {
  echo "skipped: the tests of TransferQueue, because $1"
  exit 0
}
peer=$home/peer
mkdir -p "$peer"
if [[ ! -d $peer/source ]]; then
  python3 -m pip download --no-deps --dest "$peer" "TransferQueue==0.1.11" ||
    skip "its wheel cannot be downloaded"
  rm -rf "$peer"/{whole,tests,tutorial}
  (cd "$peer" && python3 -m zipfile -e ./*.whl whole && mv whole/tests whole/tutorial . &&
    mv whole/transfer_queue source && rm -r whole)
fi
if [[ -n ${ROLLDOCK_SITE:-} ]]; then
  [[ -x $vllm/bin/python ]] || skip "$vllm does not exist, which has torch"
  python=$vllm/bin/python
else
  python=$home/bin/python
  if [[ ! -x $python ]]; then
    base=python3
    [[ ! -x $vllm/bin/python ]] || base=$vllm/bin/python
    "$base" -m venv "$home"
    # The torch of the vLLM servers saves a download of gigabytes.
    [[ $base == python3 ]] || "$base" -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
      >"$("$python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")/vllm.pth"
  fi
  # ROLLDOCK_TORCH_INDEX names an index that has torch for the CPU, which is smaller.
  "$python" -c "import torch" 2>/dev/null ||
    "$python" -m pip install ${ROLLDOCK_TORCH_INDEX:+--index-url "$ROLLDOCK_TORCH_INDEX"} torch
  "$python" -m pip install --requirement tests/transfer_queue/requirements.txt
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  "$python" -m pip wheel ./python --no-deps --wheel-dir "$work"
  "$python" -m pip install --no-deps --force-reinstall "$work"/rolldock-*.whl
fi
export PYTHONPATH=${ROLLDOCK_SITE:-} PYTHONDONTWRITEBYTECODE=1
TRANSFER_QUEUE_SOURCE=$peer/source "$python" -m pytest -q -p no:cacheprovider --rootdir tests/transfer_queue \
  tests/transfer_queue/test_signatures.py
# Python looks in the folder of the script first.
"$python" tests/transfer_queue/table.py "$peer"
