"""Renders a pool for Kubernetes: Deployment, headless Service, PodDisruptionBudget, and KEDA's ScaledObject.

Kubernetes scales; Weighbridge decides the number. The ScaledObject reads `weighbridge_pool_desired_replicas`, and
because that figure is already stabilised, KEDA adds no stabilisation of its own.
"""

import math
from typing import Any, Final

from selfhosted.offline.plans.serving import Serving, checked

GPU: Final = "nvidia.com/gpu"
PRE_STOP_S: Final = 15
"""Seconds that a pod goes on serving after it is told to end, so that gateways and endpoints notice before it stops
listening."""
_KILL_S: Final = 30
_CPUS_A_GPU: Final = 4
_GIB_A_GPU: Final = 32
_LABEL: Final = "app.kubernetes.io"
_WEIGHTS: Final = "/models"
TOLERANCE: Final = (
    "the HorizontalPodAutoscaler ignores changes below 10 % (its --horizontal-pod-autoscaler-tolerance): from 10 replicas on "
    "a step of one waits for the next"
)


def manifests(serving: Serving) -> list[dict[str, Any]]:
    """All manifests, in the order in which they are applied. Raises PlanRefused."""
    checked(serving)
    return [_deployment(serving), _service(serving), _disruption_budget(serving), _scaled_object(serving)]


def _metadata(serving: Serving, **annotations: str) -> dict[str, Any]:
    found: dict[str, Any] = {"name": serving.name, "namespace": serving.namespace, "labels": _labels(serving)}
    if annotations:
        found["annotations"] = {f"weighbridge/{name}": text for name, text in annotations.items()}
    return found


def _labels(serving: Serving) -> dict[str, str]:
    return {f"{_LABEL}/name": serving.name, f"{_LABEL}/part-of": "weighbridge", f"{_LABEL}/component": "engine"}


def _selector(serving: Serving) -> dict[str, str]:
    return {f"{_LABEL}/name": serving.name}


def _deployment(serving: Serving) -> dict[str, Any]:
    notes = {"pool": serving.pool}
    if serving.weights_claim is None:
        notes["weights"] = "each pod downloads them into an emptyDir, at every start; a shared volume starts sooner"
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(serving, **notes),
        # No `replicas`: applying this again would undo what the ScaledObject chose.
        "spec": {
            "selector": {"matchLabels": _selector(serving)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "progressDeadlineSeconds": _startup_s(serving) + 600,
            "template": {"metadata": {"labels": _labels(serving)}, "spec": _pod(serving)},
        },
    }


def _pod(serving: Serving) -> dict[str, Any]:
    weights: dict[str, Any] = (
        {"emptyDir": {}}
        if serving.weights_claim is None
        else {"persistentVolumeClaim": {"claimName": serving.weights_claim}}
    )
    return {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": PRE_STOP_S + math.ceil(serving.drain_s) + _KILL_S,
        "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": _selector(serving)},
            }
        ],
        "containers": [_container(serving)],
        "volumes": [
            {"name": "weights", **weights},
            # Tensor parallelism exchanges through shared memory; a container's own 64 MiB are too little.
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
        ],
    }


def _container(serving: Serving) -> dict[str, Any]:
    ports: list[dict[str, Any]] = [{"name": "http", "containerPort": serving.port, "protocol": "TCP"}]
    if serving.kv_events_port is not None:
        for name, port in (("kv-events", serving.kv_events_port), ("kv-replay", serving.kv_events_port + 1)):
            ports.append({"name": name, "containerPort": port, "protocol": "TCP"})
    return {
        "name": "engine",
        "image": serving.image,
        "command": [serving.command[0]],
        "args": list(serving.command[1:]),
        "env": _environment(serving),
        "ports": ports,
        "resources": {
            "requests": {"cpu": str(_CPUS_A_GPU * serving.gpus), "memory": f"{_GIB_A_GPU * serving.gpus}Gi"},
            "limits": {GPU: serving.gpus, "memory": f"{2 * _GIB_A_GPU * serving.gpus}Gi"},
        },
        "startupProbe": _probe(10, math.ceil(_startup_s(serving) / 10), timeout_s=5),
        "readinessProbe": _probe(2, 3, timeout_s=2),
        # Patient: a busy engine that is killed loses every stream it had.
        "livenessProbe": _probe(10, 6, timeout_s=5),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(PRE_STOP_S)]}}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "weights", "mountPath": _WEIGHTS}, {"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - the device
    }


def _environment(serving: Serving) -> list[dict[str, Any]]:
    own: list[dict[str, Any]] = [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "HF_HOME", "value": _WEIGHTS},
        {"name": "VLLM_NO_USAGE_STATS", "value": "1"},
    ]
    if serving.token_secret is not None:
        reference = {"name": serving.token_secret, "key": "token"}
        own.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
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


def _startup_s(serving: Serving) -> int:
    """Seconds allowed for start-up: four times a usual cold start, at least twenty minutes, as the first pod on a node
    may have to fetch the image.
    """
    return max(1_200, math.ceil(4 * serving.cold_start_s))


def _service(serving: Serving) -> dict[str, Any]:
    """The headless Service: the gateway balances, so it must see every pod."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(serving),
        "spec": {
            "clusterIP": "None",
            "selector": _selector(serving),
            "ports": [{"name": "http", "port": serving.port, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def _disruption_budget(serving: Serving) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(serving),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _selector(serving)}},
    }


def _scaled_object(serving: Serving) -> dict[str, Any]:
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": _metadata(serving, tolerance=TOLERANCE),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": serving.name},
            "minReplicaCount": serving.min_replicas,
            "maxReplicaCount": serving.max_replicas,
            "pollingInterval": 15,
            # Only of the step from one to none; every other step waits in the autoscaler's own policy.
            "cooldownPeriod": 300,
            # Without an answer from Prometheus: what the plan asks for, but never fewer than run now (KEDA 2.17 or newer).
            "fallback": {
                "failureThreshold": 3,
                "replicas": min(max(serving.replicas, serving.min_replicas), serving.max_replicas),
                "behavior": "currentReplicasIfHigher",
            },
            "advanced": {
                "horizontalPodAutoscalerConfig": {"behavior": {"scaleUp": _at_once(), "scaleDown": _at_once()}}
            },
            "triggers": [
                {
                    "type": "prometheus",
                    "metricType": "AverageValue",
                    "metadata": {
                        "serverAddress": serving.prometheus,
                        "query": f'max(weighbridge_pool_desired_replicas{{pool="{serving.pool}"}})',
                        # Replicas wanted, one a replica.
                        "threshold": "1",
                        "activationThreshold": "0",
                        # A metric that is missing is an error, not 0 replicas.
                        "ignoreNullValues": "false",
                    },
                }
            ],
        },
    }


def _at_once() -> dict[str, Any]:
    return {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 1_000, "periodSeconds": 15}]}
