"""Renders a pool for Kubernetes: what runs, who may reach it, how it is scaled and what is scraped.

Kubernetes scales; Weighbridge decides the number. The ScaledObject reads `weighbridge_pool_desired_replicas`, and
because that figure is already stabilised, KEDA adds no stabilisation of its own. Pods satisfy the Pod Security Standard
`restricted`, only the gateway and Prometheus reach them, and they stand on nodes with the planned GPU.
"""

from typing import Any, Final

from planner.plans.render_pod import (
    PART,
    pod,
    pod_labels,
    priority_class_name,
    selector,
    startup_s,
)
from planner.plans.serving import EXCHANGE, Serving, checked

_GATEWAY: Final = {f"{PART}/name": "weighbridge"}
_NAMESPACE: Final = "kubernetes.io/metadata.name"
_INTERACTIVE: Final = 1_000_000
_BATCH: Final = 1_000
TOLERANCE: Final = (
    "the HorizontalPodAutoscaler ignores changes below 10 % (its --horizontal-pod-autoscaler-tolerance): from 10 replicas on "
    "a step of one waits for the next"
)


def manifests(serving: Serving) -> list[dict[str, Any]]:
    """Return all manifests, in the order in which they are applied. Raises PlanRefused."""
    checked(serving)
    return [
        _priority_class(serving),
        _network_policy(serving),
        _service(serving),
        *([] if serving.exchange is None else [_service_of_both(serving, serving.exchange)]),
        _deployment(serving) if serving.nodes == 1 else _leader_worker_set(serving),
        _disruption_budget(serving),
        _scaled_object(serving),
        _service_monitor(serving),
    ]


def _metadata(serving: Serving, **annotations: str) -> dict[str, Any]:
    found: dict[str, Any] = {"name": serving.name, "namespace": serving.namespace, "labels": pod_labels(serving)}
    if annotations:
        found["annotations"] = {f"weighbridge/{name}": text for name, text in annotations.items()}
    return found


def _priority_class(serving: Serving) -> dict[str, Any]:
    """Return the class of all pools of this tier. Batch work never pushes anybody out, and is the first to go."""
    spot = serving.place.spot
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": priority_class_name(serving), "labels": {f"{PART}/part-of": "weighbridge"}},
        "value": _BATCH if spot else _INTERACTIVE,
        "globalDefault": False,
        "preemptionPolicy": "Never" if spot else "PreemptLowerPriority",
        "description": "Engines for batch work" if spot else "Engines that somebody waits for",
    }


def gateway_peers(serving: Serving) -> list[dict[str, Any]]:
    """Return the gateway's pods, as a NetworkPolicy names them."""
    gateway = serving.gateway_namespace or serving.namespace
    return [{"namespaceSelector": {"matchLabels": {_NAMESPACE: gateway}}, "podSelector": {"matchLabels": _GATEWAY}}]


