"""The description of a pool of engines for the renderers, from a plan or from the gateway's configuration.

Every name that ends up in a manifest is checked here, and manifests are data until PyYAML writes them: nothing that
somebody typed becomes syntax.
"""

import re
from itertools import pairwise
from typing import Any, Final

import msgspec
import yaml

from selfhosted.config import PoolConfig
from selfhosted.offline.plans.launch import PORT, SHUTDOWN_S, VLLM_VERSION, Launch
from selfhosted.offline.plans.plan_errors import PlanRefused

_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_POOL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_IMAGE: Final = re.compile(r"[a-z0-9][a-zA-Z0-9._/:@-]{0,254}")
_ORIGIN: Final = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._/-]*)?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
IMAGE: Final = f"vllm/vllm-openai:v{VLLM_VERSION}"


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """A pool of engines with all that any of the renderers needs."""

    pool: str
    """Name of the pool in the gateway's configuration."""
    name: str
    """Name in Kubernetes: lower case, no dots."""
    model: str
    """Model name that callers use."""
    repository: str | None
    command: tuple[str, ...]
    """The whole command line, program included."""
    environment: dict[str, str]
    gpus: int
    replicas: int
    min_replicas: int
    max_replicas: int
    port: int = PORT
    kv_events_port: int | None = None
    cold_start_s: float = 300.0
    drain_s: float = SHUTDOWN_S
    namespace: str = "default"
    image: str = IMAGE
    weights_claim: str | None = None
    """PersistentVolumeClaim that keeps the weights; each pod downloads them when not set."""
    token_secret: str | None = None
    """Secret whose key `token` lets the weights be downloaded."""
    prometheus: str = "http://prometheus.monitoring:9090"
    gpu_title: str | None = None


def checked(serving: Serving) -> Serving:
    """Returns the same value after checking it. Raises PlanRefused when it cannot be rendered."""
    _must(_POOL, serving.pool, "a pool's name is letters, digits and . _ -")
    for what, value in (
        ("the Deployment", serving.name),
        ("the namespace", serving.namespace),
        ("the PersistentVolumeClaim", serving.weights_claim),
        ("the Secret", serving.token_secret),
    ):
        if value is not None:
            _must(_LABEL, value, f"the name of {what} is lower-case letters, digits and dashes, at most 63 of them")
    _must(_IMAGE, serving.image, "an image is a repository with a tag or a digest")
    _must(_ORIGIN, serving.prometheus, "Prometheus is found at http(s)://host[:port]")
    for variable in serving.environment:
        _must(_VARIABLE, variable, "an environment variable is letters, digits and _")
    if not 0 <= serving.min_replicas <= serving.max_replicas:
        raise PlanRefused("the fewest replicas are more than the most")
    if serving.gpus < 1 or not serving.command:
        raise PlanRefused("an engine needs a GPU and a command")
    return serving


def _must(pattern: re.Pattern[str], value: str, rule: str) -> None:
    if pattern.fullmatch(value) is None:
        raise PlanRefused(f"{rule}; `{value[:80]}` is not")


def label_of(pool: str) -> str:
    """The pool's name as a Kubernetes label: lower case, dashes, at most 63 characters."""
    return re.sub(r"[^a-z0-9-]+", "-", pool.lower()).strip("-")[:63].strip("-")


def from_launch(launch: Launch, pool: str, *, replicas: int, max_replicas: int | None = None) -> Serving:
    """Builds the description from a plan's launch."""
    return Serving(
        pool=pool,
        name=label_of(pool),
        model=launch.served_name,
        repository=launch.repository,
        command=("vllm", "serve", *launch.arguments),
        environment=launch.environment,
        gpus=launch.gpus,
        replicas=replicas,
        min_replicas=1,
        max_replicas=max_replicas or max(replicas, 2 * replicas),
        port=launch.port,
        kv_events_port=_events_port(launch.arguments),
    )


def from_config(pool: PoolConfig, *, gpus: int) -> Serving:
    """Builds the description from the gateway's configuration. Raises PlanRefused without a `launch` section."""
    if pool.launch is None:
        raise PlanRefused(
            f"pool `{pool.name}` has no `launch`, so nobody knows how an engine is started; "
            "add it, or render a plan: `weighbridge selfhosted plan … --json > plan.json`, then `render … --plan plan.json`"
        )
    filled = {"{port}": str(PORT), "{host}": "0.0.0.0", "{name}": "$(POD_NAME)"}  # noqa: S104 - in its own pod
    scale = pool.scale
    least, most = (1, 1) if scale is None else (scale.min_replicas, scale.max_replicas)
    return Serving(
        pool=pool.name,
        name=label_of(pool.name if pool.kubernetes is None else pool.kubernetes.service),
        model=pool.targets[0],
        repository=None,
        command=tuple(_filled(word, filled) for word in pool.launch.command),
        environment=pool.launch.environment,
        gpus=gpus,
        replicas=max(1, least),
        min_replicas=least,
        max_replicas=most,
        kv_events_port=_port_of(pool.watch.kv_events_port),
        cold_start_s=300.0 if scale is None else scale.cold_start_s,
        drain_s=pool.launch.drain_s,
        namespace="default" if pool.kubernetes is None else pool.kubernetes.namespace or "default",
    )


def _filled(word: str, filled: dict[str, str]) -> str:
    # Any other `$(...)` is literal text, which Kubernetes would expand unless it is escaped.
    word = word.replace("$(", "$$(")
    for name, value in filled.items():
        word = word.replace(name, value)
    return word


def _port_of(configured: int | str | None) -> int | None:
    """A port number, also from an offset such as `+1000` to the engine's own port."""
    return PORT + int(configured) if isinstance(configured, str) else configured


def _events_port(arguments: tuple[str, ...]) -> int | None:
    for flag, value in pairwise(arguments):
        if flag == "--kv-events-config":
            found = re.search(r'"endpoint":"tcp://\*:(\d{1,5})"', value)
            return None if found is None else int(found[1])
    return None


def as_yaml(documents: list[dict[str, Any]]) -> str:
    """YAML with one document for each manifest. PyYAML quotes whatever would read as something else."""
    return yaml.safe_dump_all(
        documents, sort_keys=False, explicit_start=len(documents) > 1, allow_unicode=True, width=120
    )
