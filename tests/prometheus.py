"""Lets Prometheus scrape a run and a served queue. Checks that Prometheus has each metric of those sections of
docs/src/metrics.md that SECTIONS names, and that each of these metrics, except those in RARE, has had a value other
than 0. The argument is the binary."""

import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from ports import free_port

ROLLDOCK = sys.argv[1]
# The longest time until all metrics have changed.
MOVED_MAX_S = 300
# Servers die in turns, DEATHS_APART_S apart, and start again, until a step has ended in which requests were sent again.
# A server answers nothing for STOPPED_S before it dies, so that it probably has requests then. On a busy machine the
# run may be silent and have cancelled them, so one death is not always enough.
VICTIMS = 2
DEATHS_APART_S = 8
STOPPED_S = 0.4
# Counters of rare faults, and of samples that leave slow servers or are copied. They exist and stay 0 here.
RARE = {
    "rolldock_aborts_dropped_total",
    "rolldock_engines_recovered_total",
    "rolldock_hedges_total",
    "rolldock_moved_tokens_total",
    "rolldock_moves_total",
    "rolldock_weight_update_failures_total",
}
SECTIONS = {
    "run": ["The run", "The fleet", "Weight updates", "The queue", "Connections"],
    "queue": ["The queue", "Connections"],
}
processes = []


def documented(sections):
    page = Path("docs/src/metrics.md").read_text()
    tables = re.split(r"^## ", page, flags=re.M)
    tables = [table for table in tables if table.split("\n", 1)[0] in sections]
    return set(re.findall(r"^\| `(rolldock_\w+)` \|", "\n".join(tables), flags=re.M))


def start(*command, log=None):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log or subprocess.DEVNULL, text=True)
    processes.append(process)
    return process


def line_of(process, words):
    for line in process.stdout:
        if words in line:
            return line
    raise SystemExit(f"{process.args} ended without printing {words!r}")


def call(url, body=None, token=None):
    headers = {"content-type": "application/json"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    data = json.dumps(body).encode() if body is not None else None
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=10) as answer:
        return answer.read()


def sets(*settings):
    return [word for setting in settings for word in ("--set", setting)]


SMALL = sets(
    "rollout.train_batch_size=4",
    "rollout.gen_batch_size=8",
    "rollout.max_gen_batches=1000",
    "rollout.samples_per_prompt=4",
    "rollout.max_response_length=256",
    "validation.every_steps=1000000",
)


def start_server(port=0):
    """Starts a server on a port; 0 is any free port. Returns the server and its URL."""
    flags = ["--time-scale", "0.1", "--data", "data/arithmetic/train.jsonl", "--mean-response-length", "40"]
    server = start(ROLLDOCK, "simengine", "--ports", str(port), *flags)
    return server, line_of(server, " serves ").split(" ")[0]


def start_run(folder):
    """Starts a run. Returns its URL, the run, and the servers that the test kills. One more server runs."""
    servers = [start_server() for _ in range(1 + VICTIMS)]
    run = start(
        *(ROLLDOCK, "run", "recipes/quickstart.toml", "--steps", "100000", "--out", f"{folder}/run"),
        *(word for _, url in servers for word in ("--endpoint", url)),
        *SMALL,
        *sets(
            "fleet.max_loads_per_server=6",
            "fleet.probe_interval=0.05",
            'queue.consumer={task="train",take_groups=4,keep_last_steps=0,train_s=0.05,announces=true}',
            "policy.mode=fully_async",
            "policy.update.method=command",
            'policy.update.command=["true"]',
            "timeouts.silence=0.04",
            "run.on_silence=cancel_and_requeue",
            "limits.connections.head_timeout=0.2",
        ),
    )
    return line_of(run, "metrics at ").split("metrics at ")[1].split("/metrics")[0], run, servers[1:]


def restart_with_its_requests(server, url):
    """Kills a server while it has requests. Returns the server that takes its place."""
    server.send_signal(signal.SIGSTOP)
    time.sleep(STOPPED_S)
    server.kill()
    server.wait()
    return start_server(urllib.parse.urlsplit(url).port)


