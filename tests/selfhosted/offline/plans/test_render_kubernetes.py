"""Manifests, by what they mean."""

from typing import Any

import yaml

from selfhosted.offline.plans.render_kubernetes import PRE_STOP_S, manifests
from selfhosted.offline.plans.serving import as_yaml
from tests.selfhosted.offline.plans.test_serving import planned

# Field names of the schemas: what is written must be one of these.
POD = {
    "automountServiceAccountToken",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
    "containers",
    "volumes",
}
CONTAINER = {
    "name",
    "image",
    "command",
    "args",
    "env",
    "ports",
    "resources",
    "startupProbe",
    "readinessProbe",
    "livenessProbe",
    "lifecycle",
    "securityContext",
    "volumeMounts",
}
SCALED = {
    "scaleTargetRef",
    "minReplicaCount",
    "maxReplicaCount",
    "pollingInterval",
    "cooldownPeriod",
    "fallback",
    "advanced",
    "triggers",
}


def rendered(**changes: Any) -> dict[str, dict[str, Any]]:
    """By kind, read back from the YAML."""
    text = as_yaml(manifests(planned(**changes)))
    assert "&id" not in text
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def pod(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = rendered(**changes)["Deployment"]["spec"]["template"]["spec"]
    return found


def test_all_four_are_there_and_belong_together() -> None:
    """One name, one namespace, and every selector finds the pods."""
    found = rendered(namespace="models")
    assert set(found) == {"Deployment", "Service", "PodDisruptionBudget", "ScaledObject"}
    assert {each["metadata"]["namespace"] for each in found.values()} == {"models"}
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    assert found["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == found["Deployment"]["metadata"]["name"]
    assert [found[kind]["apiVersion"] for kind in found] == ["apps/v1", "v1", "policy/v1", "keda.sh/v1alpha1"]


def test_only_known_fields_are_written() -> None:
    """Of a pod, a container and a ScaledObject; Kubernetes would drop a misspelt one in silence."""
    assert set(pod()) == POD
    assert set(pod()["containers"][0]) == CONTAINER
    assert set(rendered()["ScaledObject"]["spec"]) == SCALED


def test_the_autoscaler_reads_our_figure_and_never_takes_silence_for_zero() -> None:
    """weighbridge_pool_desired_replicas, one replica each; a missing metric is an error with a fallback."""
    spec = rendered()["ScaledObject"]["spec"]
    (trigger,) = spec["triggers"]
    metadata = trigger["metadata"]
    assert trigger["metricType"] == "AverageValue"
    assert metadata["query"] == 'max(weighbridge_pool_desired_replicas{pool="h100"})'
    assert (metadata["threshold"], metadata["ignoreNullValues"]) == ("1", "false")
    assert all(isinstance(value, str) for value in metadata.values())
    assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
    assert spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]


def test_the_deployment_leaves_the_count_to_the_autoscaler() -> None:
    """Applying it again does not undo what was scaled."""
    assert "replicas" not in rendered()["Deployment"]["spec"]


def test_a_pod_has_time_to_drain() -> None:
    """Pause until gateways have noticed, then vLLM's own drain, then some more before the kill."""
    spec = pod(drain_s=120.0)
    assert spec["terminationGracePeriodSeconds"] > PRE_STOP_S + 120
    assert spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", str(PRE_STOP_S)]
    assert "--shutdown-timeout" in spec["containers"][0]["args"]


def test_a_cold_start_is_no_crash() -> None:
    """The startup probe waits far longer than a start takes, and liveness is patient."""
    probe = pod(cold_start_s=900.0)["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 3_600
    alive = pod()["containers"][0]["livenessProbe"]
    assert alive["periodSeconds"] * alive["failureThreshold"] >= 60


def test_gpus_and_shared_memory_are_asked_for() -> None:
    """As many as the plan divides the model by."""
    spec = pod()
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert "shm" in {each["name"] for each in spec["containers"][0]["volumeMounts"]}
    assert spec["volumes"][1]["emptyDir"]["medium"] == "Memory"
    assert {each["containerPort"] for each in spec["containers"][0]["ports"]} == {8000, 5557, 5558}


def test_weights_lie_on_a_claim_or_say_that_they_do_not() -> None:
    """A note tells that each pod downloads them."""
    claimed = pod(weights_claim="weights")["volumes"][0]
    assert claimed["persistentVolumeClaim"] == {"claimName": "weights"}
    assert pod()["volumes"][0]["emptyDir"] == {}
    assert "weighbridge/weights" in rendered()["Deployment"]["metadata"]["annotations"]


def test_a_secret_is_referred_to_never_written() -> None:
    """By name and key."""
    environment = pod(token_secret="hf")["containers"][0]["env"]
    (token,) = [each for each in environment if each["name"] == "HF_TOKEN"]
    assert token["valueFrom"]["secretKeyRef"] == {"name": "hf", "key": "token"}


def test_the_service_is_headless() -> None:
    """The gateway must see every pod, and finds the port by its name."""
    spec = rendered()["Service"]["spec"]
    assert spec["clusterIP"] == "None"
    assert spec["ports"][0]["name"] == "http"
