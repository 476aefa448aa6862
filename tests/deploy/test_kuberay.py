"""The Kubernetes manifests as rendered: case G2, and that every part agrees with the others."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from paceline.app_config import parse
from paceline.cli.local_cluster import SERVE_ENVIRONMENT
from paceline.cli.serve_options import IMPORT_PATH, SERVICER_FUNCTION
from paceline.placement import POOL_LABEL

GROUPS = ("gateway", "target", "drafter")


@pytest.fixture(scope="module")
def renderer(root: Path) -> ModuleType:
    path = root / "deploy/kuberay/render.py"
    spec = importlib.util.spec_from_file_location("render", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def documents(renderer: ModuleType) -> dict[tuple[str, str], Any]:
    return {(each["kind"], each["metadata"]["name"]): each for each in renderer.render()}


@pytest.fixture(scope="module")
def service(documents: dict[tuple[str, str], Any]) -> Any:
    return documents["RayService", "paceline"]["spec"]


@pytest.fixture(scope="module")
def serve_config(service: Any) -> Any:
    return yaml.safe_load(service["serveConfigV2"])


def groups(service: Any) -> dict[str, Any]:
    cluster = service["rayClusterConfig"]
    return {"head": cluster["headGroupSpec"], **{group["groupName"]: group for group in cluster["workerGroupSpecs"]}}


def containers(service: Any) -> list[Any]:
    return [each for group in groups(service).values() for each in group["template"]["spec"]["containers"]]


def test_embedded_serve_config_is_the_file(service: Any, root: Path) -> None:
    assert service["serveConfigV2"] == (root / "deploy/serve/kuberay.yaml").read_text(), (
        "run: python deploy/kuberay/render.py --write"
    )


def test_writing_again_changes_nothing(renderer: ModuleType, root: Path) -> None:
    text = (root / "deploy/kuberay/base/rayservice.yaml").read_text()
    assert renderer.embed(text, (root / "deploy/serve/kuberay.yaml").read_text()) == text
    assert "another: config" in renderer.embed(text, "another: config\n")


def test_serve_config_builds_our_application(serve_config: Any) -> None:
    (application,) = serve_config["applications"]
    assert application["import_path"] == IMPORT_PATH
    assert serve_config["grpc_options"]["grpc_servicer_functions"] == [SERVICER_FUNCTION]
    assert application["route_prefix"], "without a prefix Serve does not route gRPC either"
    parse(application["args"])


def test_local_and_kubernetes_configs_have_one_shape(root: Path, serve_config: Any) -> None:
    local = yaml.safe_load((root / "deploy/serve/local.yaml").read_text())
    assert local["applications"][0]["import_path"] == IMPORT_PATH
    assert set(local["applications"][0]["args"]) == set(serve_config["applications"][0]["args"])
    parse(local["applications"][0]["args"])


def test_grpc_and_http_are_exposed_by_name(service: Any, serve_config: Any) -> None:
    """KubeRay carries ports named serve or serve-* into the Service that clients use."""
    wanted = {"serve-http": serve_config["http_options"]["port"], "serve-grpc": serve_config["grpc_options"]["port"]}
    for container in containers(service):
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert {name: ports.get(name) for name in wanted} == wanted
        assert all(len(name) <= 15 for name in ports), "Kubernetes takes port names of at most 15 characters"


def test_ingress_listens_beyond_the_pod(serve_config: Any) -> None:
    assert serve_config["http_options"]["host"] == "0.0.0.0"
    assert serve_config["applications"][0]["args"]["data_plane"]["host"] == "node"


def test_probes_match_where_proxies_run(service: Any, serve_config: Any) -> None:
    """Workers are ready by their own proxy, so there must be one on every node that has a replica."""
    assert serve_config["proxy_location"] == "EveryNode"
    for name in GROUPS:
        (container,) = groups(service)[name]["template"]["spec"]["containers"]
        assert container["readinessProbe"]["httpGet"] == {"path": "/-/healthz", "port": "serve-http"}
        assert container["livenessProbe"]["httpGet"]["path"] == "/api/local_raylet_healthz"
    assert service["excludeHeadPodFromServeSvc"] is True, "no replica and so no proxy need be on the head"


def test_probes_ask_ports_that_the_container_names(service: Any) -> None:
    for container in containers(service):
        names = {port["name"] for port in container["ports"]}
        assert {container[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")} <= names


def test_each_service_has_a_group_of_its_pool_and_room_in_it(service: Any, serve_config: Any) -> None:
    config = parse(serve_config["applications"][0]["args"])
    found = groups(service)
    assert set(found) == {"head", *GROUPS}
    assert set(config.parts) == set(GROUPS)
    for name, part in config.parts.items():
        group = found[name]
        assert part.pool == group["labels"][POOL_LABEL] == group["template"]["metadata"]["labels"][POOL_LABEL]
        (container,) = group["template"]["spec"]["containers"]
        fitting = group["replicas"] * int(container["resources"]["limits"]["cpu"]) // max(part.resources.num_cpus, 1)
        assert fitting >= part.replicas
        assert part.threads <= int(container["resources"]["limits"]["cpu"])
        assert part.drain_s < group["template"]["spec"]["terminationGracePeriodSeconds"]
    assert found["head"]["rayStartParams"]["num-cpus"] == "0", "replicas stay off the head"


def test_every_container_has_the_environment(service: Any) -> None:
    assert len(containers(service)) == 4
    for container in containers(service):
        assert {entry["name"]: entry["value"] for entry in container["env"]} == SERVE_ENVIRONMENT


def test_every_container_runs_one_pinned_image(service: Any) -> None:
    images = {container["image"] for container in containers(service)}
    (image,) = images
    assert image.split(":")[1] not in ("", "latest")


def test_data_plane_ports_are_open_to_their_callers_only(
    documents: dict[tuple[str, str], Any], serve_config: Any
) -> None:
    plane = serve_config["applications"][0]["args"]["data_plane"]
    first, last = plane["first_port"], plane["last_port"]
    assert last < 32768, "the kernel hands out higher ports to anybody"
    callers = {"target": "gateway", "drafter": "target"}
    for pool, caller in callers.items():
        spec = documents["NetworkPolicy", f"paceline-{pool}-data-plane"]["spec"]
        assert spec["podSelector"]["matchLabels"][POOL_LABEL] == pool
        (rule,) = spec["ingress"]
        assert [each["podSelector"]["matchLabels"][POOL_LABEL] for each in rule["from"]] == [caller]
        assert rule["ports"] == [{"protocol": "TCP", "port": first, "endPort": last}]
    for rule in documents["NetworkPolicy", "paceline-control-plane"]["spec"]["ingress"]:
        for ports in rule["ports"]:
            assert not range(max(first, ports["port"]), min(last, ports.get("endPort", ports["port"])) + 1), (
                "policies add up: the control plane's must leave the data plane out"
            )


def test_data_plane_range_holds_every_replica_of_a_node(service: Any, serve_config: Any) -> None:
    plane = serve_config["applications"][0]["args"]["data_plane"]
    config = parse(serve_config["applications"][0]["args"])
    assert plane["last_port"] - plane["first_port"] + 1 >= max(part.replicas for part in config.parts.values())


def test_policies_and_budget_select_our_pods(documents: dict[tuple[str, str], Any], service: Any) -> None:
    labels = [group["template"]["metadata"]["labels"] for group in groups(service).values()]
    for (kind, _), document in documents.items():
        if kind == "RayService":
            continue
        spec = document["spec"]
        wanted = (spec["podSelector"] if kind == "NetworkPolicy" else spec["selector"])["matchLabels"]
        assert any(wanted.items() <= each.items() for each in labels), f"{kind} selects nothing: {wanted}"


def test_budget_leaves_room_to_drain(documents: dict[tuple[str, str], Any], service: Any) -> None:
    budget = documents["PodDisruptionBudget", "paceline-gateway"]["spec"]
    assert budget["minAvailable"] < groups(service)["gateway"]["minReplicas"]


def test_required_operator_version_is_stated(root: Path) -> None:
    assert "KubeRay 1.7 or later" in (root / "deploy/kuberay/base/rayservice.yaml").read_text()
    assert "KubeRay 1.7 or later" in (root / "README.md").read_text()


def test_ray_version_is_the_one_that_is_installed(service: Any) -> None:
    import ray

    assert service["rayClusterConfig"]["rayVersion"] == ray.__version__


def test_renderer_refuses_what_it_cannot_do(renderer: ModuleType, root: Path, tmp_path: Path) -> None:
    text = (root / "deploy/kuberay/base/kustomization.yaml").read_text()
    (tmp_path / "kustomization.yaml").write_text(text + "patches: []\n")
    with pytest.raises(ValueError, match="cannot render patches"):
        renderer.render(tmp_path)
