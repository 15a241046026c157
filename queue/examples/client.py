"""A client of the transfer queue in less than eighty lines, and a tour that checks the rules of the guide's page
"A client in an afternoon". Needs pyarrow and nothing else.

python3 queue/examples/client.py http://127.0.0.1:7070 [TOKEN]
"""

# ANCHOR: client
import http.client
import json
import sys
import time
import urllib.parse
import uuid

import pyarrow as pa


class Refused(Exception):
    """An error of the queue: its status, its stable code and its class."""

    def __init__(self, status, error):
        super().__init__(error["message"])
        self.status, self.code, self.kind = status, error["code"], error["class"]


def stream(table):
    """Returns rows as the bytes of an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


class Queue:
    def __init__(self, url, token=None, patience_s=30):
        self.address = urllib.parse.urlsplit(url)
        self.headers = {"authorization": f"Bearer {token}"} if token else {}
        self.patience_s = patience_s

    def call(self, method, path, body=None, repeatable=True):
        """Sends a call. If a second call changes nothing, sends it again until a whole answer arrives."""
        give_up = time.monotonic() + self.patience_s
        while True:
            connection = http.client.HTTPConnection(self.address.hostname, self.address.port, timeout=60)
            try:
                connection.request(method, "/v1" + path, body, self.headers)
                answer = connection.getresponse()
                content = answer.read()
                break
            except (OSError, http.client.HTTPException):
                if not repeatable or time.monotonic() > give_up:
                    raise
                time.sleep(0.5)
            finally:
                connection.close()
        if answer.status >= 400:
            raise Refused(answer.status, json.loads(content)["error"])
        return answer, content

    def post(self, path, what, repeatable=True):
        return json.loads(self.call("POST", path, json.dumps(what).encode(), repeatable)[1])

    def put(self, partition, group, table, **options):
        """Puts the rows of a group, and returns their handles."""
        query = urllib.parse.urlencode({"group": group, "token": uuid.uuid4().hex, "wait_ms": 20_000, **options})
        answer = self.call("POST", f"/partitions/{partition}/rows?{query}", stream(table))
        return json.loads(answer[1])["rows"]

    def columns(self, partition, handles, table, **options):
        """Adds columns to rows by their `_handle`. With `overwrite="true"` they replace earlier values."""
        query = urllib.parse.urlencode({"token": uuid.uuid4().hex, **options})
        body = stream(table.append_column("_handle", handles))
        self.call("POST", f"/partitions/{partition}/columns?{query}", body)

    def take(self, partition, **what):
        """Returns the name of a lease and its rows, or whether the puts have ended."""
        body = json.dumps(what).encode()
        answer, content = self.call("POST", f"/partitions/{partition}/take", body, repeatable=False)
        if answer.status == 204:
            return None, answer.headers["rolldock-ended"] == "true"
        return answer.headers["rolldock-lease"], pa.ipc.open_stream(content).read_all()

    def lease(self, partition, lease, verb):
        self.call("POST", f"/partitions/{partition}/leases/{lease}/{verb}")
# ANCHOR_END: client


def refused(code, attempt, *words, **options):
    try:
        attempt(*words, **options)
    except Refused as error:
        assert error.code == code, (code, error.code, error)
        return str(error)
    raise AssertionError(f"expected {code}")


def number(handle):
    return handle["generation"] << 32 | handle["slot"]


def main():
    queue = Queue(*sys.argv[1:3])
    name = "client-" + uuid.uuid4().hex
    spec = {"name": name, "tasks": [{"name": "train"}], "capacity_rows": 64, "lease_ms": 2_000}
    queue.post("/partitions", spec)
    queue.post("/partitions", spec)  # An equal declaration changes nothing.
    refused("declared_otherwise", queue.post, "/partitions", {**spec, "capacity_rows": 65})

    # Keys and tags are columns of a put. A repetition with the same token returns the same handles.
    rows = pa.table({
        "_key": ["a/0", "a/1"],
        "_tags": ['{"source": "math"}', None],
        "response_ids": pa.array([[1, 2, 3], [4]], pa.list_(pa.uint32())),
        "kind": pa.array(["x", "x"]).dictionary_encode(),
    })
    handles = queue.put(name, "a", rows, token="put a")
    assert queue.put(name, "a", rows, token="put a") == handles
    refused("key_exists", queue.put, name, "b", rows)

    # The rows of a take begin with their handles, groups and versions.
    lease, taken = queue.take(name, task="train", groups=1)
    assert taken.column_names[:5] == ["_handle", "_group", "_policy_version", "_key", "_tags"]
    assert taken["_handle"].to_pylist() == [number(handle) for handle in handles]
    assert taken["_tags"].to_pylist() == ['{"source":"math"}', None]
    assert taken["kind"].to_pylist() == ["x", "x"]
    found = queue.post(f"/partitions/{name}/find", {"keys": ["a/1"]})["rows"]
    assert found == [{"key": "a/1", "row": handles[1], "group": "a", "tags": None}]
    queue.post(f"/partitions/{name}/tags", {"tags": [[handles[1], {"seen": True}]]})

    # A lease lasts `lease_ms` from its grant or its last renewal.
    for _ in range(3):
        time.sleep(0.8)
        queue.lease(name, lease, "renew")
    queue.lease(name, lease, "ack")
    queue.lease(name, lease, "ack")  # A repeated ack changes nothing.
    refused("lease_gone", queue.lease, name, lease, "renew")
    refused("stale_handle", queue.post, f"/partitions/{name}/get", {"rows": handles})

    # Without `wait_ms` a 204 says only that nothing is ready now.
    assert queue.take(name, task="train", groups=1) == (None, False)
    refused("deadline", queue.take, name, task="train", groups=1, wait_ms=0)
    queue.put(name, "c", rows)
    lease, _ = queue.take(name, task="train", groups=1)
    time.sleep(2.3)
    refused("lease_gone", queue.lease, name, lease, "ack")
    assert json.loads(queue.call("GET", f"/partitions/{name}")[1])["tasks"][0]["ready_groups"] == 1

    # Columns are written to rows by their handles; a body may come in chunks.
    handles = queue.post(f"/partitions/{name}/find", {"keys": ["a/0", "a/1"]})["rows"]
    handles = pa.array([number(row["row"]) for row in handles], pa.uint64())
    rewards = pa.table({"reward": pa.array([1.0, -1.0], pa.float32())})
    body = stream(rewards.append_column("_handle", handles))
    chunks = iter([body[:100], body[100:]])
    queue.call("POST", f"/partitions/{name}/columns?token=rewards", chunks, repeatable=False)
    queue.columns(name, handles, rewards, token="rewards")

    # Values are replaced only if the call requests it. A lease keeps the values that it had at its start.
    refused("column_exists", queue.columns, name, handles, rewards)
    lease, taken = queue.take(name, task="train", groups=1)
    better = pa.table({"reward": pa.array([2.0, -2.0], pa.float32())})
    queue.columns(name, handles, better, overwrite="true")
    assert taken["reward"].to_pylist() == [1.0, -1.0]
    queue.lease(name, lease, "nack")
    lease, taken = queue.take(name, task="train", groups=1)
    assert taken["reward"].to_pylist() == [2.0, -2.0]
    queue.columns(name, handles, rewards, token="rewards")  # A repetition replaces nothing.
    queue.lease(name, lease, "nack")
    lease, taken = queue.take(name, task="train", groups=1)
    assert taken["reward"].to_pylist() == [2.0, -2.0]
    queue.lease(name, lease, "nack")

    # The queue refuses what it does not support.
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as packed:
        packed.write_table(rows)
    body = sink.getvalue().to_pybytes()
    words = refused("bad_request", queue.call, "POST", f"/partitions/{name}/rows?group=z", body)
    assert "compression" in words, words
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    refused("bad_request", queue.put, name, "z", twice)
    refused("bad_request", queue.post, "/partitions", {**spec, "name": ".."})

    # The end: a take that waits gets 204 with `rolldock-ended: true` once no row can become ready.
    lease, _ = queue.take(name, task="train", groups=1)
    queue.post(f"/partitions/{name}/end", {})
    queue.lease(name, lease, "ack")
    assert queue.take(name, task="train", groups=1, wait_ms=20_000) == (None, True)
    refused("closed", queue.put, name, "late", rows)
    queue.call("DELETE", f"/partitions/{name}")
    print("the tour of a client is over")


if __name__ == "__main__":
    main()
