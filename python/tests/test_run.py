"""A trainer of a real run: it takes steps from the run's queue and announces versions to its policy."""

from __future__ import annotations

import asyncio
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from conftest import PATIENCE_S

from rolldock import AsyncPolicy, Client, Policy, errors


def test_a_trainer_takes_steps_and_announces_versions(run: tuple[str, str]) -> None:
    queue, address = run
    policy, version, rows = Policy(address), 0, 0
    client = Client(queue, patience_s=PATIENCE_S)
    for batch in client.batches(groups=4, at_least=4):
        with batch:
            rows += len(batch)
            assert set(batch.policy_versions.tolist()) == {version}
            assert batch["response_ids"].lengths.tolist() == batch["rollout_logprobs"].lengths.tolist()
        version += 1
        policy.announce_version(version, label=f"step-{version}")
        if version == 1:
            assert policy.wait_version(version, wait_s=PATIENCE_S)["version"] == 1
            versions_are_ordered(policy)
    assert (version, rows) == (3, 3 * 4 * 8)


def versions_are_ordered(policy: Policy) -> None:
    with pytest.raises(errors.PolicyError) as raised:
        policy.announce_version(0)
    assert raised.value.code == "not_newer"
    assert raised.value.details["announced"] == 1
    with pytest.raises(TimeoutError) as late:
        policy.wait_version(9, wait_s=0.1)
    assert isinstance(late.value, errors.NotYet)


def test_the_policy_of_a_run_from_asyncio(run: tuple[str, str]) -> None:
    queue, address = run
    Client(queue, patience_s=PATIENCE_S).inspect()

    async def announce() -> None:
        policy = AsyncPolicy(address)
        assert (await policy.status())["announced"] == 0
        assert (await policy.announce_version(1, path="/weights/step-1"))["announced"] == 1
        with pytest.raises(errors.PolicyError, match="label") as raised:
            await policy.announce_version(2, label="without a number")
        assert raised.value.code == "bad_label"
        with pytest.raises(errors.NotYet):
            await policy.wait_version(9, wait_s=1.1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(policy.wait_version(9, wait_s=10 * PATIENCE_S), 0.1)

    started = time.monotonic()
    asyncio.run(announce())
    assert time.monotonic() - started < PATIENCE_S, "the end waited for the request of a cancelled call"


def test_no_listener_is_an_error_of_the_policy() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        address = f"http://127.0.0.1:{server.server_port}"
    for url in (address, "http://host.invalid:1"):
        with pytest.raises(errors.PolicyError, match=f"no answer from {url}/v1/policy: ") as raised:
            Policy(url).announce_version(np.int64(1))
        assert raised.value.code == "unreachable"


def test_another_server_is_no_policy_listener() -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.handle_request).start()
        with pytest.raises(errors.PolicyError, match="found status 200: <html>"):
            Policy(f"http://127.0.0.1:{server.server_port}").status()