def _network_policy(serving: Serving) -> dict[str, Any]:
    """Allow requests and KV events from the gateway's pods, metrics from Prometheus, and nothing else; out only to names, to
    where weights are, and to the other pods of the pool.
    """
    ports: list[dict[str, Any]] = [{"port": "http", "protocol": "TCP"}]
    if serving.kv_events_port is not None:
        ports += [{"port": name, "protocol": "TCP"} for name in ("kv-events", "kv-replay")]
    own = {"podSelector": {"matchLabels": selector(serving)}}
    incoming: list[dict[str, Any]] = [
        {
            "from": gateway_peers(serving),
            "ports": ports,
        },
        {
            "from": [{"namespaceSelector": {"matchLabels": {_NAMESPACE: serving.monitoring_namespace}}}],
            "ports": [{"port": "http", "protocol": "TCP"}],
        },
    ]
    outgoing: list[dict[str, Any]] = [{"ports": [{"port": 53, "protocol": name} for name in ("UDP", "TCP")]}]
    if serving.weights_claim is None:
        # Weights come from a hub, whose addresses nobody can list.
        outgoing.append({"ports": [{"port": 443, "protocol": "TCP"}]})
    if serving.nodes > 1:
        incoming.append({"from": [own]})
        outgoing.append({"to": [own]})
    if serving.exchange is not None:
        # KV caches go over ports that nobody can list.
        for way, rules in (("from", incoming), ("to", outgoing)):
            rules.append({way: [{"podSelector": {"matchLabels": {EXCHANGE: serving.exchange}}}]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(serving),
        "spec": {
            "podSelector": {"matchLabels": selector(serving)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": incoming,
            "egress": outgoing,
        },
    }


def _deployment(serving: Serving) -> dict[str, Any]:
    notes = {"pool": serving.pool}
    if serving.weights_claim is None and serving.weights_class is None:
        notes["weights"] = "each pod downloads them into an emptyDir, at every start; a shared volume starts sooner"
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(serving, **notes),
        "spec": {
            **_count(serving),
            "selector": {"matchLabels": selector(serving)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "progressDeadlineSeconds": startup_s(serving) + 600,
            "template": {"metadata": {"labels": pod_labels(serving)}, "spec": pod(serving)},
        },
    }


def _leader_worker_set(serving: Serving) -> dict[str, Any]:
    """Return groups of as many pods as a replica has nodes. The leader answers; a group lives and dies as one."""
    template = {"metadata": {"labels": pod_labels(serving)}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": _metadata(serving, pool=serving.pool),
        "spec": {
            **_count(serving),
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"maxUnavailable": 0, "maxSurge": 1},
            },
            "leaderWorkerTemplate": {
                "size": serving.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": {**template, "spec": pod(serving, part="leader")},
                "workerTemplate": {**template, "spec": pod(serving, part="worker")},
            },
        },
    }


def _count(serving: Serving) -> dict[str, Any]:
    """Return the planned number to begin with. Applied again it would undo what was scaled, unless it is left out."""
    return {} if serving.keep_replicas else {"replicas": serving.replicas}


def _service(serving: Serving) -> dict[str, Any]:
    """Return the headless Service: the gateway balances, so it must see every pod that answers."""
    answering = {} if serving.nodes == 1 else {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(serving),
        "spec": {
            "clusterIP": "None",
            "selector": {**selector(serving), **answering},
            "ports": [{"name": "http", "port": serving.port, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def _service_of_both(serving: Serving, exchange: str) -> dict[str, Any]:
    """Return the headless Service over those that read prompts and those that answer, which are one pool to the gateway. Either side's
    manifests have it, alike.
    """
    found = _service(serving)
    found["metadata"] = {
        "name": exchange,
        "namespace": serving.namespace,
        "labels": {f"{PART}/part-of": "weighbridge", EXCHANGE: exchange},
    }
    found["spec"]["selector"] = {EXCHANGE: exchange}
    return found


def _disruption_budget(serving: Serving) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(serving),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": selector(serving)},
            # A pod that never became ready holds up no drain of its node.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _scaled_object(serving: Serving) -> dict[str, Any]:
    target = (
        {"apiVersion": "apps/v1", "kind": "Deployment"}
        if serving.nodes == 1
        else {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    )
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": _metadata(serving, tolerance=TOLERANCE),
        "spec": {
            "scaleTargetRef": {**target, "name": serving.name},
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
                        # Those that read prompts for the others have a number of their own.
                        "query": f'max(weighbridge_pool_desired_replicas{{pool="{serving.pool}{"/prefill" if serving.reads else ""}"}})',
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


def _service_monitor(serving: Serving) -> dict[str, Any]:
    """Return the ServiceMonitor, by which the Prometheus operator scrapes each engine's own page."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": _metadata(serving),
        "spec": {
            "selector": {"matchLabels": selector(serving)},
            "endpoints": [{"port": "http", "path": "/metrics", "interval": "15s", "scrapeTimeout": "10s"}],
            "targetLabels": [f"{PART}/name"],
        },
    }
