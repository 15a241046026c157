"""The Python client of Rolldock, measured for `rolldock-bench python`.

Arguments: a folder, the folder in which the wheel is installed, and the URL of a server. The process reads
one JSON command per line from standard input and answers each with one JSON line on standard output, as
`transferqueue_peer.py` does. The batches are equal to those of that script.
"""

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version

SITE, URL = sys.argv[2:4]
sys.path.insert(0, SITE)

import numpy as np  # noqa: E402
import torch  # noqa: E402

import rolldock  # noqa: E402

#: The longest time for processes to start, in seconds.
START_S = 60.0

IMPORT = """
import time
def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096
before, started = resident(), time.perf_counter()
import rolldock
print(time.perf_counter() - started, resident() - before)
"""


def large_batch(rows, prompt_tokens, response_tokens):
    def ids(tokens):
        return (torch.arange(rows * tokens) % 150_000).reshape(rows, tokens)

    log_probs = (
        (torch.arange(rows * response_tokens) * -1e-7).to(torch.float32).reshape(rows, response_tokens)
    )
    return {
        "input_ids": ids(prompt_tokens),
        "responses": ids(response_tokens),
        "log_probs": log_probs,
        "reward": torch.arange(rows, dtype=torch.float32),
    }


def small_batch(rows, payload_bytes):
    payload = torch.arange(rows).to(torch.uint8).reshape(rows, 1).repeat(1, payload_bytes)
    return {"payload": payload, "reward": torch.arange(rows, dtype=torch.float32)}


def tensors(batch):
    return {name: batch.torch(name) for name in batch.names}


def check(taken, put):
    """Fails unless the rows taken are those that were put."""
    if sorted(taken) != sorted(put):
        raise RuntimeError(f"took the columns {sorted(taken)}")
    for name, expected in put.items():
        found = taken[name]
        if found.dtype != expected.dtype or not torch.equal(found, expected):
            raise RuntimeError(f"what was taken of {name} is not what was put")


class Client:
    def __init__(self):
        self.clients = {
            way: rolldock.Client(URL, shared_memory=way == "shared_memory")
            for way in ("http", "shared_memory")
        }
        self.batch = None
        self.rounds = 0

    def round(self, way, partition, batch, calls):
        """Makes `calls` puts and then `calls` takes. Returns the seconds of the puts and of the takes."""
        client, takes = self.clients[way], []
        self.rounds += 1
        started = time.perf_counter()
        for call in range(calls):
            client.put(partition, f"{self.rounds}-{call}", batch)
        put = time.perf_counter() - started
        started = time.perf_counter()
        for _ in range(calls):
            lease = client.take(partition, groups=1)
            takes.append((lease, tensors(lease)))
            if calls > 1:
                # The acks of small rows are measured, because the peer also marks rows as consumed.
                lease.ack()
        take = time.perf_counter() - started
        for lease, taken in takes:
            check(taken, batch)
            if calls == 1:
                lease.ack()
        if client.transport != way:
            raise RuntimeError(f"expected {way}, found {client.transport}")
        return {"put": put, "take": take}

    def large(self, way, **shape):
        if self.batch is None:
            self.batch = large_batch(**shape)
        return self.round(way, "large", self.batch, 1)

    def small(self, way, rows, payload_bytes, calls):
        return self.round(way, "small", small_batch(rows, payload_bytes), calls)

    def copy(self, bytes):
        """Seconds of a copy of `bytes` bytes from one array to another."""
        # `np.zeros` would leave the target without pages, and the copy would include their faults.
        source, target = np.ones(bytes, dtype=np.uint8), np.ones(bytes, dtype=np.uint8)
        started = time.perf_counter()
        np.copyto(target, source)
        return {"seconds": time.perf_counter() - started}

    def fill(self, partition, groups, rows, payload_bytes):
        """Puts groups of small rows that stay in the queue."""
        client, batch = self.clients["shared_memory"], small_batch(rows, payload_bytes)
        client.declare(partition, capacity_rows=max(groups * rows, 1))
        for group in range(groups):
            client.put(partition, f"{group}", batch)
        return {}

    def small_takes(self, way, partition, calls):
        """Seconds of each of `calls` takes of one column of a group."""
        client, seconds = self.clients[way], []
        for _ in range(calls):
            started = time.perf_counter()
            batch = client.take(partition, groups=1, columns=["reward"])
            reward = batch.torch("reward")
            seconds.append(time.perf_counter() - started)
            if reward.tolist() != list(range(len(batch))):
                raise RuntimeError("the rewards are not those that were put")
            batch.nack()
        return {"seconds": seconds}

    def processes(self, count, seconds, shape, socket_path):
        """Loops per second of `count` processes together: of `rolldock_loop`, and then of `bare_loop`.

        `shape` has the arguments of `large_batch` or of `small_batch`.
        """
        context = multiprocessing.get_context("spawn")
        arguments = (context.Barrier(count), shape, socket_path, seconds)
        with ProcessPoolExecutor(count, context, initializer=begin_work, initargs=arguments) as pool:
            rates = list(pool.map(work, range(count)))
        return {"rolldock": sum(ours for ours, _ in rates), "bare": sum(bare for _, bare in rates)}

    def imported(self):
        """Seconds and bytes of `import rolldock` in a fresh process."""
        environment = {**os.environ, "PYTHONPATH": SITE}
        said = subprocess.run(
            [sys.executable, "-c", IMPORT], env=environment, capture_output=True, check=True
        )
        seconds, resident = said.stdout.split()
        return {"seconds": float(seconds), "bytes": float(resident)}


