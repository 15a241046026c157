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
from importlib.metadata import version

SITE, URL = sys.argv[2:4]
sys.path.insert(0, SITE)

import numpy as np  # noqa: E402
import torch  # noqa: E402

import rolldock  # noqa: E402

#: The longest time for processes to start, or to end their loops, in seconds.
ANSWER_S = 120.0

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
        #: The processes that `start_processes` has started, each with a pipe to it.
        self.processes = []

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

    def start_processes(self, count, shape, socket_path):
        """Starts processes for `rates`. `shape` has the arguments of `large_batch` or of `small_batch`."""
        context = multiprocessing.get_context("spawn")
        for number in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(number, theirs, shape, socket_path), daemon=True)
            process.start()
            theirs.close()
            self.processes.append((process, ours))
        for _, pipe in self.processes:
            reply(pipe)
        return {}

    def rates(self, count, warm_up_s, seconds):
        """Loops per second of the first `count` processes: of `rolldock_loop`, and then of `bare_loop`.

        Loops count that end within `seconds` after the warm-up.
        """
        rates = {}
        for loop in ("rolldock", "bare"):
            start = time.monotonic() + warm_up_s
            for _, pipe in self.processes[:count]:
                pipe.send((loop, start, seconds))
            rates[loop] = sum(reply(pipe) for _, pipe in self.processes[:count]) / seconds
        return rates

    def end_processes(self):
        """Ends the processes that `start_processes` has started."""
        for _, pipe in self.processes:
            pipe.close()
        for process, _ in self.processes:
            process.join()
        self.processes = []
        return {}

    def imported(self):
        """Seconds and bytes of `import rolldock` in a fresh process."""
        environment = {**os.environ, "PYTHONPATH": SITE}
        said = subprocess.run(
            [sys.executable, "-c", IMPORT], env=environment, capture_output=True, check=True
        )
        seconds, resident = said.stdout.split()
        return {"seconds": float(seconds), "bytes": float(resident)}


def reply(pipe):
    """The next answer of a process."""
    if not pipe.poll(ANSWER_S):
        raise TimeoutError(f"a process has not answered within {ANSWER_S} s")
    answer = pipe.recv()
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return answer


def work(number, pipe, shape, socket_path):
    """Answers each command with a number of loops, until the pipe is closed.

    All processes stay until the end: a start with torch takes seconds of CPU, and an exit half a second.
    """
    try:
        # More threads than cores would only take turns.
        torch.set_num_threads(1)
        batch = small_batch(**shape) if "payload_bytes" in shape else large_batch(**shape)
        loops = {"rolldock": rolldock_loop(number, batch), "bare": bare_loop(number, batch, socket_path)}
        for loop in loops.values():
            loop("first")
        pipe.send(0)
        while True:
            name, start, seconds = pipe.recv()
            pipe.send(counted(loops[name], start, seconds))
    except EOFError:
        return
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")


def counted(loop, start, seconds):
    """Loops from now to the end of the window, and returns the number of loops that ended within it."""
    count, number = 0, 0
    while (now := time.monotonic()) < start + seconds:
        count += now >= start and number > 0
        loop(f"{number}")
        number += 1
    return count


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
