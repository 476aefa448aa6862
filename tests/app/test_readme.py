"""What the README promises is there, and every command it shows is run by this suite."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from app.readme import commands

# Where each kind of command is run. `make test` is what runs this.
RUN_BY = {
    "make demo": "tests/app/test_demo.py",
    "make test": ".ci/run",
    "paceline models": "tests/app/test_serve.py",
    "paceline serve": "tests/app/test_serve.py",
    "paceline generate": "tests/app/test_serve.py",
    "paceline chat": "tests/app/test_serve.py",
    "paceline status": "tests/app/test_serve.py",
    "paceline study": "tests/study/test_command.py",
}


def test_every_command_is_run_somewhere(root: Path) -> None:
    shown = {" ".join(command.split()[:2]) for command in commands()}
    assert shown == set(RUN_BY)
    for place in RUN_BY.values():
        text = (root / place).read_text()
        assert "commands()" in text or "make test" in text, f"{place} does not take its commands from the README"


def test_make_shows_the_documented_targets(root: Path) -> None:
    done = subprocess.run(["make", "help"], cwd=root, capture_output=True, text=True, check=True)
    named = set(re.findall(r"^make ([a-z-]+)", done.stdout, re.M))
    phony = set((root / "Makefile").read_text().split(".PHONY:")[1].splitlines()[0].split())
    assert named == phony - {"help", "install"}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/verification.md"])
def test_links_and_paths_exist(root: Path, name: str) -> None:
    text = (root / name).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    paths = re.findall(r"`((?:services|clients|protos|deploy|tests)/[\w./-]+)`", text)
    assert links or paths
    for path in [*links, *paths]:
        assert ((root / name).parent / path).exists(), path


def test_picture_is_a_valid_svg_without_scripts(root: Path) -> None:
    import xml.etree.ElementTree as ElementTree

    tree = ElementTree.parse(root / "docs/planes.svg").getroot()
    assert tree.tag.endswith("svg")
    words = " ".join("".join(text.itertext()) for text in tree.iter() if text.tag.endswith("text"))
    for service in ("Gateway", "Target", "Drafter", "Client", "Ray Serve"):
        assert service in words
    assert not [each for each in tree.iter() if each.tag.endswith(("script", "foreignObject", "image"))]


def test_both_papers_are_cited(root: Path) -> None:
    for name in ("README.md", "RESULTS.md", "docs/verification.md"):
        for number in ("2610.07822", "2610.29210"):
            assert number in (root / name).read_text(), name


def test_folder_map_names_every_package(root: Path) -> None:
    text = (root / "CONTRIBUTING.md").read_text()
    packages = [path.parent for path in (root / "services/paceline").glob("*/__init__.py")]
    assert packages
    for package in packages:
        assert f"services/paceline/{package.name}`" in text, package.name


def test_no_secret_places(root: Path) -> None:
    """Nothing that is committed names a folder of the machine it was written on."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    files = [name for name in listing.stdout.split("\0") if name and not name.endswith((".binpb", ".png"))]
    pattern = re.compile("/" + "work/|/" + "home/[a-z]+/|\\.\\./" + "shared")
    found = [
        name for name in files if (root / name).is_file() and pattern.search((root / name).read_text(errors="replace"))
    ]
    assert [name for name in found if name != "deploy/docker/Dockerfile"] == []
