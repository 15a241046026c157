#!/usr/bin/env bash
# Runs the tests and tutorials of the package transfer_queue over `rolldock.transfer_queue`, and prints a table.
# Installs the wheel, torch and the package's wheel (only its tests) into a separate folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
home=${ROLLDOCK_PEER_ENV:-$HOME/.cache/rolldock-peer}
export PIP_QUIET=1 PIP_DISABLE_PIP_VERSION_CHECK=1
vllm=${ROLLDOCK_VLLM_HOME:-$HOME/.cache/rolldock-vllm}/venv
if [[ ! -x $home/bin/python ]]; then
  base=python3
  [[ ! -x $vllm/bin/python ]] || base=$vllm/bin/python
  "$base" -m venv "$home"
  # The torch of the vLLM servers saves a download of gigabytes.
  [[ $base == python3 ]] || "$base" -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
    >"$("$home/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")/vllm.pth"
fi
# ROLLDOCK_TORCH_INDEX names an index that has torch for the CPU, which is smaller.
"$home/bin/python" -c "import torch" 2>/dev/null ||
  "$home/bin/pip" install ${ROLLDOCK_TORCH_INDEX:+--index-url "$ROLLDOCK_TORCH_INDEX"} torch
"$home/bin/pip" install --requirement tests/transfer_queue/requirements.txt
[[ -d $home/peer/tests ]] || {
  "$home/bin/pip" download --no-deps --dest "$home/peer" "TransferQueue==0.1.11"
  (cd "$home/peer" && python3 -m zipfile -e ./*.whl whole && mv whole/tests whole/tutorial . && rm -r whole)
}
# A caller that has already installed rolldock names the folder of its package.
if [[ -z ${ROLLDOCK_SITE:-} ]]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  "$home/bin/pip" wheel ./python --no-deps --wheel-dir "$work"
  "$home/bin/pip" install --no-deps --force-reinstall "$work"/rolldock-*.whl
fi
export PYTHONPATH=${ROLLDOCK_SITE:-} PYTHONDONTWRITEBYTECODE=1
# Python looks in the folder of the script first.
exec "$home/bin/python" tests/transfer_queue/table.py "$home/peer"
