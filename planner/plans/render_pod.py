"""The pod of one engine, under the Pod Security Standard `restricted`: no root, no privileges, nothing of the node's.

RDMA is the exception. It locks memory, for which a process needs IPC_LOCK, and Kubernetes gives an added capability to root alone: so
such a pod runs as root with that capability and no other. Devices come from the device plugin, and pods keep the network of their own:
the host's is for clusters whose RDMA needs no plugin, and would open every port of the node to the engine.
"""

import math
from typing import Any, Final, Literal

from planner.plans.launch import SIDE_CHANNEL_HOST, SIDE_CHANNEL_PORT
from planner.plans.serving import EXCHANGE, UNKNOWN_GIB, Serving

GPU: Final = "nvidia.com/gpu"
PART: Final = "app.kubernetes.io"
SPOT: Final = "weighbridge/spot"
PRE_STOP_S: Final = 15
"""Seconds that a pod goes on serving after it is told to end, so that gateways and endpoints notice before it stops
listening."""
SPOT_PRE_STOP_S: Final = 5
SPOT_DRAIN_S: Final = 75
"""Seconds for the work of a spot pod after the notice: with the pause and the kill inside the two minutes that clouds give."""
_KILL_S: Final = 30
_CPUS_A_GPU: Final = 4
_GIB_A_GPU: Final = 32
_WEIGHTS: Final = "/models"
_HOME: Final = "/home/engine"
_USER: Final = 10_001
_HOME_GIB: Final = 20
_LOGS_GIB: Final = 10
"""Logs and what is written beside volumes."""
_POD_INTERFACE: Final = "eth0"
"""Interface of a pod's own network, which container runtimes call so."""
_SPARE: Final = 1.3
"""A volume for weights is larger than they are: they are written beside their parts."""

Part = Literal["alone", "leader", "worker"]


def pod_labels(serving: Serving) -> dict[str, str]:
    exchange = {} if serving.exchange is None else {EXCHANGE: serving.exchange}
    return {f"{PART}/name": serving.name, f"{PART}/part-of": "weighbridge", f"{PART}/component": "engine", **exchange}


def selector(serving: Serving) -> dict[str, str]:
    return {f"{PART}/name": serving.name}


def priority_class_name(serving: Serving) -> str:
    return "weighbridge-batch" if serving.place.spot else "weighbridge-interactive"


def startup_s(serving: Serving) -> int:
    """Return the seconds allowed for start-up: four times a usual cold start, at least twenty minutes, as the first pod
    on a node may have to fetch the image.
    """
    return max(1_200, math.ceil(4 * serving.cold_start_s))


def drain_s(serving: Serving) -> int:
    """Return the seconds that a pod's work may take after it is told to end."""
    return min(math.ceil(serving.drain_s), SPOT_DRAIN_S) if serving.place.spot else math.ceil(serving.drain_s)


def pod(serving: Serving, *, part: Part = "alone") -> dict[str, Any]:
    """Return the pod's spec, of a replica that stands alone or of one of a group's pods."""
    tolerations: list[dict[str, Any]] = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
    if serving.place.spot:
        tolerations.append({"key": SPOT, "operator": "Exists", "effect": "NoSchedule"})
    for key, value in serving.place.taints:
        tolerations.append(
            {"key": key, "operator": "Exists"} if value is None else {"key": key, "operator": "Equal", "value": value}
        )
    user = _USER if serving.rdma is None else 0
    found: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": priority_class_name(serving),
        "terminationGracePeriodSeconds": _pause_s(serving) + drain_s(serving) + _KILL_S,
        "tolerations": tolerations,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector(serving)},
            }
        ],
        "securityContext": {
            "runAsNonRoot": user != 0,
            "runAsUser": user,
            "runAsGroup": user,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(serving, part)],
        "volumes": [
            {"name": "weights", **_weights(serving)},
            # Tensor parallelism exchanges through shared memory; a container's own 64 MiB are too little.
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
            # Compiled kernels, and whatever else an engine writes into its home.
            {"name": "home", "emptyDir": {"sizeLimit": f"{_HOME_GIB}Gi"}},
        ],
    }
    if serving.hub_by_name:
        # Asked for as it is first, and not below the cluster's own domains: Cilium knows names as they were asked for.
        found["dnsConfig"] = {"options": [{"name": "ndots", "value": "1"}]}
    if serving.pull_secret is not None:
        found["imagePullSecrets"] = [{"name": serving.pull_secret}]
    if serving.downloads:
        repositories = {"weights": serving.repository, "draft": serving.draft}
        found["initContainers"] = [_fetching(serving, *each) for each in repositories.items() if each[1] is not None]
    if serving.place.labels:
        found["nodeSelector"] = dict(serving.place.labels)
    return found


def _pause_s(serving: Serving) -> int:
    return SPOT_PRE_STOP_S if serving.place.spot else PRE_STOP_S


def _weights(serving: Serving) -> dict[str, Any]:
    if serving.weights_claim is not None:
        return {"persistentVolumeClaim": {"claimName": serving.weights_claim}}
    size = _weights_gib(serving)
    if serving.weights_class is None:
        return {"emptyDir": {"sizeLimit": f"{size}Gi"}}
    return {
        "ephemeral": {
            "volumeClaimTemplate": {
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": serving.weights_class,
                    "resources": {"requests": {"storage": f"{size}Gi"}},
                }
            }
        }
    }


def _weights_gib(serving: Serving) -> int:
    """Return the room for what is downloaded."""
    return UNKNOWN_GIB if serving.weights_bytes is None else math.ceil(serving.weights_bytes * _SPARE / 2**30)


