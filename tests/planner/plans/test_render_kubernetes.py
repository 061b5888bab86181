"""Manifests, by what they mean."""

from typing import Any

import kubernetes_validate
import pytest
import yaml

from planner.plans.models import model_named
from planner.plans.plan_errors import PlanRefused
from planner.plans.planning import plan
from planner.plans.render_kubernetes import manifests
from planner.plans.render_pod import PRE_STOP_S, SPOT
from planner.plans.serving import (
    EXCHANGE,
    Inference,
    Place,
    Serving,
    as_yaml,
    from_launch,
    label_of,
    of_side,
    warnings_of,
)
from planner.plans.sizing import Targets
from planner.plans.split import split_of
from tests.kinds.published import needs_kinds, refused_by_published_schemas
from tests.planner.plans.questions import question
from tests.planner.plans.test_serving import planned


def rendered(**changes: Any) -> dict[str, dict[str, Any]]:
    """By kind, read back from the YAML."""
    text = as_yaml(manifests(planned(**changes)))
    assert "&id" not in text
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def _custom(**changes: Any) -> list[dict[str, Any]]:
    return [each for each in manifests(planned(**changes)) if each["kind"] in PUBLISHED]


def pod(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = rendered(**changes)["Deployment"]["spec"]["template"]["spec"]
    return found


VERSIONS = ("1.30", "1.34", "1.37")
CUSTOM = {"ScaledObject", "ServiceMonitor", "LeaderWorkerSet", "CiliumNetworkPolicy", "InferencePool", "HTTPRoute"}
PUBLISHED = {"ScaledObject", "ServiceMonitor"}
ROUTED = Inference(picker="picker", gateway="public", gateway_namespace="gateways")
SAFE: dict[str, dict[str, Any]] = {
    "keyed": {"key_secret": "h100-key", "token_secret": "hf"},
    "claimed": {"weights_claim": "weights"},
    "own disks": {"weights_class": "local-nvme", "weights_bytes": 72_655_052_800},
    "spot": {"place": Place(labels={"karpenter.sh/capacity-type": "spot"}, spot=True), "min_replicas": 0},
    "by name": {"hub_by_name": True, "pull_secret": "registry"},
    "a mirror's": {"hub_cidrs": ("203.0.113.0/24", "2001:db8::/32"), "surge": False},
    "other taints": {"place": Place(taints=(("sku", "gpu"), ("dedicated", None)))},
    "routed": {"inference": ROUTED},
    "elsewhere": {"namespace": "models", "gateway_namespace": "gateway", "keep_replicas": True},
}


def test_all_are_there_and_belong_together() -> None:
    """One name, one namespace, and every selector finds the pods."""
    found = rendered(namespace="models")
    assert list(found) == [
        "PriorityClass", "NetworkPolicy", "Service", "Deployment", "PodDisruptionBudget", "ScaledObject", "ServiceMonitor",
    ]  # fmt: skip
    assert {each["metadata"].get("namespace", "models") for each in found.values()} == {"models"}
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(each.items() <= labels.items() for each in selectors)
    assert (
        found["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items()
        <= found["Service"]["metadata"]["labels"].items()
    )
    assert found["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == found["Deployment"]["metadata"]["name"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("changes", SAFE.values(), ids=list(SAFE))
def test_kubernetes_own_schemas_take_every_manifest(version: str, changes: dict[str, Any]) -> None:
    """Strictly: a field that is not known, or of another type, is refused. The package carries the published schemas."""
    for each in manifests(planned(**changes)):
        if each["kind"] not in CUSTOM:
            kubernetes_validate.validate(each, version, strict=True)


@needs_kinds
def test_the_gateway_apis_schema_takes_a_route() -> None:
    """And refuses a match by a word that it does not know."""
    found = rendered(inference=ROUTED)["HTTPRoute"]
    assert refused_by_published_schemas([found]) is None
    found["spec"]["rules"][0]["matches"][0]["path"]["type"] = "Somehow"
    assert "ValidationError" in (refused_by_published_schemas([found]) or "")


@needs_kinds
def test_kedas_and_the_operators_schemas_take_their_own() -> None:
    """As their custom resource definitions publish them."""
    for changes in SAFE.values():
        assert refused_by_published_schemas(_custom(**changes)) is None


@needs_kinds
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("ScaledObject", {"pollingInterval": "often"}),
        ("ScaledObject", {"fallback": {"failureThreshold": 3, "replicas": 1, "behavior": "odd"}}),
        ("ServiceMonitor", {"endpoints": [{"interval": 15}]}),
    ],
)
def test_those_schemas_refuse_too(kind: str, change: dict[str, Any]) -> None:
    """Another type, a word that is not known."""
    found = rendered()[kind]
    found["spec"] |= change
    assert "ValidationError" in (refused_by_published_schemas([found]) or "")


def test_the_schemas_do_refuse() -> None:
    """A misspelt field of a container is found, deep inside."""
    found = rendered()["Deployment"]
    found["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(found, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("changes", SAFE.values(), ids=list(SAFE))
def test_pods_satisfy_the_restricted_standard(changes: dict[str, Any]) -> None:
    """Each of its rules, for every container: no root, no escalation, no capabilities, a seccomp profile, known volumes."""
    spec = pod(**changes)
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    assert all(set(each) - {"name"} <= allowed for each in spec["volumes"])
    for container in spec["containers"] + spec.get("initContainers", []):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"]["type"] == "RuntimeDefault"
        assert not any("hostPort" in port for port in container.get("ports", []))


def test_only_the_gateway_and_prometheus_reach_an_engine() -> None:
    """Requests and KV events from the gateway's pods, the page from Prometheus's namespace; out to names and the hub."""
    spec = rendered(gateway_namespace="gateway")["NetworkPolicy"]["spec"]
    gateway, prometheus = spec["ingress"]
    (peer,) = gateway["from"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "gateway"}
    assert peer["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "weighbridge"}
    assert {each["port"] for each in gateway["ports"]} == {"http", "kv-events", "kv-replay"}
    assert {each["port"] for each in prometheus["ports"]} == {"http"}
    names, hub = spec["egress"]
    assert {port["port"] for port in names["ports"]} == {53, 5_353}
    assert all("cidr" not in peer.get("ipBlock", {}) or peer["ipBlock"]["cidr"].endswith("/32") for peer in names["to"])
    assert {port["port"] for port in hub["ports"]} == {443}
    (claimed,) = rendered(weights_claim="weights")["NetworkPolicy"]["spec"]["egress"]
    assert {port["port"] for port in claimed["ports"]} == {53, 5_353}


def test_engines_ask_for_a_key_from_a_secret() -> None:
    """By name; nothing of it is written, and who leaves it out is warned."""
    (key,) = [each for each in pod(key_secret="h100-key")["containers"][0]["env"] if each["name"] == "VLLM_API_KEY"]
    assert key["valueFrom"]["secretKeyRef"] == {"name": "h100-key", "key": "api-key"}
    assert any("key" in each for each in warnings_of(planned()))
    assert not any("no key" in each for each in warnings_of(planned(key_secret="h100-key")))


def test_a_gated_model_without_a_token_is_warned_of_and_fails_early() -> None:
    """Weights are fetched before the engine starts, so the hub's refusal is read there."""
    assert any("gated" in each for each in warnings_of(planned()))
    assert not any("gated" in each for each in warnings_of(planned(token_secret="hf")))
    (fetching,) = pod(token_secret="hf")["initContainers"]
    assert fetching["command"][:3] == ["hf", "download", "meta-llama/Meta-Llama-3-70B-Instruct"]
    assert "HF_TOKEN" in {each["name"] for each in fetching["env"]}
    assert "nvidia.com/gpu" not in fetching["resources"]["limits"]
    assert "initContainers" not in pod(repository="/models/llama")


def test_nodes_have_the_planned_gpu() -> None:
    """By the label of NVIDIA's feature discovery, or the cloud's own; without one it is warned of."""
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert pod(place=Place(labels=labels))["nodeSelector"] == labels
    assert "nodeSelector" not in pod()
    assert any("which GPU" in each for each in warnings_of(planned()))


def test_spot_pods_are_the_first_to_go_and_drain_in_time() -> None:
    """Their taint is tolerated, nobody is pushed out for them, and notice, drain and end fit into two minutes."""
    place = Place(labels={"karpenter.sh/capacity-type": "spot"}, spot=True)
    found = rendered(place=place, min_replicas=0)
    spec = found["Deployment"]["spec"]["template"]["spec"]
    assert {"key": SPOT, "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    assert spec["priorityClassName"] == found["PriorityClass"]["metadata"]["name"] == "weighbridge-batch"
    assert found["PriorityClass"]["preemptionPolicy"] == "Never"
    assert found["PriorityClass"]["value"] < rendered()["PriorityClass"]["value"]
    assert spec["terminationGracePeriodSeconds"] <= 120
    args = spec["containers"][0]["args"]
    pause = int(spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pause + int(args[args.index("--shutdown-timeout") + 1]) < spec["terminationGracePeriodSeconds"]
    assert any("spot" in each for each in warnings_of(planned(place=place)))


def test_two_pools_never_have_one_name() -> None:
    """Names that Kubernetes does not take are changed, and marked."""
    labels = [label_of(name) for name in ("a-b", "a.b", "A_B", "A-B", "a_b")]
    assert len(set(labels)) == 5
    assert labels[0] == "a-b"


def test_a_replica_of_two_nodes_is_a_group() -> None:
    """405B in bf16: a leader that answers and a worker, the pods' GPUs, and the Service finds the leader only."""
    found = plan(
        question(
            model=model_named("llama-3.1-405b"), precision="bf16", requests_per_s=1.0, targets=Targets(ttft_p99_s=3)
        )
    )
    serving = from_launch(found.launch, "big", replicas=found.replicas)
    kinds = {each["kind"]: each for each in manifests(serving)}
    group = kinds["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    leader, worker = (group[name]["spec"]["containers"][0] for name in ("leaderTemplate", "workerTemplate"))
    assert group["size"] == 2
    assert leader["resources"]["limits"]["nvidia.com/gpu"] == worker["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert "--headless" in worker["args"]
    assert "--headless" not in leader["args"]
    assert leader["args"][leader["args"].index("--nnodes") + 1] == "2"
    assert "readinessProbe" not in worker
    assert kinds["Service"]["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    assert kinds["ScaledObject"]["spec"]["scaleTargetRef"]["kind"] == "LeaderWorkerSet"
    for template in ("leaderTemplate", "workerTemplate"):
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": group[template]["spec"]}
        kubernetes_validate.validate(body, VERSIONS[-1], strict=True)


def test_weights_are_on_one_volume_only() -> None:
    """A claim, or a volume of each pod."""
    with pytest.raises(PlanRefused, match="not on both"):
        manifests(planned(weights_claim="a", weights_class="b"))
    volume = pod(weights_class="local-nvme", weights_bytes=72_655_052_800)["volumes"][0]["ephemeral"]
    assert volume["volumeClaimTemplate"]["spec"]["resources"]["requests"]["storage"] == "88Gi"


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


def test_the_first_apply_starts_what_was_planned() -> None:
    """And a later one may leave the count to the autoscaler; its bounds follow from the plan's peak."""
    serving = planned()
    found = rendered()
    assert found["Deployment"]["spec"]["replicas"] == serving.replicas
    assert "replicas" not in rendered(keep_replicas=True)["Deployment"]["spec"]
    spec = found["ScaledObject"]["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 2 * serving.replicas)


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
    assert set(pod()["volumes"][0]["emptyDir"]) == {"sizeLimit"}
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


def test_a_pod_asks_for_the_memory_that_its_offload_takes() -> None:
    """On top of what it asks for anyway; otherwise the first full buffer would kill it."""
    found = plan(question(kv_offload_gib=200))
    serving = from_launch(found.launch, "h100", replicas=1)
    resources = next(each for each in manifests(serving) if each["kind"] == "Deployment")["spec"]["template"]["spec"][
        "containers"
    ][0]["resources"]
    plain = pod()["containers"][0]["resources"]
    for kind in ("requests", "limits"):
        assert int(resources[kind]["memory"][:-2]) == int(plain[kind]["memory"][:-2]) + 200


def sides() -> dict[str, Serving]:
    asked = question(targets=Targets(ttft_p99_s=1.0, tpot_p99_s=0.03))
    found = split_of(asked, plan(asked))
    return {part: of_side(getattr(found, part), "h100", part) for part in ("prefill", "decode")}


def test_prefill_and_decode_reach_each_other_and_are_scaled_apart() -> None:
    """They have a label of their own in common, which the proxy has, too; each tells its own address, and has a number of its own."""
    for part, serving in sides().items():
        documents = manifests(serving)
        for each in documents:
            if each["kind"] not in CUSTOM:
                kubernetes_validate.validate(each, VERSIONS[-1], strict=True)
        assert "&id" not in as_yaml(documents)
        found = {each["kind"]: each for each in documents}
        (trigger,) = found["ScaledObject"]["spec"]["triggers"]
        asked = "h100/prefill" if part == "prefill" else "h100"
        assert trigger["metadata"]["query"] == f'max(weighbridge_pool_desired_replicas{{pool="{asked}"}})'
        assert found["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == f"h100-{part}"
        assert found["ScaledObject"]["spec"]["maxReplicaCount"] == 2 * serving.replicas
        assert found["Deployment"]["metadata"]["name"] == f"h100-{part}"
        pods = found["Deployment"]["spec"]["template"]
        assert pods["metadata"]["labels"][EXCHANGE] == "h100"
        reached = [{"podSelector": {"matchLabels": {EXCHANGE: "h100"}}}]
        assert {"from": reached} in found["NetworkPolicy"]["spec"]["ingress"]
        assert {"to": reached} in found["NetworkPolicy"]["spec"]["egress"]
        (container,) = pods["spec"]["containers"]
        told = {each["name"]: each for each in container["env"]}
        assert told["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        assert str(ports["nixl"]) == told["VLLM_NIXL_SIDE_CHANNEL_PORT"]["value"]
        assert any("prefill: {replicas:" in warning for warning in warnings_of(serving))
