"""Policy versions: a trainer announces a version to a run, and the run updates its servers."""

from __future__ import annotations

import json
import operator
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rolldock.errors import NotYet, PolicyError

if TYPE_CHECKING:
    from collections.abc import Callable
    from urllib.error import HTTPError

#: The longest wait of one request, in seconds. A longer wait is divided into several requests.
_WAIT_MAX_S = 600.0
#: The longest wait of one request of `AsyncPolicy`, in seconds: a cancelled call does not stop its request.
_ASYNC_WAIT_MAX_S = 1.0
#: How long a request may take in addition to its wait, in seconds.
_TIMEOUT_S = 60.0


class Policy:
    """The policy of a run, at the address of its recipe's `policy.listen`.

    Args:
        url: `http://HOST:PORT`.
        token: the recipe's `policy.token`. By default the environment's `ROLLDOCK_POLICY_TOKEN`.
    """

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self._url = url.rstrip("/") + "/v1/policy"
        self._token = token if token is not None else os.environ.get("ROLLDOCK_POLICY_TOKEN")

    def status(self) -> dict[str, Any]:
        """Returns the state of the listener: the servers' `version`, the newest `announced` version, the
        update's `state` and `phase`, the servers that are `behind`, the `failure` of the last update, and the
        recipe's `mode` and `max_staleness`."""
        return self._call("")

    def announce_version(
        self, version: int, *, path: str | None = None, label: str | None = None, payload: Any = None
    ) -> dict[str, Any]:
        """Announces a version. The newest announcement may be repeated: this changes nothing, except that a
        failed update is tried again.

        Args:
            version: greater than every earlier version, or the newest version in a repetition.
            path: where the servers read the weights.
            label: the version's name in the servers' answers. It must end in the version number, which is
                the default label.
            payload: further data that the update needs, as JSON.

        Returns:
            The state, as `status` returns it.

        Raises:
            PolicyError: `code` is `not_newer`, `differs`, `bad_label` or another of the listener's codes, or
                `unreachable` if no answer came. The listener may have received the call all the same.
        """
        optional = {"path": path, "label": label, "payload": payload}
        given = {name: value for name, value in optional.items() if value is not None}
        return self._call("/announce", {"version": version, **given})

    def wait_version(self, version: int, *, wait_s: float = 600.0) -> dict[str, Any]:
        """Waits until the servers have `version` or a later one.

        Args:
            version: the number of a version that is announced, or is still to be announced.
            wait_s: how long to wait, in seconds.

        Returns:
            The state, as `status` returns it.

        Raises:
            NotYet: the servers did not get the version in time. `NotYet` is a `TimeoutError`.
            PolicyError: the call failed for another reason. `code` is `ended` if the run has ended.
        """
        left = wait_s
        while left > _WAIT_MAX_S:
            left -= _WAIT_MAX_S
            with suppress(NotYet):
                return self._wait(version, _WAIT_MAX_S)
        return self._wait(version, left)

    def _wait(self, version: int, wait_s: float) -> dict[str, Any]:
        return self._call(f"/wait?version={version}&timeout_s={wait_s}", timeout_s=wait_s + _TIMEOUT_S)

    def _call(self, path: str, body: Any = None, timeout_s: float = _TIMEOUT_S) -> dict[str, Any]:
        # Imported here, because `urllib.request` takes as long to import as the rest of this package.
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import Request, urlopen

        data = None if body is None else json.dumps(body, default=operator.index).encode()
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            with urlopen(Request(self._url + path, data, headers), timeout=timeout_s) as answer:
                status, text = answer.status, answer.read()
        except HTTPError as error:
            raise _error(error) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or str(error) or type(error).__name__
            raise PolicyError(f"no answer from {self._url}: {reason}", "unreachable") from error
        try:
            state: dict[str, Any] = json.loads(text)
        except ValueError:
            raise _unexpected(status, text) from None
        return state


class AsyncPolicy:
    """`Policy` for asyncio. Its requests run in the threads of the event loop's default executor. Cancelling
    a call does not stop its request, and the program cannot exit before the request ends. A request of
    `wait_version` takes at most one second."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self._policy = Policy(url, token=token)

    async def status(self) -> dict[str, Any]:
        """As `Policy.status`."""
        return await _in_thread(self._policy.status)

    async def announce_version(
        self, version: int, *, path: str | None = None, label: str | None = None, payload: Any = None
    ) -> dict[str, Any]:
        """As `Policy.announce_version`."""
        announce = self._policy.announce_version
        return await _in_thread(lambda: announce(version, path=path, label=label, payload=payload))

    async def wait_version(self, version: int, *, wait_s: float = 600.0) -> dict[str, Any]:
        """As `Policy.wait_version`."""
        wait, left = self._policy.wait_version, wait_s
        while left > _ASYNC_WAIT_MAX_S:
            left -= _ASYNC_WAIT_MAX_S
            with suppress(NotYet):
                return await _in_thread(lambda: wait(version, wait_s=_ASYNC_WAIT_MAX_S))
        return await _in_thread(lambda: wait(version, wait_s=left))


async def _in_thread(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    import asyncio

    return await asyncio.to_thread(call)


def _error(error: HTTPError) -> PolicyError:
    text = error.read()
    try:
        details = json.loads(text)["error"]
        code, message = details["code"], details["message"]
    except (ValueError, KeyError, TypeError):
        return _unexpected(error.code, text)
    kind = NotYet if code == "not_yet" else PolicyError
    return kind(message, code, details)


def _unexpected(status: int, text: bytes) -> PolicyError:
    start = text[:200].decode(errors="replace")
    return PolicyError(f"expected an answer of a policy listener, found status {status}: {start}")
