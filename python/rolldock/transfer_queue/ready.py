"""The samples that are ready for a task, in order, kept while samples change."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

#: The maximum number of indexes of a block. A change moves at most this many indexes.
_BLOCK_MAX = 1024


class Indexes(Sequence[int]):
    """A set of indexes in ascending order. They are in blocks, so that a change does not move all of them.

    Args:
        indexes: the indexes, in any order, each once.
    """

    def __init__(self, indexes: Iterable[int] = ()) -> None:
        ordered = sorted(indexes)
        starts = range(0, len(ordered), _BLOCK_MAX)
        self._blocks: list[list[int]] = [ordered[start : start + _BLOCK_MAX] for start in starts]
        #: The greatest index of each block.
        self._last = [block[-1] for block in self._blocks]
        self._size = len(ordered)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._blocks)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            start, stop, step = place.indices(self._size)
            if 0 <= start <= stop and step > 0:
                return list(islice(self, start, stop, step))
            return list(self)[place]
        if not -self._size <= place < self._size:
            raise IndexError(f"place {place} of {self._size} indexes")
        return next(islice(self, place % self._size, None))

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and self._found(index) is not None

    def __repr__(self) -> str:
        return f"Indexes(size={self._size})"

    def _found(self, index: int) -> tuple[int, int] | None:
        """Returns the block of an index and its position in the block; `None` if it is not in the set."""
        number = bisect_left(self._last, index)
        if number == len(self._blocks):
            return None
        place = bisect_left(self._blocks[number], index)
        return (number, place) if self._blocks[number][place] == index else None

    def add(self, index: int) -> None:
        """Adds an index. Nothing changes if it is in the set."""
        if index in self:
            return
        self._size += 1
        if not self._blocks:
            self._blocks, self._last = [[index]], [index]
            return
        number = min(bisect_left(self._last, index), len(self._blocks) - 1)
        block = self._blocks[number]
        insort(block, index)
        if len(block) > _BLOCK_MAX:
            half = len(block) // 2
            self._blocks[number : number + 1] = [block[:half], block[half:]]
            self._last[number : number + 1] = [block[half - 1], block[-1]]
        else:
            self._last[number] = block[-1]

    def discard(self, index: int) -> None:
        """Removes an index. Nothing changes if it is not in the set."""
        found = self._found(index)
        if found is None:
            return
        number, place = found
        block = self._blocks[number]
        del block[place]
        self._size -= 1
        if block:
            self._last[number] = block[-1]
        else:
            del self._blocks[number], self._last[number]
