"""The command line over a file over the defaults; every wrong setting is named."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.app_config import AppConfig, parse
from paceline.cli.serve_options import ServeOptions, add_arguments, drafter_flag, read
from paceline.drafter.config import DrafterConfig
from paceline.errors import InvalidField
from paceline.replicas import set_library_threads, usable_cpus, use_threads


def options(*arguments: str) -> ServeOptions:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return read(parser.parse_args(arguments))


OWN = "        proposer: fused\n        model: smollm2-135m-drafter  # comes with Paceline\n"


@pytest.fixture
def local(root: Path) -> str:
    """The file for one machine, with the suffix proposer."""
    text = (root / "deploy/serve/local.yaml").read_text()
    assert OWN in text
    return text.replace(OWN, "        proposer: suffix\n")


def written(folder: Path, text: str) -> str:
    path = folder / "serve.yaml"
    path.write_text(text)
    return str(path)


def test_defaults() -> None:
    got = options()
    assert (got.host, got.http_port, got.grpc_port, got.ray_address) == ("127.0.0.1", 8000, 9000, None)
    assert got.app == parse({})
    assert {name: part.pool for name, part in got.app.parts.items()} == {
        "gateway": "gateway",
        "target": "target",
        "drafter": "drafter",
    }


def test_shipped_file_says_what_the_defaults_say(root: Path) -> None:
    from_file = options("--config", str(root / "deploy/serve/local.yaml"))
    assert from_file.app.model_copy(update={"data_plane": AppConfig().data_plane}) == parse({})
    assert from_file.app.data_plane.host == "127.0.0.1"
    assert (from_file.http_port, from_file.grpc_port) == (8000, 9000)


def test_flags_win_over_the_file(local: str, tmp_path: Path) -> None:
    path = written(tmp_path, local.replace("port: 9000", "port: 9555").replace("port: 8000", "port: 8555"))
    assert options("--config", path).grpc_port == 9555
    got = options("--config", path, "--grpc-port", "9777", "--dtype", "bfloat16", "--target", "x", "--host", "0.0.0.0")
    assert (got.grpc_port, got.http_port, got.host) == (9777, 8555, "0.0.0.0")
    assert (got.app.target.settings.model, got.app.target.settings.dtype) == ("x", "bfloat16")
    assert got.app.drafter is not None
    assert got.app.drafter.settings.dtype == "auto", "the suffix proposer has no weights"
    both = options("--config", path, "--dtype", "bfloat16", "--drafter", "owner/small").app
    assert both.drafter is not None
    assert (both.target.settings.dtype, both.drafter.settings.dtype) == ("bfloat16", "auto")
    apart = options("--dtype", "float32", "--drafter-dtype", "bfloat16", "--drafter", "owner/small").app
    assert apart.drafter is not None
    assert (apart.target.settings.dtype, apart.drafter.settings.dtype) == ("float32", "bfloat16")
    with pytest.raises(InvalidField, match="--drafter-dtype"):
        options("--drafter", "suffix", "--drafter-dtype", "bfloat16")


def test_a_target_has_the_drafter_that_comes_for_it(local: str, tmp_path: Path) -> None:
    own = options("--drafter-dtype", "bfloat16").app.drafter
    assert own is not None
    assert (own.settings.proposer, own.settings.model) == ("fused", "smollm2-135m-drafter")
    assert own.settings.dtype == "bfloat16"
    other = options("--target", "owner/other", "--dtype", "bfloat16").app.drafter
    assert other is not None
    assert (other.settings.proposer, other.settings.model, other.settings.dtype) == ("suffix", None, "auto")
    kept = parse({"drafter": {"threads": 2, "settings": {"store_mb": 7}}}).drafter
    assert kept is not None
    assert (kept.threads, kept.settings.store_mb, kept.settings.proposer) == (2, 7, "fused")
    assert parse({"drafter": None}).drafter is None
    named = options("--config", written(tmp_path, local)).app.drafter
    assert named is not None
    assert named.settings.proposer == "suffix"
    with pytest.raises(InvalidField, match=r"drafter\.settings\.dtype"):
        parse({"target": {"settings": {"model": "owner/other"}}, "drafter": {"settings": {"dtype": "float32"}}})


def test_threads_flags(local: str, tmp_path: Path) -> None:
    got = options("--config", written(tmp_path, local), "--target-threads", "3", "--drafter-threads", "2").app
    assert got.drafter is not None
    assert (got.target.threads, got.drafter.threads, got.gateway.threads) == (3, 2, 1)
    assert got.drafter.settings.proposer == "suffix", "the file's"
    own = options("--drafter-threads", "2").app.drafter
    assert own is not None
    assert (own.threads, own.settings.proposer) == (2, "fused")
    with pytest.raises(InvalidField, match="--drafter-threads: got 2, allowed: absent, since there is no drafter"):
        options("--drafter", "none", "--drafter-threads", "2")
    with pytest.raises(InvalidField, match=r"target\.threads: got 2000"):
        options("--target-threads", "2000")


def test_a_replica_computes_with_the_cpus_it_asks_for() -> None:
    def threads(**part: Any) -> int:
        return parse({"target": part}).target.compute_threads

    assert threads() == 0, "as many as its node has"
    assert threads(resources={"num_cpus": 3}) == 3
    assert threads(resources={"num_cpus": 0.5}) == 1
    assert threads(resources={"num_cpus": 3}, threads=2) == 2


@pytest.mark.parametrize(
    ("quota", "allowed"),
    [
        ("max 100000\n", 64),
        ("200000 100000\n", 2),
        ("50000 100000\n", 1),
        ("9900000 100000", 64),
        ("?", 64),
        (None, 64),
    ],
)
def test_usable_cpus_are_within_the_control_groups_limit(
    quota: str | None, allowed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    path = tmp_path / "cpu.max"
    if quota is not None:
        path.write_text(quota)
    assert usable_cpus(path) == allowed


def test_a_replica_says_how_many_threads_it_computes_with(caplog: pytest.LogCaptureFixture) -> None:
    before = torch.get_num_threads()
    try:
        with caplog.at_level(logging.INFO, logger="paceline.replicas"):
            use_threads(1, "the drafter")
        assert torch.get_num_threads() == 1
        assert caplog.messages == ["the drafter computes with 1 threads"]
    finally:
        torch.set_num_threads(before)


def test_a_replica_without_torch_tells_the_libraries_it_loads(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")
    for name in names:
        monkeypatch.setenv(name, "99")
    with caplog.at_level(logging.INFO, logger="paceline.replicas"):
        set_library_threads(3, "the gateway")
        assert [os.environ[name] for name in names] == ["3", "3"]
        set_library_threads(0, "the gateway")
        assert [os.environ[name] for name in names] == [str(usable_cpus())] * 2
    assert caplog.messages[0] == "the gateway computes with 3 threads"


def test_budget_flag() -> None:
    assert options().app.target.settings.budget == options("--budget", "auto").app.target.settings.budget == "auto"
    assert options("--budget", "0").app.target.settings.budget == 0
    assert options("--budget", "16").app.target.settings.budget == 16
    for wrong in ("some", "-1", "65"):
        with pytest.raises(InvalidField, match=r"target\.settings\.budget: got"):
            options("--budget", wrong)


def test_drafter_flag() -> None:
    assert options("--drafter", "none").app.drafter is None
    for what, proposer, model in (
        ("suffix", "suffix", None),
        ("owner/small", "model", "owner/small"),
        ("fused:owner/small", "fused", "owner/small"),
    ):
        drafter = options("--drafter", what).app.drafter
        assert drafter is not None
        assert (drafter.settings.proposer, drafter.settings.model) == (proposer, model)
        assert drafter_flag(drafter.settings.proposer, drafter.settings.model) == what
    with pytest.raises(InvalidField, match='a model behind "fused:"'):
        options("--drafter", "fused:")
    both = options("--drafter", "fused:owner/small", "--dtype", "bfloat16").app.completed().drafter
    assert both is not None
    assert both.settings.dtype == "auto"
    assert both.settings.target_model is not None, "tokenizers are compared"


def test_drafter_flag_replaces_the_files_drafter_and_keeps_its_place(local: str, tmp_path: Path) -> None:
    text = local.replace("proposer: suffix", "{proposer: model, model: small, width: 2}").replace(
        "threads: 1", "threads: 3"
    )
    text = text.replace("      settings:\n        {proposer", "      settings: {proposer")
    got = options("--config", written(tmp_path, text), "--drafter", "suffix").app.drafter
    assert got is not None
    assert (got.settings.proposer, got.settings.model, got.threads) == ("suffix", None, 3)
    assert got.settings.width == DrafterConfig().width, "a setting of the model proposer goes with it"


@pytest.mark.parametrize(
    ("settings", "flag", "left"),
    [
        ({"proposer": "model", "model": "d", "target_model": "m"}, "suffix", {}),
        (
            {"store_file": "f", "store_save_s": 5, "target_model": "m"},
            "suffix",
            {"store_file": "f", "target_model": "m"},
        ),
        ({"store_file": "f", "store_save_s": 5, "target_model": "m"}, "d", {"model": "d", "target_model": "m"}),
        (
            {"store_file": "f", "store_save_s": 5, "target_model": "m"},
            "fused:d",
            {"model": "d", "store_file": "f", "store_save_s": 5, "target_model": "m"},
        ),
    ],
)
def test_drafter_flag_drops_what_only_another_proposer_reads(
    local: str, tmp_path: Path, settings: dict[str, Any], flag: str, left: dict[str, Any]
) -> None:
    text = local.replace(
        "        proposer: suffix", "\n".join(f"        {name}: {settings[name]}" for name in settings)
    )
    got = options("--config", written(tmp_path, text), "--drafter", flag).app.drafter
    assert got is not None
    assert {name: getattr(got.settings, name) for name in left} == left
    assert (got.settings.store_file, got.settings.target_model) == (left.get("store_file"), left.get("target_model"))


def test_dtype_does_not_bring_a_drafter_back(local: str, tmp_path: Path) -> None:
    text = local[: local.index("    drafter:")] + "    drafter: null\n"
    path = written(tmp_path, text)
    assert options("--config", path, "--dtype", "float32").app.drafter is None
    assert options("--config", path, "--drafter", "suffix").app.drafter is not None


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("proxy_location: HeadOnly", "proxy_location: EveryNode", "proxy_location"),
        ("http_options:", "target_capacity: 3\nhttp_options:", "target_capacity"),
        ("  host: 127.0.0.1\n  port: 8000", "  host: 127.0.0.1\n  keep_alive_timeout_s: 3", "keep_alive_timeout_s"),
        ("port: 9000", "port: 90000", "--grpc-port"),
        ("port: 9000", "port: 8000", "--grpc-port"),
        ("port: 9000", "port: '9000'", "--grpc-port"),
        ("import_path: paceline.app:build", "import_path: other:app", "applications.0.import_path"),
        ("- name: paceline", "- name: paceline\n  deployments: []", "applications.0.deployments"),
        ("      pool: target", "      pol: target", "target.pol"),
        ("dtype: auto", "dtype: float8", "target.settings.dtype"),
        ("proposer: suffix", "proposer: oracle", "drafter.settings.proposer"),
        ("      host: 127.0.0.1", "      first_port: 100", "data_plane.last_port"),
        ("add_InferenceServiceServicer_to_server", "other", "grpc_options.grpc_servicer_functions"),
        ("applications:", "applications: {}\nother:", "other"),
    ],
)
def test_wrong_fields_of_a_file_are_named(local: str, tmp_path: Path, old: str, new: str, field: str) -> None:
    assert old in local
    with pytest.raises(InvalidField) as wrong:
        options("--config", written(tmp_path, local.replace(old, new)))
    assert str(wrong.value).startswith(f"{field}: ") or f".{field}: " in str(wrong.value), wrong.value


@pytest.mark.parametrize(
    "text", ["", "[1, 2]", "applications: []", "a: [", "applications: [{}, {}]", "applications: [3]"]
)
def test_files_that_are_no_serve_config(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidField):
        options("--config", written(tmp_path, text))


def test_missing_file_is_named_however_deep_it_is(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / ("deep" * 30)):
        with pytest.raises(InvalidField, match=r"absent\.yaml.*No such file"):
            options("--config", str(folder / "absent.yaml"))


@pytest.mark.parametrize("arguments", [("--grpc-port", "0"), ("--http-port", "-1"), ("--grpc-port", "8000")])
def test_wrong_ports(arguments: tuple[str, ...]) -> None:
    with pytest.raises(InvalidField, match="-port"):
        options(*arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"targt": {}}, "targt: got {}, allowed: no such field; known: gateway, target, drafter, data_plane"),
        ({"target": {"replicas": 0}}, "target.replicas: got 0, allowed: greater than or equal to 1"),
        ({"target": {"pool": "a b"}}, "target.pool: got 'a b'"),
        ({"target": {"settings": {"port": 1}}}, "target.settings.port: set data_plane instead"),
        ({"drafter": {"settings": {"bind_host": "x"}}}, "drafter.settings.bind_host: set data_plane instead"),
        ({"target": {"settings": {"budget": 99}}}, "target.settings.budget: got 99, allowed: 0 to max_budget (64)"),
        (
            {"target": {"settings": {"budget": "x"}}},
            "target.settings.budget: got 'x', allowed: auto, or a whole",
        ),
        ({"data_plane": {"first_port": 9, "last_port": 3}}, "data_plane.last_port: got 3"),
        ({"target": 3}, "target: got 3"),
        ({"target": {"replicas": 0, "drain_s": -1}}, "Also wrong: target.drain_s"),
    ],
)
def test_wrong_application_settings_speak_to_people(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidField) as wrong:
        parse(arguments)
    assert text in str(wrong.value)
    assert "pydantic" not in str(wrong.value)


def test_completed_tells_every_service_the_targets_model() -> None:
    config = parse(
        {"target": {"settings": {"model": "m"}}, "drafter": {"settings": {"proposer": "model", "model": "d"}}}
    )
    done = config.completed()
    assert done.gateway.settings.model == "m"
    assert done.drafter is not None
    assert done.drafter.settings.target_model == "m"
    kept = parse({"target": {"settings": {"model": "m"}}, "drafter": {"settings": {"store_file": "f"}}}).completed()
    assert kept.drafter is not None
    assert kept.drafter.settings.target_model == "m", "the file's ids are of its tokenizer"
    without = parse({"target": {"settings": {"model": "m"}}}).completed()
    assert without.drafter is not None
    assert without.drafter.settings.target_model is None
    own = parse({"gateway": {"settings": {"model": "g"}}, "target": {"settings": {"model": "m"}}}).completed()
    assert own.gateway.settings.model == "g", "what was said stays"
