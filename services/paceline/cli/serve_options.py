"""What to serve: the command line over a Serve config file over the defaults."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from paceline.app_config import AppConfig, parse, with_own_drafter
from paceline.drafter.config import unread_by
from paceline.errors import InvalidField

IMPORT_PATH = "paceline.app:build"
SERVICER_FUNCTION = "paceline.v1.inference_pb2_grpc.add_InferenceServiceServicer_to_server"
NO_DRAFTER = "none"
SUFFIX = "suffix"
FUSED = "fused:"  # before a model

# Fields of a Serve config file that `paceline serve` honours, by the path to them. All others are refused by name.
_KNOWN: dict[str, tuple[str, ...]] = {
    "": ("proxy_location", "http_options", "grpc_options", "logging_config", "applications"),
    "http_options": ("host", "port"),
    "grpc_options": ("port", "grpc_servicer_functions", "request_timeout_s"),
    "applications.0": ("name", "route_prefix", "import_path", "args"),
}


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """One `paceline serve`, fully resolved."""

    app: AppConfig
    name: str = "paceline"  # of the Serve application
    route_prefix: str = "/"  # without one, Serve 2.60 does not route gRPC to the application either
    host: str = "127.0.0.1"  # of the ingress
    http_port: int = 8000
    grpc_port: int = 9000
    request_timeout_s: float | None = None  # server-side limit of a whole call; None: none
    proxy_location: str = "HeadOnly"
    logging_config: Mapping[str, Any] | None = None
    ray_address: str | None = None  # of an existing cluster; None starts one on this machine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `paceline serve`."""
    parser.add_argument("--config", metavar="FILE", help="Serve config file, for example deploy/serve/local.yaml")
    parser.add_argument("--grpc-port", type=int, metavar="N", help="port of the gRPC ingress (9000)")
    parser.add_argument("--http-port", type=int, metavar="N", help="port of the HTTP ingress (8000)")
    parser.add_argument("--host", metavar="ADDRESS", help="address the ingress listens on (127.0.0.1)")
    parser.add_argument("--target", metavar="MODEL", help="target model: a known name, a folder or a Hugging Face id")
    parser.add_argument(
        "--drafter",
        metavar="WHAT",
        help='"suffix", MODEL (a name, a folder or a Hugging Face id), "fused:MODEL" for one tree from both, or "none";'
        " absent: fused with the drafter that comes with Paceline for the target, or suffix where there is none",
    )
    parser.add_argument(
        "--budget",
        metavar="auto|N",
        help="draft nodes a round where a request names none; auto chooses them anew each (auto)",
    )
    parser.add_argument(
        "--dtype", metavar="FORMAT", help="of the target: auto, float32, bfloat16 or, on CPU, int8 or int4 (auto)"
    )
    parser.add_argument("--drafter-dtype", metavar="FORMAT", help="of the drafter's model, if it has one (auto)")
    for service in ("target", "drafter"):
        parser.add_argument(
            f"--{service}-threads",
            type=int,
            metavar="N",
            help=f"compute threads of the {service}; 0: one for each CPU it asks for, or may use",
        )
    parser.add_argument("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N; of target and drafter")
    parser.add_argument(
        "--ray-address", metavar="ADDRESS", help="join this Ray cluster instead of starting one, for example auto"
    )


def drafter_of(flag: str) -> tuple[str, str | None]:
    """Proposer and model that a value of --drafter names; "none" is no drafter.

    Raises InvalidField if a model is missing.
    """
    if flag == SUFFIX:
        return SUFFIX, None
    proposer, model = ("fused", flag.removeprefix(FUSED)) if flag.startswith(FUSED) else ("model", flag)
    if proposer == "fused" and not model:
        raise InvalidField("--drafter", flag, 'a model behind "fused:", for example fused:path/to/model')
    return proposer, model


def drafter_flag(proposer: str, model: str | None) -> str:
    """The value of --drafter that names a proposer."""
    return {SUFFIX: SUFFIX, "model": f"{model}", "fused": f"{FUSED}{model}"}[proposer]


