"""The Python package `transferqueue`, measured for `rolldock-bench queue --peer`.

One process serves the whole run. It reads one JSON command per line from standard input and answers each with
one JSON line on standard output. It ends when standard input ends, even during a command, so that no process
outlives a killed bench.

The measured calls are those of the package's own tutorials: `put`, then `get_meta` and `get_data` by one
consuming task, on the SimpleStorage backend with two storage units. Where there is a choice, the quicker way
is measured:

- the asynchronous client runs on one loop that lives as long as the process, which saves a change of thread
  per call;
- the tensors are dense, so `put` sends them without splitting them into rows;
- the time of `clear` is not measured, although our `ack` does the same work within its measured time; making
  and checking the data are not measured either.
"""

import asyncio
import json
import os
import queue
import secrets
import signal
import sys
import threading
import time

import psutil

# By default the client asks for 8 threads. On a smaller machine it then logs a warning in every timed call.
os.environ.setdefault("TQ_NUM_THREADS", str(min(8, psutil.cpu_count(logical=False) or 1)))
# Ray listens on loopback only, like our server. The variable has its name from the systems where this is the
# default.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
# Without these variables, Ray writes its own token into the home folder.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from importlib.metadata import version

import ray
import torch
import transfer_queue
from omegaconf import OmegaConf
from tensordict import TensorDict

STORAGE_UNITS = 2
TASK = "train"
END_WAIT_S = 20.0
QUEUE_PROCESSES = ("ray::TransferQueueController", "ray::SimpleStorageUnit")


def large_batch(rows: int, prompt_tokens: int, response_tokens: int) -> TensorDict:
    """A training batch, with the values and types that `bench/src/queue/data.rs` gives ours."""

    def ids(tokens: int) -> torch.Tensor:
        return (torch.arange(rows * tokens) % 150_000).reshape(rows, tokens)

    log_probs = (
        (torch.arange(rows * response_tokens) * -1e-7).to(torch.float32).reshape(rows, response_tokens)
    )
    columns = {
        "input_ids": ids(prompt_tokens),
        "responses": ids(response_tokens),
        "log_probs": log_probs,
        "reward": torch.arange(rows, dtype=torch.float32),
    }
    return TensorDict(columns, batch_size=rows)


def small_batch(rows: int, payload_bytes: int) -> TensorDict:
    payload = torch.arange(rows).to(torch.uint8).reshape(rows, 1).repeat(1, payload_bytes)
    return TensorDict(
        {"payload": payload, "reward": torch.arange(rows, dtype=torch.float32)}, batch_size=rows
    )


def check(taken: TensorDict, columns: list[str], batch: TensorDict) -> None:
    """Checks that every row that was taken had been put. A row's reward is its number."""
    numbers = [int(reward) for reward in taken["reward"]]
    for column in columns:
        for number, theirs in zip(numbers, taken[column], strict=True):
            ours = batch[column][number]
            if theirs.dtype != ours.dtype or not torch.equal(theirs, ours):
                raise RuntimeError(f"what was taken of {column} is not what was put")


def check_all(rewards: list[torch.Tensor], calls: int, batch: TensorDict) -> None:
    """Checks that a round took each row that it put exactly once.

    The check ignores which take has which row. Freed row numbers are reused, and a take follows the order of
    the row numbers, so a take after the first `clear` can mix the rows of several puts.
    """
    taken, put = torch.cat(rewards).sort().values, batch["reward"].repeat_interleave(calls)
    if not torch.equal(taken, put):
        raise RuntimeError(f"took {len(taken)} rows, put {len(put)}, or not the same")


