"""Renders pools that share GPUs: the engines of one pod, or of one machine, on the same devices.

Each engine starts when the one before it has started and sleeps, as an engine that is awake leaves no memory to start in: in a pod
all but the last are sidecars, whose start-up probe puts them to sleep; in Compose the health check does. Then the gateway wakes
whom it wants. Its routes for that need no key, so nothing but the gateway reaches the engines, Prometheus included.

Containers of one pod have the same GPUs by a claim (dynamic resource allocation, Kubernetes 1.34, with NVIDIA's driver for it).
"""

import json
from typing import Any, Final

import msgspec

from planner.plans.plan_errors import PlanRefused
from planner.plans.render_compose import compose
from planner.plans.render_kubernetes import gateway_peers, manifests
from planner.plans.render_pod import GPU, pod, startup_s
from planner.plans.serving import Serving, checked, label_of

_CLAIM: Final = "gpus"
_DEVICES: Final = "gpu.nvidia.com"
_DEV_MODE: Final = "VLLM_SERVER_DEV_MODE"
_SLEEP_FLAG: Final = "--enable-sleep-mode"
_SLEPT: Final = "/run/weighbridge/slept"
_PROBE_S: Final = 150
"""Seconds in which an engine has to fall asleep."""
_PORT_FLAG: Final = "--port"


class SharedServing(msgspec.Struct, frozen=True, kw_only=True):
    """Pools whose engines stand on the same GPUs."""

    name: str
    """The group's name in the gateway's configuration."""
    level: int
    pools: tuple[Serving, ...]

    @property
    def label(self) -> str:
        return label_of(self.name)

    @property
    def gpus(self) -> int:
        return max(each.gpus for each in self.pools)


def sleeping(serving: Serving, port: int) -> Serving:
    """Return the pool with an engine that can sleep, on a port of its own."""
    words = list(serving.command)
    if _SLEEP_FLAG not in words:
        words.append(_SLEEP_FLAG)
    if _PORT_FLAG in words[:-1]:
        words[words.index(_PORT_FLAG) + 1] = str(port)
    else:
        words += [_PORT_FLAG, str(port)]
    return msgspec.structs.replace(
        serving, command=tuple(words), port=port, environment={**serving.environment, _DEV_MODE: "1"}
    )


def shared_manifests(shared: SharedServing) -> list[dict[str, Any]]:
    """Return all manifests, in the order in which they are applied. Raises PlanRefused."""
    for serving in shared.pools:
        checked(serving)
    first = msgspec.structs.replace(shared.pools[0], name=shared.label, pool=shared.name)
    if any(each.nodes > 1 or each.exchange is not None for each in shared.pools):
        raise PlanRefused("engines of one pod share its GPUs: none of them takes several nodes, or hands prompts over")
    plain = {each["kind"]: each for each in manifests(first)}
    policy, deployment = plain["NetworkPolicy"], plain["Deployment"]
    ports = [{"port": _port_name(index), "protocol": "TCP"} for index in range(len(shared.pools))]
    policy["spec"]["ingress"] = [{"from": gateway_peers(first), "ports": ports}]
    spec = deployment["spec"]
    spec["replicas"] = 1
    # The next pod's engines need the GPUs of this one's.
    spec["strategy"] = {"type": "Recreate"}
    spec["progressDeadlineSeconds"] = sum(startup_s(each) for each in shared.pools) + 600
    spec["template"]["spec"] = _pod(shared, first)
    return [plain["PriorityClass"], policy, _claim(shared, first), *_services(shared, first), deployment]


def _pod(shared: SharedServing, first: Serving) -> dict[str, Any]:
    found = pod(first)
    engines = [_engine(shared, serving, index) for index, serving in enumerate(shared.pools)]
    # A container that starts again whenever it ends, before the next one starts at all.
    found["initContainers"] = [
        *found.get("initContainers", ()),
        *({**each, "restartPolicy": "Always"} for each in engines[:-1]),
    ]
    found["containers"] = engines[-1:]
    for volume in found["volumes"]:
        if volume["name"] == "weights" and "emptyDir" in volume:
            # The weights of all lie there.
            volume["emptyDir"] = {"sizeLimit": f"{len(engines) * int(volume['emptyDir']['sizeLimit'][:-2])}Gi"}
    found["resourceClaims"] = [{"name": _CLAIM, "resourceClaimTemplateName": shared.label}]
    return found