def read(arguments: argparse.Namespace) -> ServeOptions:
    """Resolves the options. Raises InvalidField naming the flag or the file's field."""
    document = _load(arguments.config) if arguments.config else {}
    http, grpc = document.get("http_options", {}), document.get("grpc_options", {})
    application = document.get("applications", [{}])[0]
    options = ServeOptions(
        app=parse(_with_flags(application.get("args", {}), arguments)),
        name=str(application.get("name", "paceline")),
        route_prefix=str(application.get("route_prefix", "/")),
        host=_first(arguments.host, http.get("host"), "127.0.0.1"),
        http_port=_port("--http-port", _first(arguments.http_port, http.get("port"), 8000)),
        grpc_port=_port("--grpc-port", _first(arguments.grpc_port, grpc.get("port"), 9000)),
        request_timeout_s=grpc.get("request_timeout_s"),
        proxy_location=str(document.get("proxy_location", "HeadOnly")),
        logging_config=document.get("logging_config"),
        ray_address=arguments.ray_address,
    )
    if options.ray_address is None and options.proxy_location != "HeadOnly":
        remedy = "The nodes of a local cluster share this machine's ports; --ray-address joins a cluster of machines."
        raise InvalidField("proxy_location", options.proxy_location, "HeadOnly", remedy)
    if options.http_port == options.grpc_port:
        raise InvalidField("--grpc-port", options.grpc_port, "another port than --http-port")
    return options


def _with_flags(arguments: Mapping[str, Any], flags: argparse.Namespace) -> dict[str, Any]:
    """The application's `args` with the command line laid over them."""
    merged = {name: dict(part) if isinstance(part, Mapping) else part for name, part in arguments.items()}

    def put(part: str, **settings: str | int | None) -> None:
        given = {name: value for name, value in settings.items() if value is not None}
        if not given or (part in merged and not isinstance(merged[part], dict)):
            return  # nothing to add, or `drafter: null`, which stays so unless --drafter says otherwise
        section = merged.setdefault(part, {})
        section["settings"] = {**section.get("settings", {}), **given}

    if flags.drafter == NO_DRAFTER:
        merged["drafter"] = None
    elif flags.drafter is not None:
        section = merged.get("drafter") or {}
        proposer, model = drafter_of(flags.drafter)
        chosen = {"proposer", "model", *unread_by(proposer)}  # the flag's now, and what only another would read
        settings = section.get("settings", {})
        if proposer == SUFFIX and "store_file" not in settings:
            chosen.add("target_model")  # which nothing would read
        kept = {name: value for name, value in settings.items() if name not in chosen}
        merged["drafter"] = {**section, "settings": kept}
        put("drafter", proposer=proposer, model=model)
    for part, threads in (("target", flags.target_threads), ("drafter", flags.drafter_threads)):
        if threads is None:
            continue
        if part == "drafter" and merged.get(part, {}) is None:
            raise InvalidField("--drafter-threads", threads, "absent, since there is no drafter")
        section = merged.setdefault(part, {})
        if isinstance(section, dict):
            section["threads"] = threads
    budget = int(flags.budget) if flags.budget is not None and flags.budget.isdecimal() else flags.budget
    put("target", model=flags.target, dtype=flags.dtype, device=flags.device, budget=budget)
    merged = with_own_drafter(merged)
    drafter = merged.get("drafter")
    if isinstance(drafter, dict) and drafter.get("settings", {}).get("proposer", SUFFIX) != SUFFIX:
        put("drafter", dtype=flags.drafter_dtype, device=flags.device)
    elif flags.drafter_dtype is not None:
        raise InvalidField("--drafter-dtype", flags.drafter_dtype, "absent, since the drafter is no model")
    return merged


def _load(path: str) -> dict[str, Any]:
    try:
        document = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise InvalidField("--config", path, "a file that can be read", error.strerror or "") from None
    except yaml.YAMLError as error:
        raise InvalidField("--config", path, "a YAML file", " ".join(str(error).split())) from None
    _check(document, "")
    applications = document.get("applications")
    if not isinstance(applications, list) or len(applications) != 1:
        raise InvalidField("applications", applications, "a list of exactly one application")
    _check(applications[0], "applications.0")
    for section in ("http_options", "grpc_options"):
        _check(document.get(section, {}), section)
    if (path := applications[0].get("import_path")) != IMPORT_PATH:
        remedy = "Use `serve deploy` for other applications."
        raise InvalidField("applications.0.import_path", path, IMPORT_PATH, remedy)
    functions = document.get("grpc_options", {}).get("grpc_servicer_functions", [SERVICER_FUNCTION])
    if functions != [SERVICER_FUNCTION]:
        raise InvalidField("grpc_options.grpc_servicer_functions", functions, f"[{SERVICER_FUNCTION}]")
    return dict(document)


def _check(section: object, path: str) -> None:
    if not isinstance(section, Mapping):
        raise InvalidField(path or "--config", section, "a mapping")
    for name in section:
        if name not in _KNOWN[path]:
            field = f"{path}.{name}" if path else str(name)
            raise InvalidField(field, section[name], f"no such field here; known: {', '.join(_KNOWN[path])}")


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _port(field: str, port: object) -> int:
    if not isinstance(port, int) or not 1 <= port <= 65535:
        raise InvalidField(field, port, "1 to 65535")
    return port
