"""The settings of a loader, and the plan that divides a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rolldock._calls import Share, TakeOptions
from rolldock.torch.balance import Cost
from rolldock.torch.packing import Fields, Labels
from rolldock.torch.ranks import Ranks

if TYPE_CHECKING:
    from rolldock.client import Client
    from rolldock.columns import Array


@dataclass(frozen=True)
class Settings:
    """The settings of a loader: its takes, and the division of a batch."""

    client: Client
    partition: str
    task: str
    options: TakeOptions
    wait_s: float | None
    fields: Fields
    ranks: Ranks
    balance: Literal["tokens"] | Cost
    micro_batch_tokens: int | None = None
    prefetch: int = 0
    pin_memory: bool = False

    def take_options(self) -> TakeOptions:
        """The options of the process that takes."""
        ranks = self.ranks
        if ranks.group is not None:
            # Each rank reads its own rows later.
            return {**self.options, "columns": self.fields.of_lengths}
        options: TakeOptions = {**self.options, "columns": self.fields.names}
        if ranks.replicas > 1 or ranks.members > 1:
            options["share"] = Share(
                ranks.replica, ranks.replicas, member=ranks.member, members=ranks.members
            )
        return options


@dataclass(frozen=True)
class Totals:
    """The size of a batch over all replicas.

    Attributes:
        rows: the number of rows.
        tokens: the tokens of prompts and responses.
        loss_tokens: the number of tokens to learn from, which is the divisor of a mean over the whole batch.
    """

    rows: int
    tokens: int
    loss_tokens: int


@dataclass(frozen=True)
class Part:
    """The rows of a replica: their indices in the batch, and their labels."""

    places: Array
    labels: Labels


@dataclass(frozen=True)
class Plan:
    """How a batch is divided. It is the same on every rank.

    Attributes:
        number: the number of the batch, from 1.
        parts: the rows of each replica. A process without a process group has one part.
        micro_batches: the number of micro-batches of each replica.
        totals: the size of the batch.
        first: the handle of a row from which a rank without rows reads the types of the columns.
    """

    number: int
    parts: list[Part]
    micro_batches: int
    totals: Totals
    first: int