def _engine(shared: SharedServing, serving: Serving, index: int) -> dict[str, Any]:
    (plain,) = pod(serving)["containers"]
    port = _port_name(index)
    resources = {
        "requests": plain["resources"]["requests"],
        "limits": {name: amount for name, amount in plain["resources"]["limits"].items() if name != GPU},
        "claims": [{"name": _CLAIM}],
    }
    probes = {
        name: {**plain[name], "httpGet": {**plain[name]["httpGet"], "port": port}}
        for name in ("readinessProbe", "livenessProbe")
    }
    start = {
        "exec": {"command": ["python3", "-c", _start_script(serving.port, shared.level)]},
        "periodSeconds": 10,
        "timeoutSeconds": _PROBE_S,
        "failureThreshold": plain["startupProbe"]["failureThreshold"],
    }
    ports = [{"name": port, "containerPort": serving.port, "protocol": "TCP"}]
    return {
        **plain,
        "name": label_of(serving.pool),
        "ports": ports,
        "resources": resources,
        **probes,
        "startupProbe": start,
    }


def _start_script(port: int, level: int) -> str:
    """Return the start script, which succeeds once the engine answers and was put to sleep."""
    origin = f"http://127.0.0.1:{port}"
    return (
        "import urllib.request as u; "
        f"u.urlopen({json.dumps(f'{origin}/health')}, timeout=5); "
        f"u.urlopen(u.Request({json.dumps(f'{origin}/sleep?level={level}')}, method='POST'), timeout={_PROBE_S - 10})"
    )


def _healthy(origin: str, level: int) -> str:
    """Return a shell's line that succeeds while the engine answers, and puts it to sleep the first time after it started."""
    sleeps = f"curl -sf -X POST '{origin}/sleep?level={level}' && touch {_SLEPT}"
    return f"curl -sf {origin}/health && {{ test -e {_SLEPT} || {{ {sleeps}; }}; }}"


def _port_name(index: int) -> str:
    return f"http-{index}"


def _claim(shared: SharedServing, first: Serving) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": shared.label, "namespace": first.namespace},
        "spec": {
            "spec": {
                "devices": {
                    "requests": [{"name": _CLAIM, "exactly": {"deviceClassName": _DEVICES, "count": shared.gpus}}]
                }
            }
        },
    }


def _services(shared: SharedServing, first: Serving) -> list[dict[str, Any]]:
    """Return a headless Service for each pool, by which the gateway finds its engine in each pod."""
    found = []
    for index, serving in enumerate(shared.pools):
        service = next(each for each in manifests(first) if each["kind"] == "Service")
        service["metadata"] = {**service["metadata"], "name": serving.name}
        # Found while it sleeps, too.
        service["spec"]["publishNotReadyAddresses"] = True
        service["spec"]["ports"] = [
            {"name": "http", "port": serving.port, "targetPort": _port_name(index), "protocol": "TCP"}
        ]
        found.append(service)
    return found


def shared_compose(shared: SharedServing) -> dict[str, Any]:
    """Return the Compose file: one service for each pool's engine, all with the same GPUs. Raises PlanRefused."""
    whole: dict[str, Any] | None = None
    engines: dict[str, Any] = {}
    for serving in shared.pools:
        one = compose(msgspec.structs.replace(serving, replicas=1, gpus=shared.gpus))
        whole = whole or one
        (plain,) = (each for name, each in one["services"].items() if name != "gateway")
        # Reached within the network alone: its routes have no key.
        plain.pop("ports")
        if engines:
            plain["depends_on"] = {next(reversed(engines)): {"condition": "service_healthy"}}
        plain["tmpfs"] = [_SLEPT.rpartition("/")[0]]
        plain["healthcheck"] |= {
            "test": [
                "CMD-SHELL",
                _healthy(f"http://127.0.0.1:{serving.port}", shared.level),
            ],
            "timeout": f"{_PROBE_S}s",
        }
        engines[f"{serving.name}-0"] = plain
    if whole is None:
        raise PlanRefused("nobody shares these GPUs")
    gateway = whole["services"]["gateway"]
    gateway["depends_on"] = {name: {"condition": "service_started"} for name in engines}
    return {**whole, "name": shared.label, "services": {**engines, "gateway": gateway}}