def _disk(serving: Serving) -> dict[str, str]:
    """Return what a pod takes of its node's disk. Asked for, so that no node is chosen that lacks it; limited, so that no neighbour is
    evicted for it.
    """
    on_node = serving.weights_claim is None and serving.weights_class is None
    return {"ephemeral-storage": f"{_HOME_GIB + _LOGS_GIB + (_weights_gib(serving) if on_node else 0)}Gi"}


def _restricted(serving: Serving) -> dict[str, Any]:
    added = {} if serving.rdma is None else {"add": ["IPC_LOCK"]}
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], **added},
        "runAsNonRoot": serving.rdma is None,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _mounts() -> list[dict[str, Any]]:
    return [
        {"name": "weights", "mountPath": _WEIGHTS},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the device
        {"name": "home", "mountPath": _HOME},
    ]


def _fetching(serving: Serving, name: str, repository: str | None) -> dict[str, Any]:
    """Download the weights before the engine starts, or find them there. A token that the hub refuses is told here, in the
    hub's words, rather than by an engine that crashes again and again; so are weights that a claim does not have.
    """
    return {
        "name": name,
        "image": serving.image,
        "command": ["hf", "download", repository, "--exclude", "original/*"],
        "env": _environment(serving, engine=False),
        "resources": {
            "requests": {"cpu": "1", "memory": "4Gi", **_disk(serving)},
            "limits": {"memory": "16Gi", **_disk(serving)},
        },
        "securityContext": _restricted(serving),
        "volumeMounts": _mounts(),
    }


def _container(serving: Serving, part: Part) -> dict[str, Any]:
    ports: list[dict[str, Any]] = [{"name": "http", "containerPort": serving.port, "protocol": "TCP"}]
    ports += [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in serving.kv_ports]
    if serving.exchange is not None:
        ports.append({"name": "nixl", "containerPort": int(serving.environment[SIDE_CHANNEL_PORT]), "protocol": "TCP"})
    gpus = serving.gpus // serving.nodes
    offload = math.ceil(serving.kv_offload_gib / serving.nodes)
    found: dict[str, Any] = {
        "name": "engine",
        "image": serving.image,
        "command": [serving.command[0]],
        "args": [*_drained(serving), *_grouped(serving, part)],
        "env": _environment(serving, engine=True),
        "ports": ports,
        "resources": {
            "requests": {
                "cpu": str(_CPUS_A_GPU * gpus),
                "memory": f"{_GIB_A_GPU * gpus + offload}Gi",
                **_disk(serving),
            },
            "limits": {
                GPU: gpus,
                **({} if serving.rdma is None else {serving.rdma.resource: serving.rdma.count}),
                "memory": f"{2 * _GIB_A_GPU * gpus + offload}Gi",
                **_disk(serving),
            },
        },
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(_pause_s(serving))]}}},
        "securityContext": _restricted(serving),
        "volumeMounts": _mounts(),
    }
    if part != "worker":
        found |= {
            "startupProbe": _probe(10, math.ceil(startup_s(serving) / 10), timeout_s=5),
            "readinessProbe": _probe(2, 3, timeout_s=2),
            # Patient: a busy engine that is killed loses every stream it had.
            "livenessProbe": _probe(10, 6, timeout_s=5),
        }
    return found


def _drained(serving: Serving) -> list[str]:
    """Return the command's arguments, with no longer a drain than the pod has."""
    words = list(serving.command[1:])
    if "--shutdown-timeout" in words[:-1]:
        words[words.index("--shutdown-timeout") + 1] = str(drain_s(serving))
    return words


def _grouped(serving: Serving, part: Part) -> list[str]:
    """Return the arguments by which a pod of several nodes finds the others; the variables are the LeaderWorkerSet's."""
    if part == "alone":
        return []
    words = [
        "--nnodes",
        str(serving.nodes),
        "--node-rank",
        "$(LWS_WORKER_INDEX)",
        "--master-addr",
        "$(LWS_LEADER_ADDRESS)",
    ]
    return words if part == "leader" else [*words, "--headless"]


def _environment(serving: Serving, *, engine: bool) -> list[dict[str, Any]]:
    own: list[dict[str, Any]] = [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "HF_HOME", "value": _WEIGHTS},
        {"name": "HOME", "value": _HOME},
        # An account that the image does not know has no name, and libraries ask for one.
        {"name": "USER", "value": "engine"},
        {"name": "VLLM_NO_USAGE_STATS", "value": "1"},
    ]
    if serving.downloads and (engine or not serving.reaches_hub):
        # All that it needs is there: nothing waits for a hub that cannot be reached.
        own.append({"name": "HF_HUB_OFFLINE", "value": "1"})
    if serving.token_secret is not None:
        own.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": serving.token_secret, "key": "token"}}})
    if not engine:
        return own
    if serving.key_secret is not None:
        reference = {"name": serving.key_secret, "key": "api-key"}
        own.append({"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": reference}})
    if serving.nodes > 1:
        # Otherwise a name that leads to no address of the pod's makes them talk to the loopback.
        own.append({"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            own += [{"name": name, "value": _POD_INTERFACE}] if name not in serving.environment else []
    if serving.exchange is not None:
        own.append({"name": SIDE_CHANNEL_HOST, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    taken = {each["name"] for each in own}
    given = [{"name": name, "value": value} for name, value in serving.environment.items() if name not in taken]
    return own + given


def _probe(every_s: int, failures: int, *, timeout_s: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": "/health", "port": "http"},
        "periodSeconds": every_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }
