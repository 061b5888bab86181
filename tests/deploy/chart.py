"""The chart, rendered by Helm itself; `make check-deploy` says where that is."""

import copy
import functools
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

Manifest = dict[str, Any]

HERE: Final = Path(__file__).parent
CHART: Final = HERE.parents[1] / "deploy" / "helm" / "weighbridge"
MATRIX: Final[dict[str, Manifest]] = yaml.safe_load((HERE / "matrix.yaml").read_text())
NAMESPACE: Final = "ai"
_HELM: Final = os.environ.get("WB_HELM")
_LIMIT_S: Final = 60

needs_helm = pytest.mark.skipif(_HELM is None, reason="`make check-deploy` has Helm")


def laid_over(base: Manifest, more: Manifest) -> Manifest:
    """Values as Helm merges several files of them."""
    merged = copy.deepcopy(base)
    for key, value in more.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = laid_over(merged[key], value) if both else value
    return merged


def helm(*arguments: str, values: Manifest, release: str = "wb") -> "subprocess.CompletedProcess[str]":
    """One command of Helm with these values, which reach no cluster."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values, file)
        file.flush()
        name = [release] if arguments[0] == "template" else []
        return subprocess.run(
            [str(_HELM), *arguments[:1], *name, str(CHART), "-f", file.name, "-n", NAMESPACE, *arguments[1:]],
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
            env={"PATH": os.environ["PATH"], "HOME": tempfile.gettempdir()},
        )


def rendered(values: Manifest, *arguments: str, release: str = "wb") -> list[Manifest]:
    """The objects that these values come to."""
    done = helm("template", *arguments, values=values, release=release)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.load_all(done.stdout, Loader=_strict()) if each is not None]


@functools.cache
def of(name: str) -> tuple[Manifest, ...]:
    """The objects of a line of the matrix. Who changes them copies them."""
    return tuple(rendered(values_of(name)))


def values_of(name: str) -> Manifest:
    """A line of the matrix over the defaults."""
    return laid_over(MATRIX["defaults"], MATRIX[name])


def kinds(objects: "list[Manifest] | tuple[Manifest, ...]", *names: str) -> list[Manifest]:
    return [each for each in objects if each["kind"] in names]


def workloads(name: str) -> list[Manifest]:
    """What runs and stays."""
    return kinds(of(name), "StatefulSet", "Deployment")


def pods(name: str) -> list[Manifest]:
    """The templates of all pods, the migration's included."""
    return [each["spec"]["template"] for each in kinds(of(name), "StatefulSet", "Deployment", "Job")]


def find(name: str, kind: str, ending: str) -> Manifest:
    (found,) = [each for each in kinds(of(name), kind) if each["metadata"]["name"].endswith(ending)]
    return found


def configuration(name: str, role: str) -> Manifest:
    """The configuration file of a role's pods."""
    text = find(name, "ConfigMap", f"-{role}")["data"]["gateway.yaml"]
    parsed: Manifest = yaml.safe_load(text)
    return parsed


@functools.cache
def bytes_of(quantity: str) -> int:
    """Kubernetes' way to write a size."""
    match = re.fullmatch(r"(\d+)(Ki|Mi|Gi)", quantity)
    assert match is not None, quantity
    return int(match[1]) * {"Ki": 1024, "Mi": 1024 * 1024, "Gi": 1024 * 1024 * 1024}[match[2]]


@functools.cache
def _strict() -> type[yaml.SafeLoader]:
    """A loader that refuses a key twice, as Argo CD's and kubectl's do."""

    class Strict(yaml.SafeLoader):
        pass

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> Manifest:
        names = [key.value for key, _ in node.value]
        assert len(names) == len(set(names)), f"a key twice: {names}"
        return {str(key): value for key, value in loader.construct_mapping(node, deep=True).items()}

    Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    return Strict