def start_queue(folder):
    """Serves the queue of a run that has ended, with freed rows and leased rows."""
    done = [ROLLDOCK, "run", "recipes/quickstart.toml", "--steps", "2", "--out", f"{folder}/done"]
    settings = sets("fleet.simulated.time_scale=0.002", "fleet.simulated.mean_response_length=40")
    subprocess.run([*done, *SMALL, *settings], check=True, capture_output=True)
    serve = (ROLLDOCK, "queue", "serve", "--dir", f"{folder}/done", "--listen", "127.0.0.1:0", "--token", "secret")
    limits = ("--unauthenticated-max", "4", "--head-timeout", "0.2")
    url = line_of(start(*serve, *limits), "serving a queue").split(" at ")[1].split(",")[0]
    call(f"{url}/v1/partitions/train/version", {"policy_version": 3}, "secret")
    call(f"{url}/v1/partitions/train/take", {"task": "train", "groups": 1}, "secret")
    return url


def crowd(url):
    """Opens 20 connections, more than the served queue accepts, and sends nothing on them."""
    address = urllib.parse.urlsplit(url)
    return [socket.create_connection((address.hostname, address.port)) for _ in range(20)]


def start_prometheus(folder, targets):
    port = free_port()
    jobs = []
    for job, url in targets.items():
        address = urllib.parse.urlsplit(url).netloc
        jobs.append(f"  - job_name: {job}\n    static_configs: [{{ targets: ['{address}'] }}]")
    jobs[-1] += "\n    authorization: { credentials: secret }"
    config = Path(folder, "prometheus.yml")
    timing = "global: { scrape_interval: 200ms, scrape_timeout: 200ms }"
    config.write_text(f"{timing}\nscrape_configs:\n" + "\n".join(jobs) + "\n")
    log = open(Path(folder, "prometheus.log"), "w")
    start(
        *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb"),
        f"--web.listen-address=127.0.0.1:{port}",
        log=log,
    )
    return f"http://127.0.0.1:{port}"


def query(prometheus, words):
    path = "/api/v1/query?" + urllib.parse.urlencode({"query": words})
    answer = json.loads(call(prometheus + path))
    assert answer["status"] == "success", answer
    return answer["data"]["result"]


def found(prometheus, job):
    """The names of a job's metrics in Prometheus, and the names of the metrics with a value other than 0."""
    series = query(prometheus, f'{{__name__=~"rolldock_.*",job="{job}"}}[2m]')
    there, moved = set(), set()
    for one in series:
        name = one["metric"]["__name__"]
        there |= {name, name.removesuffix("_count")}
        if any(float(value) for _, value in one["values"]):
            moved |= {name, name.removesuffix("_count")}
    return there, moved


def up_jobs(prometheus):
    """The jobs whose last scrape succeeded."""
    return {one["metric"]["job"] for one in query(prometheus, "up") if one["value"][1] == "1"}


def check(folder):
    queue = start_queue(folder)
    run_url, run, victims = start_run(folder)
    targets = {"run": run_url, "queue": queue}
    prometheus = start_prometheus(folder, targets)
    held = crowd(run_url) + crowd(queue)
    wanted = {job: documented(sections) for job, sections in SECTIONS.items()}
    assert len(wanted["run"]) > 50 and len(wanted["queue"]) > 10, wanted
    line_of(run, "target reached")
    # If the output is not read, the run waits for space in the pipe.
    threading.Thread(target=run.stdout.read, daemon=True).start()
    missing, next_death = None, 0
    until = time.monotonic() + MOVED_MAX_S
    while time.monotonic() < until:
        time.sleep(0.5)
        is_retried = missing and "rolldock_retries_total" not in missing["run"]
        if not is_retried and time.monotonic() >= next_death:
            victims.append(restart_with_its_requests(*victims.pop(0)))
            next_death = time.monotonic() + DEATHS_APART_S
        try:
            seen = {job: found(prometheus, job) for job in targets}
        except urllib.error.URLError:
            continue
        missing = {job: sorted(wanted[job] - RARE - moved) for job, (_, moved) in seen.items()}
        missing |= {f"{job}, absent": sorted(wanted[job] - there) for job, (there, _) in seen.items()}
        # On a busy machine a scrape can take longer than its time-out, so a failed scrape is not yet an error.
        missing["targets that are down"] = sorted(set(targets) - up_jobs(prometheus))
        if not any(missing.values()):
            break
    assert missing is not None, "Prometheus does not answer: " + Path(folder, "prometheus.log").read_text()
    assert not any(missing.values()), f"not moved, absent or down: {missing}"
    log = Path(folder, "prometheus.log").read_text()
    assert "Error on ingesting" not in log, log
    del held
    print(f"prometheus has {len(wanted['run'])} metrics of a run and {len(wanted['queue'])} of a queue, and all moved")


with tempfile.TemporaryDirectory() as folder:
    try:
        check(folder)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
