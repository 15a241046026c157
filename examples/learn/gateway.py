"""The gateway of a learning run: `rolldock gateway` in front of a server, with a queue for the trainer."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from processes import Process, free_port, rolldock_binary

#: How long the gateway may take to start on a busy machine, and to answer a control call, in seconds.
START_S_MAX = 60.0
ANSWER_S_MAX = 60.0


@dataclass(frozen=True)
class Trajectory:
    """A trajectory that takes the calls of an agent.

    Attributes:
        name: its name in control calls.
        base_url: the only thing that its agent knows.
    """

    name: str
    base_url: str


class Gateway:
    """A gateway with a queue of its own, and its control calls.

    Args:
        engine_url: the server.
        tokenizer: the folder of the model's tokenizer and chat template.
        folder: where its log, its trajectories and its queue are.
    """

    def __init__(self, engine_url: str, tokenizer: Path, folder: Path) -> None:
        listen, queue = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.url, self.queue_url = f"http://{listen}", f"http://{queue}"
        command = [rolldock_binary(), "gateway", "--endpoint", engine_url, "--tokenizer", str(tokenizer)]
        command += ["--listen", listen, "--queue-listen", queue, "--out", str(folder / "gateway")]
        command += ["--durability", "os", "--no-progress"]
        self._process = Process("gateway", command, folder)

    def __enter__(self) -> Gateway:
        self._process.start()
        end = time.monotonic() + START_S_MAX
        try:
            while True:
                with contextlib.suppress(OSError):
                    self._call("/trajectories")
                    return self
                self._process.has_ended()
                if time.monotonic() > end:
                    raise SystemExit(f"no gateway after {START_S_MAX:.0f} s:\n{self._process.log_end()}")
                time.sleep(0.1)
        except BaseException:
            self._process.kill()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()

    def open(self, group: str, size: int, prompt: str) -> Trajectory:
        """Makes a trajectory of a group."""
        made = self._call("/trajectories", {"group": group, "group_size": size, "prompt": prompt})
        return Trajectory(made["trajectory"], made["base_url"])

    def complete(self, trajectory: Trajectory, reward: float) -> None:
        """Ends a trajectory. When all trajectories of its group have ended, the group goes into the queue."""
        self._call(f"/trajectories/{trajectory.name}/complete", {"reward": reward})

    def _call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(self.url + path, data, ANSWER_S_MAX) as answer:
            return json.load(answer)
