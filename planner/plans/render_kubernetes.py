"""Renders a pool for Kubernetes: what runs, who may reach it, how it is scaled and what is scraped.

Kubernetes scales; Weighbridge decides the number. The ScaledObject reads `weighbridge_pool_desired_replicas`, and
because that figure is already stabilised, KEDA adds no stabilisation of its own. Pods satisfy the Pod Security Standard
`restricted`, only the gateway and Prometheus reach them, and they stand on nodes with the planned GPU.
"""

import functools
import tomllib
from pathlib import Path
from typing import Any, Final

from planner.plans.render_pod import (
    PART,
    drain_s,
    pod,
    pod_labels,
    priority_class_name,
    selector,
    startup_s,
)
from planner.plans.serving import EXCHANGE, Inference, Serving, checked

_GATEWAY: Final = {f"{PART}/name": "weighbridge"}
_NAMESPACE: Final = "kubernetes.io/metadata.name"
_NAMES: Final[tuple[dict[str, Any], ...]] = (
    {"namespaceSelector": {}},
    # Those that a node has: NodeLocal DNSCache's, and GKE's Cloud DNS.
    {"ipBlock": {"cidr": "169.254.20.10/32"}},
    {"ipBlock": {"cidr": "169.254.169.254/32"}},
)
"""Who may answer for names: the cluster's pods, wherever they stand, and its nodes."""
_NAME_PORTS: Final = (53, 5_353)
"""Ports of theirs; OpenShift's pods have the second one."""
_PUBLIC: Final = {
    "0.0.0.0/0": (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "224.0.0.0/3",
    ),
    "::/0": ("fc00::/7", "fe80::/10", "ff00::/8"),
}  # fmt: skip
"""All addresses, and those of them that are not public (IANA's special-purpose registries)."""
_INFERENCE: Final = "inference.networking.k8s.io"
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
        *([_policy_by_name(serving)] if serving.hub_by_name else []),
        _service(serving),
        *([] if serving.exchange is None else [_service_of_both(serving, serving.exchange)]),
        _deployment(serving) if serving.nodes == 1 else _leader_worker_set(serving),
        _disruption_budget(serving),
        _scaled_object(serving),
        _service_monitor(serving),
        *(
            []
            if serving.inference is None
            else [_inference_pool(serving, serving.inference), _route(serving, serving.inference)]
        ),
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
    """Allow requests and KV events from the gateway's pods, metrics from Prometheus, and nothing else; out only to the cluster's own
    names, to where weights are, and to the other pods of the pool.
    """
    ports: list[dict[str, Any]] = [{"port": "http", "protocol": "TCP"}]
    ports += [{"port": name, "protocol": "TCP"} for name, _ in serving.kv_ports]
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
    outgoing: list[dict[str, Any]] = [
        {
            "to": list(_NAMES),
            "ports": [{"port": port, "protocol": name} for port in _NAME_PORTS for name in ("UDP", "TCP")],
        }
    ]
    if serving.reaches_hub and not serving.hub_by_name:
        outgoing.append({"to": _hub_peers(serving), "ports": [{"port": 443, "protocol": "TCP"}]})
    if serving.inference is not None:
        incoming.append({"from": _inference_peers(serving.inference), "ports": [{"port": "http", "protocol": "TCP"}]})
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


def _hub_peers(serving: Serving) -> list[dict[str, Any]]:
    """Return where weights come from: as given, or every public address, but none of the cluster's, the cloud's or the node's."""
    if serving.hub_cidrs:
        return [{"ipBlock": {"cidr": each}} for each in serving.hub_cidrs]
    return [{"ipBlock": {"cidr": whole, "except": list(private)}} for whole, private in _PUBLIC.items()]


