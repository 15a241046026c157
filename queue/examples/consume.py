"""A trainer's loop in Python: take whole groups, train on them, ack. Needs pyarrow and nothing else.

python3 queue/examples/consume.py http://127.0.0.1:7070 [TOKEN]
"""

import json
import sys
import time
import urllib.error
import urllib.request

import pyarrow as pa

partition = sys.argv[1] + "/v1/partitions/train"
headers = {"authorization": "Bearer " + sys.argv[2]} if len(sys.argv) > 2 else {}
PATIENCE_S = 600  # How long to wait for a queue that has ended and will be served again.


def post(path, body=b""):
    for second in range(PATIENCE_S + 1):
        try:
            return urllib.request.urlopen(urllib.request.Request(f"{partition}/{path}", body, headers))
        except OSError as error:  # 503, or no answer: the server is ending or starting. The call can be sent again.
            if getattr(error, "code", 503) != 503 or second == PATIENCE_S:
                raise
            if second == 0:
                print(f"{error}; waiting for the queue", file=sys.stderr)
            time.sleep(1)


take = json.dumps({"task": "train", "groups": 8, "wait_ms": 30_000}).encode()
total = 0
while True:
    try:
        answer = post("take", take)
    except urllib.error.HTTPError as error:
        if error.code == 408:  # Nothing became ready in time.
            continue
        sys.exit(error.read().decode())
    if answer.status == 204:  # There will be no more rows.
        break
    rows = pa.ipc.open_stream(answer).read_all()
    print(f"train on {rows.num_rows} rows, {len(rows['response_ids'].combine_chunks().flatten())} response tokens")
    # Ack after training: if the process dies before, the queue gives the rows out again.
    post(f"leases/{answer.headers['rolldock-lease']}/ack")
    total += rows.num_rows
print(f"{total} rows")
