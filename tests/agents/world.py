"""Starts an engine and a relay, then a queue and a gateway, and talks to the gateway as the owner of its agents does."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

from relay import Relay

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "queue/examples"))
from client import Queue, Refused  # noqa: E402

PARTITION = "train"
DEADLINE_S = 300


def tokenizer(folder):
    """The built-in tokenizer, but the end of a turn is also the end of a sequence, as in chat models."""
    folder.mkdir()
    source = ROOT / "data/tokenizer"
    shutil.copy(source / "tokenizer.json", folder)
    config = json.loads((source / "tokenizer_config.json").read_text())
    config["eos_token"] = "<|im_end|>"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


class Process:
    """A server that prints its address when it listens."""

    def __init__(self, folder, name, words, pattern):
        self.log = folder / f"{name}.log"
        with open(self.log, "a") as log:
            start = log.tell()
            self.process = subprocess.Popen(list(map(str, words)), stdout=log, stderr=log)
        give_up = time.monotonic() + DEADLINE_S
        while True:
            with open(self.log) as log:
                log.seek(start)
                found = re.search(pattern, log.read())
            if found:
                self.url = found.group(1)
                return
            code = self.process.poll()
            late = time.monotonic() > give_up
            assert code is None and not late, f"{name} does not listen, code={code}: {self.log.read_text()}"
            time.sleep(0.02)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


class Engine:
    """An engine behind a relay. Both run until the `with` block ends."""

    def __init__(
        self,
        binary,
        folder,
        script=None,
        engine_url=None,
        model="simulated",
        tokenizer_folder=None,
        time_scale=0.02,
    ):
        self.binary, self.folder, self.model = binary, folder, model
        folder.mkdir(parents=True)
        self.tokenizer = tokenizer_folder or tokenizer(folder / "tokenizer")
        self.time_scale = time_scale
        self.script = folder / "script.json"
        self.engine = None
        if engine_url is None:
            self.script.write_text(json.dumps(script))
            self.start_engine(port=0)
            engine_url = self.engine.url
        self.relay = Relay(*self.address(engine_url), tames=script is None)

    @staticmethod
    def address(url):
        host, port = url.removeprefix("http://").rstrip("/").split(":")
        return host, int(port)

    def start_engine(self, port):
        words = ["simengine", "--ports", port, "--tokenizer", self.tokenizer, "--script", self.script]
        words += ["--time-scale", self.time_scale]
        self.engine = Process(self.folder, "engine", [self.binary, *words], r"(http://[\w.:]+) serves")

    def restart_engine(self):
        """Kills the engine, and starts it at the same address."""
        _, port = self.address(self.engine.url)
        self.engine.kill()
        self.start_engine(port)

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        if self.engine:
            self.engine.stop()
        self.relay.close()


class World(Engine):
    """An engine, a queue and a gateway."""

    def __init__(self, binary, folder, **options):
        super().__init__(binary, folder, **options)
        words = ["queue", "serve", "--listen", "127.0.0.1:0"]
        self.queue_process = Process(folder, "queue", [binary, *words], r"serving a queue at (http://[\w.:]+)")
        self.queue = Queue(self.queue_process.url)
        self.gateway = None
        self.start_gateway()

    def start_gateway(self):
        port = self.address(self.gateway.url)[1] if self.gateway else 0
        words = ["gateway", "--listen", f"127.0.0.1:{port}", "--endpoint", self.relay.url]
        words += ["--tokenizer", self.tokenizer, "--queue", self.queue_process.url, "--out", self.folder / "gateway"]
        self.gateway = Process(self.folder, "gateway", [self.binary, *words], r"(http://[\w.:]+) serves agents")

    def restart_gateway(self):
        self.gateway.kill()
        self.start_gateway()

    def __exit__(self, *error):
        for process in (self.gateway, self.queue_process):
            process.stop()
        super().__exit__(*error)

    def control(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.gateway.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from error

    def open(self, **options):
        return self.control("POST", "/trajectories", options)

    def complete(self, made, reward=1.0):
        return self.control("POST", f"/trajectories/{made['trajectory']}/complete", {"reward": reward})

    def environment(self, made, **more):
        """The environment of an agent's process."""
        base = made["anthropic_base_url"]
        return {**os.environ, "AGENT_BASE_URL": base, "AGENT_MODEL": self.model, **more}

    def rows(self, trajectories):
        """Takes the rows of all groups until each of these trajectories has rows. They are put group by group."""
        wanted = {made["trajectory"] for made in trajectories}
        rows = []
        give_up = time.monotonic() + DEADLINE_S
        while {row["trajectory_uid"] for row in rows} < wanted:
            assert time.monotonic() < give_up, f"only rows of {len(rows)} came, expected {wanted}"
            try:
                lease, table = self.queue.take(PARTITION, task="train", groups=1, wait_ms=5_000)
            except Refused as error:
                assert error.status == 408, error
                continue
            assert lease, "the queue has ended"
            rows += table.to_pylist()
            self.queue.lease(PARTITION, lease, "ack")
        return rows
