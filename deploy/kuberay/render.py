"""Renders deploy/kuberay/base: what `kubectl apply -k deploy/kuberay/base` would send, without kubectl.

    python deploy/kuberay/render.py            print the manifests
    python deploy/kuberay/render.py --write    put deploy/serve/kuberay.yaml into base/rayservice.yaml

Kustomize cannot embed a file in a field of a custom resource, so the Serve config stands in rayservice.yaml as text; a
test compares it with the file it comes from.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

BASE = Path(__file__).parent / "base"
SERVE_CONFIG = Path(__file__).parent.parent / "serve" / "kuberay.yaml"
BEGIN, END = "  serveConfigV2: |\n", "  # end of serveConfigV2\n"


def render(base: Path = BASE) -> list[dict[str, Any]]:
    """Every document of the kustomization, labels and images applied. Raises ValueError for what it cannot do."""
    kustomization = yaml.safe_load((base / "kustomization.yaml").read_text())
    unknown = set(kustomization) - {"apiVersion", "kind", "resources", "images", "labels"}
    if unknown:
        raise ValueError(f"kustomization.yaml: cannot render {', '.join(sorted(unknown))}")
    images = {
        image["name"]: f"{image.get('newName', image['name'])}:{image['newTag']}" for image in kustomization["images"]
    }
    documents = []
    for name in kustomization["resources"]:
        for document in yaml.safe_load_all((base / name).read_text()):
            for labels in kustomization["labels"]:
                metadata = document["metadata"]
                metadata["labels"] = {**metadata.get("labels", {}), **labels["pairs"]}
            _set_images(document, images)
            documents.append(document)
    return documents


def embed(rayservice: str, serve_config: str) -> str:
    """`rayservice.yaml` with the text of the Serve config between its two markers."""
    head, rest = rayservice.split(BEGIN)
    _, tail = rest.split(END)
    body = "".join(f"    {line}" if line.strip() else line for line in serve_config.splitlines(keepends=True))
    return head + BEGIN + body + END + tail


def _set_images(value: Any, images: dict[str, str]) -> None:
    """As kustomize does: in every list named `containers` or `initContainers`, wherever it is."""
    if isinstance(value, list):
        for item in value:
            _set_images(item, images)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name in ("containers", "initContainers"):
                for container in item:
                    container["image"] = images.get(container["image"], container["image"])
            _set_images(item, images)


def main(arguments: list[str]) -> int:
    """Prints the manifests, or writes the embedded config."""
    if arguments == ["--write"]:
        path = BASE / "rayservice.yaml"
        path.write_text(embed(path.read_text(), SERVE_CONFIG.read_text()))
        return 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    print(yaml.safe_dump_all(render(), sort_keys=False), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
