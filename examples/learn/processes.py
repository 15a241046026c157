"""The processes of a learning run. Each process has a log, and a process group that is killed together with
the process."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

#: How long a server may take to start on a busy machine, in seconds.
START_S_MAX = 300.0
#: The ports of servers. The system gives ports of 32768 and above to outgoing connections, so such a port may
#: be taken before its server has started.
PORTS = range(20_000, 32_000)


def free_port() -> int:
    """Returns a port that is free now, and that the system gives to no outgoing connection."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def rolldock_binary() -> str:
    """Returns the `rolldock` command from `ROLLDOCK_BINARY`, from this environment, or from `PATH`."""
    beside = Path(sys.executable).with_name("rolldock")
    found = os.environ.get("ROLLDOCK_BINARY") or (
        str(beside) if beside.exists() else shutil.which("rolldock")
    )
    if not found:
        raise SystemExit("expected the command rolldock in the path; install the wheel")
    return found


class Process:
    """A command that can be killed and started again."""

    def __init__(
        self, name: str, command: list[str], folder: Path, environment: dict[str, str] | None = None
    ) -> None:
        self._name, self._command = name, command
        self.log = folder / f"{name}.log"
        self._environment = {**os.environ, **(environment or {})}
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the command. Its output is appended to its log."""
        with self.log.open("ab") as log:
            self._running = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Sends SIGKILL to the command and its children. The command may have ended before."""
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()

    def has_ended(self) -> bool:
        """Whether the command has ended with success.

        Raises:
            SystemExit: the command has failed. The end of its log is printed.
        """
        status = None if self._running is None else self._running.poll()
        if status:
            raise SystemExit(f"{self._name} ended with status {status}:\n{self.log_end()}")
        return status == 0

    def log_end(self) -> str:
        """The last lines of the log."""
        lines = self.log.read_text(errors="replace").splitlines()[-30:]
        return "\n".join([*lines, f"The whole log is {self.log}."])


class Engine:
    """A vLLM server on the CPU. Its model is in float32, so its log-probabilities equal those of torch.

    Args:
        model: the folder of the model that it starts with.
        folder: where its log is.
        name: the model's name at the server.
        tokenizer: the folder of a tokenizer with a chat template, for requests with messages. Without one,
            all prompts are token ids.
    """

    def __init__(
        self, model: Path, folder: Path, *, name: str = "adder", tokenizer: Path | None = None
    ) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        vllm = Path(sys.executable).with_name("vllm")
        if not vllm.exists():
            raise SystemExit(f"expected the command {vllm}; install vLLM in this environment")
        self.process = Process(
            "engine",
            [
                *(str(vllm), "serve", str(model), "--served-model-name", name),
                *("--host", "127.0.0.1", "--port", str(port), "--enable-scale-out", "--dtype", "float32"),
                *(["--tokenizer", str(tokenizer)] if tokenizer else ["--skip-tokenizer-init"]),
                *("--generation-config", "vllm", "--max-model-len", "128"),
                *("--max-num-seqs", "256", "--max-num-batched-tokens", "16384"),
                *("--no-enable-chunked-prefill", "--enforce-eager"),
            ],
            folder,
            {
                # This enables the endpoints for weights, pauses and labels.
                "VLLM_SERVER_DEV_MODE": "1",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_HOST_IP": "127.0.0.1",
                "VLLM_NO_USAGE_STATS": "1",
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
                "CUDA_VISIBLE_DEVICES": "",
            },
        )

    def __enter__(self) -> Engine:
        began = time.monotonic()
        self.process.start()
        try:
            while not self._is_healthy():
                self.process.has_ended()
                if time.monotonic() - began > START_S_MAX:
                    raise SystemExit(f"no server after {START_S_MAX:.0f} s:\n{self.process.log_end()}")
                time.sleep(0.5)
        except BaseException:
            self.process.kill()
            raise
        print(f"vLLM serves {self.url} after {time.monotonic() - began:.0f} s", flush=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()

    def load(self, model: Path, *, version: int = 0) -> None:
        """Loads other weights into the server. The weights with which a new run begins are version 0."""
        self._post("/pause?mode=abort", {})
        arguments = {"weights_path": str(model)}
        self._post("/collective_rpc", {"method": "reload_weights", "kwargs": arguments, "timeout": 60})
        self._post("/reset_prefix_cache", {})
        self._post("/update_weight_version", {"new_version": str(version)})
        self._post("/resume", {})

    def _post(self, path: str, body: dict[str, object]) -> None:
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        urllib.request.urlopen(request, timeout=120).close()

    def _is_healthy(self) -> bool:
        try:
            urllib.request.urlopen(self.url + "/health", timeout=5).close()
        except (urllib.error.URLError, OSError):
            return False
        return True
