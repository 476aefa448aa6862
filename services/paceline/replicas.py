"""What the deployments share at the Ray edge: where a replica listens, how it computes, how one finds another."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from paceline.errors import Unavailable

log = logging.getLogger(__name__)

LEASE_TIMEOUT_S = 5.0  # a handle call waits for ever where no replica runs


class Listening(Protocol):
    """Where replicas listen: a host, or "node" for the node's own address, and a range of ports, or 0 for any."""

    host: str
    first_port: int
    last_port: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A replica that was alive when it answered."""

    address: str  # host:port of its data plane
    incarnation: str  # changes whenever the replica restarts


def listen_on(where: Listening) -> tuple[str, int]:
    """(host, port) for a replica's server on this node. Raises Unavailable if every port of the range is taken."""
    import ray

    host = ray.util.get_node_ip_address() if where.host == "node" else where.host
    if where.first_port == 0:
        return host, 0
    for port in range(where.first_port, where.last_port + 1):
        # Replicas on one node share the range; the server itself still refuses a port that is taken in between.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return host, port
    raise Unavailable(
        f"data_plane: every port from {where.first_port} to {where.last_port} is taken on {host};"
        " widen the range or run fewer replicas per node"
    )


def use_threads(count: int, service: str) -> None:
    """Sets the compute threads of this process; 0 takes one per CPU. Ray's own default follows `num_cpus`."""
    import torch

    torch.set_num_threads(count or usable_cpus())
    log.info("%s computes with %d threads", service, torch.get_num_threads())


def set_library_threads(count: int, service: str) -> None:
    """Sets the threads of what a process without torch loads later, tokenizers above all; 0 takes one per CPU."""
    threads = count or usable_cpus()
    os.environ.update(OMP_NUM_THREADS=str(threads), RAYON_NUM_THREADS=str(threads))
    log.info("%s computes with %d threads", service, threads)


def usable_cpus(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """CPUs this process may run on, and no more than its control group may use at once.

    A container with a CPU limit sees every CPU of its node; `quota` (cgroup v2: microseconds, or "max", and the period)
    has the limit. More threads than that would be stopped in every period.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # not on macOS
    try:
        used, period = quota.read_text().split()
        return cpus if used == "max" else max(1, min(cpus, int(used) // int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        return cpus


async def lease(handle: Any, service: str, timeout_s: float = LEASE_TIMEOUT_S) -> Lease:
    """Asks Ray Serve for a live replica of `service`. Raises Unavailable if none answers in time."""
    try:
        answer = await asyncio.wait_for(_call(handle), timeout_s)
    except TimeoutError:
        raise Unavailable(f"no {service} replica answered within {timeout_s:g} s") from None
    except asyncio.CancelledError:
        raise
    except Exception as error:  # Ray raises many kinds: replica died, deployment failed, back-pressure
        raise Unavailable(f"no {service} replica can be reached: {type(error).__name__}") from error
    return Lease(**answer)


async def _call(handle: Any) -> dict[str, str]:
    answer: dict[str, str] = await handle.lease.remote()
    return answer
