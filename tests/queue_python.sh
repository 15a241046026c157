#!/bin/sh
# Tests a served queue from Python: produces and consumes rows, and relays columns between roles. Installs
# pyarrow into a separate folder.
set -eu
cd "$(dirname "$0")/.."
python=${ROLLDOCK_PYTHON_ENV:-$HOME/.cache/rolldock-python}
[ -x "$python/bin/python" ] || python3 -m venv "$python"
"$python/bin/pip" install --quiet --disable-pip-version-check "pyarrow==26.0.1"

# A caller that has already built the binary sets ROLLDOCK_BINARY.
rolldock=${ROLLDOCK_BINARY:-}
if [ -z "$rolldock" ]; then
    cargo build --workspace --quiet --bin rolldock
    rolldock=${CARGO_TARGET_DIR:-target}/debug/rolldock
fi
work=$(mktemp -d)
log=$work/server.log
"$rolldock" queue serve --listen 127.0.0.1:0 --dir "$work/queue" --token secret >"$log" &
server=$!
trap 'kill $server 2>/dev/null || true; rm -rf "$work"' EXIT
# `until_said LOG WORDS` waits for WORDS in LOG, for at most a minute.
until_said() {
    for _ in $(seq 600); do
        grep -q "$2" "$1" && return
        sleep 0.1
    done
    echo "no \"$2\" in:"
    cat "$1"
    exit 1
}
until_said "$log" "serving a queue at"
url=$(sed -n 's/^serving a queue at \([^,]*\),.*/\1/p' "$log")

"$python/bin/python" queue/examples/produce.py "$url" secret
# The second run puts rows with the same tokens, which changes nothing.
"$python/bin/python" queue/examples/produce.py "$url" secret
consumed=$("$python/bin/python" queue/examples/consume.py "$url" secret)
echo "$consumed"
echo "$consumed" | grep -q "^8 rows$" || { echo "expected 8 rows"; exit 1; }
if "$python/bin/python" queue/examples/consume.py "$url" wrong; then
    echo "a wrong token was accepted"
    exit 1
fi
"$python/bin/python" queue/examples/client.py "$url" secret
kill $server
wait $server

# A consumer waits for a queue that will be served again. All rows are consumed.
"$python/bin/python" queue/examples/consume.py "$url" secret >"$work/consumer.log" 2>&1 &
consumer=$!
until_said "$work/consumer.log" "; waiting for the queue"
"$rolldock" queue serve --listen "${url#http://}" --dir "$work/queue" --token secret >"$log" &
server=$!
wait $consumer || { cat "$work/consumer.log"; exit 1; }
grep -q "^0 rows$" "$work/consumer.log"
kill $server
wait $server

# The queue of a run, with roles that are killed.
"$python/bin/python" tests/relay.py "$rolldock"
