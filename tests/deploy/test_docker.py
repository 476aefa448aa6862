"""The Dockerfile names things that exist, as far as that can be seen without building it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from paceline.runtime.known_models import KNOWN_MODELS


@pytest.fixture(scope="module")
def dockerfile(root: Path) -> str:
    return (root / "deploy/docker/Dockerfile").read_text()


@pytest.fixture(scope="module")
def project(root: Path) -> Any:
    return tomllib.loads((root / "pyproject.toml").read_text())


def test_copied_paths_exist_and_are_sent_to_the_builder(dockerfile: str, root: Path) -> None:
    ignored = (root / ".dockerignore").read_text().splitlines()
    sources = [word for line in re.findall(r"^COPY (.+)$", dockerfile, re.M) for word in line.split()[:-1]]
    assert sources
    for source in sources:
        assert (root / source).exists(), source
        assert f"!{source}" in ignored, f"{source} is kept from the builder by .dockerignore"


def test_what_the_build_backend_reads_is_copied(dockerfile: str, project: Any) -> None:
    copied = set(" ".join(re.findall(r"^COPY (.+)$", dockerfile, re.M)).split())
    needed = {project["project"]["readme"], *project["project"]["license-files"], "pyproject.toml"}
    needed |= {package.split("/")[0] for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    assert needed <= copied


def test_python_is_one_that_the_package_takes(dockerfile: str, project: Any) -> None:
    found = re.search(r"ARG BASE=python:(\d+)\.(\d+)-slim", dockerfile)
    assert found is not None
    assert (int(found[1]), int(found[2])) >= (3, 11)
    assert project["project"]["requires-python"] == ">=3.11"


def test_extras_exist(dockerfile: str, project: Any) -> None:
    extras = [name for group in re.findall(r'pip install "\.\[(.+?)\]"', dockerfile) for name in group.split(",")]
    assert extras == ["serve"]
    assert set(extras) <= set(project["project"]["optional-dependencies"])


def test_torch_is_the_one_that_is_tested(dockerfile: str, root: Path) -> None:
    pin = re.search(r"torch==[\d.]+", (root / "Makefile").read_text())
    assert pin is not None
    assert pin[0] in dockerfile


def test_model_in_the_image_is_known(dockerfile: str) -> None:
    found = re.search(r"^ARG MODEL=(\S+)$", dockerfile, re.M)
    assert found is not None
    assert found[1] in KNOWN_MODELS


def test_image_does_not_run_as_root(dockerfile: str, root: Path) -> None:
    assert re.search(r"useradd .*--uid 1000 ray", dockerfile)
    assert dockerfile.index("USER ray") < dockerfile.index("paceline models fetch")
    assert "runAsUser: 1000" in (root / "deploy/kuberay/base/rayservice.yaml").read_text()
