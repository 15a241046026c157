#!/bin/sh
# Tests the proxy in front of two simulated servers, with the openai package and curl. Installs openai into a
# separate folder.
set -eu
cd "$(dirname "$0")/.."
python=${ROLLDOCK_OPENAI_ENV:-$HOME/.cache/rolldock-openai}
[ -x "$python/bin/python" ] || python3 -m venv "$python"
"$python/bin/pip" install --quiet --disable-pip-version-check "openai==3.54.0"

# A caller that has already built the binary sets ROLLDOCK_BINARY.
rolldock=${ROLLDOCK_BINARY:-}
if [ -z "$rolldock" ]; then
    cargo build --workspace --quiet --bin rolldock
    rolldock=${CARGO_TARGET_DIR:-target}/debug/rolldock
fi
logs=$(mktemp -d)
"$rolldock" simengine --ports 0,0 --time-scale 0.001 --mean-response-length 12 >"$logs/servers" &
servers=$!
proxy=
trap 'kill $servers $proxy 2>/dev/null || true; rm -rf "$logs"' EXIT
# Waits for at most about a minute until a process has printed enough lines with the given words. Prints the first
# word of each of these lines.
said() {
    for _ in $(seq 600); do
        [ "$(grep -c "$2" "$logs/$1")" -ge "$3" ] && break
        sleep 0.1
    done
    grep "$2" "$logs/$1" | cut -d ' ' -f 1
}
urls=$(said servers serves 2)
first=$(echo "$urls" | sed -n 1p)
second=$(echo "$urls" | sed -n 2p)
"$rolldock" proxy --listen 127.0.0.1:0 --endpoint "$first" --endpoint "$second" >"$logs/proxy" &
proxy=$!
url=$(said proxy balances 1)

"$python/bin/python" tests/openai_client.py "$url" simulated

ask='{"model":"simulated","messages":[{"role":"user","content":"hello"}],"max_tokens":8'
curl -sf "$url/v1/chat/completions" -H 'content-type: application/json' -d "$ask}" | grep -q '"finish_reason"'
curl -sfN "$url/v1/chat/completions" -H 'content-type: application/json' -d "$ask,\"stream\":true}" | grep -q '^data: \[DONE\]'
curl -sf "$url/health" | grep -q '"live":2'
[ "$(curl -s -o /dev/null -w '%{http_code}' -X POST "$url/pause")" = 403 ]
curl -sf "$url/metrics" | grep -q '^rolldock_requests_total'
echo "curl is served"
kill -TERM $proxy
wait $proxy
