"""A producer in Python: puts groups of rows with any columns. Needs pyarrow and nothing else.

python3 queue/examples/produce.py http://127.0.0.1:7070 [TOKEN]
"""

import json
import sys
import urllib.parse
import urllib.request

import pyarrow as pa

headers = {"authorization": "Bearer " + sys.argv[2]} if len(sys.argv) > 2 else {}


def post(path, body=b""):
    with urllib.request.urlopen(urllib.request.Request(sys.argv[1] + path, body, headers)) as answer:
        return json.load(answer)


post("/v1/partitions", json.dumps({"name": "train", "tasks": [{"name": "train"}], "capacity_rows": 1024}).encode())
for group in range(4):
    rows = pa.table({
        "prompt": [f"question {group}"] * 2,
        "response_ids": pa.array([[1, 2, 3], [4, group]], pa.list_(pa.uint32())),
        "reward": pa.array([1.0, -1.0], pa.float32()),
    })
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    # The token makes a repetition harmless: repeat the put if its response was lost.
    query = urllib.parse.urlencode({"group": f"group {group}", "token": f"put {group}", "wait_ms": 10_000})
    handles = post(f"/v1/partitions/train/rows?{query}", sink.getvalue().to_pybytes())["rows"]
    print(f"put rows {[handle['slot'] for handle in handles]}")
post("/v1/partitions/train/end")
