"""What a process that starts does not import: each of torch and transformers takes seconds of CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.runtime.tokenizer import load_tokenizer
from support.tiny import byte_level_tokenizer, save_tokenizer, tiny_model

HEAVY = "\nimport sys; print(sorted({'torch', 'transformers'} & set(sys.modules)))"


def printed(code: str, *arguments: str) -> list[str]:
    """Lines that a process of its own prints, with what it has imported as the last one."""
    done = subprocess.run([sys.executable, "-c", code + HEAVY, *arguments], capture_output=True, text=True, check=True)
    assert "PyTorch" not in done.stderr, "whoever reads the log should not look for a missing torch"
    return done.stdout.splitlines()


GATEWAY = """
import asyncio, sys
from paceline.gateway.config import GatewayConfig, ListenerConfig
from paceline.gateway.deployment import GatewayReplica
async def start():
    replica = object.__new__(GatewayReplica)
    await replica.__init__(GatewayConfig(model=sys.argv[1], listener=ListenerConfig()), 1, 0.0, None)
    tokenizer = replica._servicer._tokenizer
    print(tokenizer.fingerprint, tokenizer.encode("Three rivers"))
    await replica.__del__()
asyncio.run(start())
"""


def test_a_gateway_has_its_tokenizer_without_torch(tmp_path: Path) -> None:
    folder = save_tokenizer(tiny_model(tmp_path, vocab=320), byte_level_tokenizer(300))
    with_torch = load_tokenizer(folder)
    shown, imported = printed(GATEWAY, str(folder))
    assert shown == f"{with_torch.fingerprint} {with_torch.encode('Three rivers')}"
    assert imported == "['transformers']"


TORCH_AFTERWARDS = """
from paceline.runtime.without_torch import import_without_torch
import_without_torch()
import torch
print(torch.zeros(2).tolist())
"""


def test_other_code_of_the_process_may_have_torch() -> None:
    assert printed(TORCH_AFTERWARDS) == ["[0.0, 0.0]", "['torch', 'transformers']"]


TORCH_BEFORE = """
import torch
from paceline.runtime.without_torch import import_without_torch
import_without_torch()
from transformers.utils import is_torch_available
print(is_torch_available())
"""


def test_where_torch_is_loaded_models_can_be_had() -> None:
    assert printed(TORCH_BEFORE) == ["True", "['torch', 'transformers']"]


SUFFIX_DRAFTER = """
import asyncio
from paceline.drafter.config import DrafterConfig
from paceline.drafter.server import DrafterServer
async def start():
    server = DrafterServer(DrafterConfig(proposer="suffix"))
    await server.start()
    await server.stop(0)
asyncio.run(start())
"""


def test_a_drafter_without_a_model_imports_no_transformers() -> None:
    assert printed(SUFFIX_DRAFTER) == ["['torch']"]


CHECKED = """
from paceline.app_config import parse
from paceline.cli.preflight import check_models
check_models(parse({}))
"""


@pytest.mark.model
def test_the_packages_own_drafter_is_known_to_fit_its_target() -> None:
    assert printed(CHECKED) == ["[]"]