def _policy_by_name(serving: Serving) -> dict[str, Any]:
    """Return Cilium's policy for the hub's names, which a NetworkPolicy cannot have. The two add up."""
    names = [{"matchPattern": each} for each in hub_names()]
    asked = {
        "toEndpoints": [{"matchLabels": {"k8s:io.kubernetes.pod.namespace": "kube-system", "k8s:k8s-app": "kube-dns"}}],
        "toPorts": [{"ports": [{"port": "53", "protocol": "ANY"}], "rules": {"dns": [{"matchPattern": "*"}]}}],
    }
    return {
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumNetworkPolicy",
        "metadata": _metadata(serving),
        "spec": {
            "endpointSelector": {"matchLabels": selector(serving)},
            "egress": [asked, {"toFQDNs": names, "toPorts": [{"ports": [{"port": "443", "protocol": "TCP"}]}]}],
        },
    }


@functools.cache
def hub_names() -> tuple[str, ...]:
    """Return the patterns of `data/hub_names.toml`."""
    return tuple(tomllib.loads((Path(__file__).with_name("data") / "hub_names.toml").read_text())["patterns"])


def _inference_peers(inference: Inference) -> list[dict[str, Any]]:
    """Return the Gateway's proxies and the endpoint picker, which reads the engines' metrics."""
    return [
        {"namespaceSelector": {"matchLabels": {_NAMESPACE: inference.gateway_namespace}}},
        {"podSelector": {"matchLabels": {"inferencepool": inference.picker}}},
    ]


def _inference_pool(serving: Serving, inference: Inference) -> dict[str, Any]:
    """Return the pool of the Gateway API's inference extension: the same pods, chosen between by its endpoint picker."""
    return {
        "apiVersion": f"{_INFERENCE}/v1",
        "kind": "InferencePool",
        "metadata": _metadata(serving),
        "spec": {
            "selector": {"matchLabels": answering(serving)},
            "targetPorts": [{"number": serving.port}],
            "endpointPickerRef": {
                "name": inference.picker,
                "port": {"number": inference.picker_port},
                # Without a picker any engine is better than none.
                "failureMode": "FailOpen",
            },
        },
    }


def _route(serving: Serving, inference: Inference) -> dict[str, Any]:
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": _metadata(serving),
        "spec": {
            "parentRefs": [{"name": inference.gateway, "namespace": inference.gateway_namespace}],
            "rules": [
                {
                    "matches": [{"path": {"type": "PathPrefix", "value": "/v1"}}],
                    "backendRefs": [{"group": _INFERENCE, "kind": "InferencePool", "name": serving.name}],
                    # As long as a pod that ends lets its streams go on.
                    "timeouts": {"request": f"{drain_s(serving)}s"},
                }
            ],
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
            "strategy": {"type": "RollingUpdate", "rollingUpdate": _one_by_one(serving)},
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
                "rollingUpdateConfiguration": _one_by_one(serving),
            },
            "leaderWorkerTemplate": {
                "size": serving.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": {**template, "spec": pod(serving, part="leader")},
                "workerTemplate": {**template, "spec": pod(serving, part="worker")},
            },
        },
    }


def _one_by_one(serving: Serving) -> dict[str, int]:
    """Return the steps of a rollout: a new one first where there is a GPU for it, as nothing is lost so."""
    return {"maxUnavailable": 0, "maxSurge": 1} if serving.surge else {"maxUnavailable": 1, "maxSurge": 0}


def _count(serving: Serving) -> dict[str, Any]:
    """Return the planned number to begin with. Applied again it would undo what was scaled, unless it is left out."""
    return {} if serving.keep_replicas else {"replicas": serving.replicas}


def answering(serving: Serving) -> dict[str, str]:
    """Return the labels of pods that answer: of a replica of several nodes only the leader does."""
    leader = {} if serving.nodes == 1 else {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
    return {**selector(serving), **leader}


def _service(serving: Serving) -> dict[str, Any]:
    """Return the headless Service: the gateway balances, so it must see every pod that answers."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(serving),
        "spec": {
            "clusterIP": "None",
            "selector": answering(serving),
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
