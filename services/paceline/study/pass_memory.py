"""Memory that a model takes in one number format, measured in a process of its own."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass

from paceline.study.memory import own_mib, peak_mib
from paceline.study.passes import PackedSessions, PassSettings

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Memory:
    """MiB; of the GPU where the model is on one, else of the process."""

    weights_mib: float  # what loading added, KV taken off
    kv_mib: float  # of the slots that the largest pass needs
    peak_mib: float  # the most there was at any time, the libraries' own share included

    def as_dict(self) -> dict[str, float]:
        """Plain data for JSON."""
        return asdict(self)


def pass_memory(settings: PassSettings, dtype: str) -> Memory:
    """Loads the model in a new process and runs the largest pass there."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measured, settings, dtype).result()


def _measured(settings: PassSettings, dtype: str) -> Memory:
    import torch

    from paceline.runtime.models import ModelSpec
    from paceline.runtime.transformers_runner import load_runner

    torch.set_num_threads(settings.threads)
    spec = ModelSpec(str(settings.model), dtype=dtype, device=settings.device)
    before = own_mib()
    runner = load_runner(spec, settings.kv_tokens, measure_s=0)
    on_gpu = runner.info.device.startswith("cuda")
    held = torch.cuda.memory_allocated() / MIB if on_gpu else own_mib() - before
    kv = runner.kv_bytes / MIB
    sessions = PackedSessions(runner, settings)
    runner.execute(sessions.plan((max(settings.sessions), max(settings.tokens))))
    most = torch.cuda.max_memory_allocated() / MIB if on_gpu else peak_mib()
    return Memory(max(0.0, held - kv), kv, most)