def begin_work(*arguments):
    """Keeps what all processes share: a barrier can be given to a process only when the process starts."""
    global SHARED
    SHARED = arguments


def work(number):
    together, shape, socket_path, seconds = SHARED

    def rate(loop):
        loops = 0
        loop("first")
        together.wait(START_S)
        started = time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds:
            loop(f"{loops}")
            loops += 1
        # The exit of an interpreter that has imported torch takes half a second of CPU. The other processes
        # must not lose this time.
        together.wait(START_S)
        return loops / elapsed

    # More threads than cores would only take turns.
    torch.set_num_threads(1)
    batch = small_batch(**shape) if "payload_bytes" in shape else large_batch(**shape)
    return rate(rolldock_loop(number, batch)), rate(bare_loop(number, batch, socket_path))


def rolldock_loop(number, batch):
    """Returns a function that puts a group, takes it and acks it: three calls."""
    client, partition = rolldock.Client(URL), f"process-{number}"

    def loop(group):
        client.put(partition, group, batch)
        taken = client.take(partition, groups=1)
        tensors(taken)
        taken.ack()

    return loop


def bare_loop(number, batch, socket_path):
    """Returns a function that shows what the machine gives to such processes without Rolldock.

    The function exchanges three short messages with a server that returns them. Before each message it does
    what a client of any queue does, with NumPy, torch and the standard library: it copies the batch,
    describes it in JSON, and makes a tensor of the copy.
    """
    copies = {name: np.empty_like(values.numpy()) for name, values in batch.items()}
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(socket_path)

    def exchange(message):
        connection.sendall(message)
        received = b""
        while len(received) < len(message):
            received += connection.recv(65_536)
        return json.loads(received)

    def loop(group):
        for call in ("put", "take", "ack"):
            columns = []
            for name, values in batch.items():
                np.copyto(copies[name], values.detach().cpu().contiguous().numpy())
                columns.append({"name": name, "shape": values.shape, "dtype": str(values.dtype)})
            exchange(json.dumps({"call": call, "of": number, "group": group, "columns": columns}).encode())
            for values in copies.values():
                torch.from_dlpack(values)

    return loop


def main():
    client = Client()
    versions = [
        f"python {sys.version.split()[0]}",
        f"rolldock {rolldock.__version__}",
        f"torch {version('torch')}",
    ]
    print(json.dumps({"versions": ", ".join(versions)}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(client, command.pop("do"))(**command)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
