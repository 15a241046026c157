"""The base class of both clients, which connects them to their queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from rolldock import _calls, _rolldock

if TYPE_CHECKING:
    from os import PathLike

    from typing_extensions import Self

T = TypeVar("T", bound="BaseClient")


class BaseClient:
    """A client of a queue. `Client` and `AsyncClient` have its calls."""

    _queue: _rolldock.Queue

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        patience_s: float = 30.0,
        shared_memory: bool | None = None,
    ) -> None:
        self._queue = _calls.connected(url, token, patience_s, shared_memory)
        self._server: tuple[str, str | None, float, bool | None] | None = (
            url,
            token,
            patience_s,
            shared_memory,
        )

    @classmethod
    def open(
        cls, dir: str | PathLike[str] | None = None, *, durability: Literal["none", "os", "fsync"] = "fsync"
    ) -> Self:
        """Opens a queue in this process: in memory, or in a directory.

        Args:
            dir: the directory, which is created if it is absent. The queue of a run is `queue` in the run's
                directory. One process at a time can have a directory open.
            durability: what an acknowledged put survives, unless its partition declares a durability:
                nothing, the death of the process (`"os"`), or the death of the machine (`"fsync"`).

        Raises:
            InUse: another process has the directory.
        """
        client = cls.__new__(cls)
        client._queue = _rolldock.Queue.open(dir, durability)
        client._server = None
        return client

    @property
    def transport(self) -> Literal["embedded", "http", "shared_memory"] | None:
        """How calls reach the queue. `None` before the first call to a server, which chooses."""
        found: Any = self._queue.transport
        return cast("Literal['embedded', 'http', 'shared_memory'] | None", found)

    def close(self) -> None:
        """Closes an embedded queue, which makes its puts durable, or disconnects from a server. Leases stay
        as they are. Another process can open the directory of an embedded queue when the batches of this
        process are dropped too."""
        self._queue.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._server is None:
            raise TypeError(
                "an embedded queue belongs to its process; serve it, and pickle a client of its URL"
            )
        return _reopened, (type(self), *self._server)


def _reopened(of: type[T], url: str, token: str | None, patience_s: float, shared_memory: bool | None) -> T:
    return of(url, token=token, patience_s=patience_s, shared_memory=shared_memory)
