"""The configuration of `init`."""

from __future__ import annotations

import logging
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rolldock.transfer_queue import sampler as samplers
from rolldock.transfer_queue.sampler import BaseSampler

logger = logging.getLogger(__name__)

_DEFAULTS: dict[str, Any] = {
    # Whether get_metrics_endpoint returns the address of the server's metrics; otherwise it returns None.
    "metrics": {"enabled": False},
    "controller": {
        # The name of a sampler, its class, or an object.
        "sampler": "SequentialSampler",
        # Whether get_meta returns an empty batch when too few samples are ready.
        "polling_mode": False,
        # The host where the controller listens for other processes. Not used if init starts the server.
        "host": "127.0.0.1",
    },
    "backend": {
        "storage_backend": "SimpleStorage",
        # The most samples; no limit by default.
        "SimpleStorage": {"total_storage_size": None},
    },
    "rolldock": {
        # The queue's server. By default ROLLDOCK_TRANSFER_QUEUE names it, or else init starts it.
        "url": None,
        # Its bearer token.
        "token": None,
        # The HTTP address of the queue's server, for checkpoints and metrics, if url is a socket.
        "http": None,
        # The directory of the queue in the server that init starts. By default the queue is in memory.
        "dir": None,
    },
}


def merged(conf: Any) -> DictConfig:
    """Returns a configuration with the defaults."""
    flags = {"allow_objects": True}
    given = conf if isinstance(conf, DictConfig) else OmegaConf.create(conf or {}, flags=flags)
    whole = OmegaConf.merge(OmegaConf.create(_DEFAULTS, flags=flags), given)
    assert isinstance(whole, DictConfig)
    if whole.backend.storage_backend != "SimpleStorage":
        logger.warning(
            "storage_backend=%s is not used: Rolldock's queue has the data", whole.backend.storage_backend
        )
    if whole.rolldock.url and whole.rolldock.url.startswith("http"):
        whole.rolldock.http = whole.rolldock.url
    return whole


def sampler_of(config: DictConfig) -> BaseSampler:
    """Returns the sampler of a configuration.

    Raises:
        ValueError: there is no such sampler.
    """
    given = config.controller.sampler
    names = [name for name in samplers.__all__ if name != "BaseSampler"]
    if isinstance(given, str):
        given = getattr(samplers, given) if given in names else None
    if isinstance(given, type) and issubclass(given, BaseSampler):
        given = given()
    if not isinstance(given, BaseSampler):
        raise ValueError(
            f"Could not find sampler {config.controller.sampler} of controller.sampler: expected one of "
            f"{names}, a subclass of BaseSampler, or an object of such a class"
        )
    return given