class Peer:
    def __init__(self, client) -> None:
        self.client = client
        self.large_batch: TensorDict | None = None
        self.kept: TensorDict | None = None

    async def take(self, partition: str, columns: list[str], rows: int) -> TensorDict:
        meta = await self.client.async_get_meta(
            data_fields=columns, batch_size=rows, partition_id=partition, task_name=TASK
        )
        return await self.client.async_get_data(meta)

    async def round(self, batch: TensorDict, calls: int) -> dict:
        """Makes `calls` puts and then `calls` takes. Returns the seconds of the puts and of the takes."""
        columns, rows, rewards = list(batch.keys()), len(batch), []
        started = time.perf_counter()
        for _ in range(calls):
            await self.client.async_put(data=batch, partition_id="round")
        put = time.perf_counter() - started
        started = time.perf_counter()
        for _ in range(calls):
            taken = await self.take("round", columns, rows)
            rewards.append(taken["reward"])
        take = time.perf_counter() - started
        check(taken, columns, batch)
        check_all(rewards, calls, batch)
        await self.client.async_clear_partition("round")
        return {"put": put, "take": take}

    async def large(self, **shape: int) -> dict:
        if self.large_batch is None:
            self.large_batch = large_batch(**shape)
        return await self.round(self.large_batch, 1)

    async def small(self, rows: int, payload_bytes: int, calls: int) -> dict:
        return await self.round(small_batch(rows, payload_bytes), calls)

    async def small_takes(self, rows: int, payload_bytes: int, calls: int) -> dict:
        """Seconds of each of `calls` takes of one column of the same few rows."""
        if self.kept is None:
            self.kept = small_batch(rows, payload_bytes)
            await self.client.async_put(data=self.kept, partition_id="kept")
        seconds = []
        for _ in range(calls):
            started = time.perf_counter()
            taken = await self.take("kept", ["reward"], rows)
            seconds.append(time.perf_counter() - started)
            await self.client.async_reset_consumption(partition_id="kept", task_name=TASK)
        check(taken, ["reward"], self.kept)
        return {"seconds": seconds}

    async def memory(self) -> dict:
        """Bytes of the queue's own processes and of those that `ray.init` starts beside them.

        Workers that Ray keeps in reserve are not counted, nor is this process, which is the client.
        """
        resident, proportional, found = 0, 0, []
        for process in psutil.Process().children(recursive=True):
            name = " ".join(process.cmdline())
            if "ray::IDLE" in name:
                continue
            memory = process.memory_full_info()
            resident += memory.rss
            proportional += memory.pss
            found.append(f"{memory.rss >> 20} MiB, {memory.pss >> 20} proportional: {name.strip()[:100]}")
        own = [line for line in found if any(name in line for name in QUEUE_PROCESSES)]
        if len(own) != STORAGE_UNITS + 1:
            raise RuntimeError(f"the queue's processes are {own}")
        return {"resident": resident, "proportional": proportional, "processes": found}


def read(commands: queue.SimpleQueue) -> None:
    """Passes the commands on, then gives Ray's processes `END_WAIT_S` to end, and then kills them."""
    for line in sys.stdin:
        commands.put(line)
    commands.put(None)
    time.sleep(END_WAIT_S)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def serve(commands: queue.SimpleQueue, answers, temporary: str) -> None:
    # Each process of the queue asks Ray for one processor. On a machine with two processors they would wait
    # for ever, so Ray gets a fixed number.
    ray.init(
        address="local",
        num_cpus=STORAGE_UNITS + 1,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 << 20,
        _temp_dir=temporary,
    )
    simple = {"num_data_storage_units": STORAGE_UNITS}
    transfer_queue.init(
        OmegaConf.create({"backend": {"storage_backend": "SimpleStorage", "SimpleStorage": simple}})
    )
    peer = Peer(transfer_queue.get_client())
    loop = asyncio.new_event_loop()

    def answer(value: dict) -> None:
        print(json.dumps(value), file=answers, flush=True)

    packages = ["transferqueue", "ray", "torch", "pyzmq"]
    versions = [f"python {sys.version.split()[0]}"] + [
        f"{package} {version(package)}" for package in packages
    ]
    answer({"versions": ", ".join(versions)})
    while (line := commands.get()) is not None:
        command = json.loads(line)
        try:
            do = {
                "large": peer.large,
                "small": peer.small,
                "small_takes": peer.small_takes,
                "memory": peer.memory,
            }
            answer(loop.run_until_complete(do[command.pop("do")](**command)))
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})
            raise


def main() -> None:
    # Ray and its children also write to standard output. It is redirected to standard error, which is the
    # log, and the answers go to a copy of the original standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    commands = queue.SimpleQueue()
    threading.Thread(target=read, args=[commands], daemon=True).start()
    try:
        serve(commands, answers, sys.argv[1])
    finally:
        transfer_queue.close()
        ray.shutdown()


if __name__ == "__main__":
    main()
