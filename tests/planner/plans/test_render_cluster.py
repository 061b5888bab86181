"""What people who run clusters reported of vLLM in them, tried on what is rendered."""

from functools import cache
from ipaddress import ip_address, ip_network
from typing import Any

import kubernetes_validate
import pytest

from planner.plans.models import model_named
from planner.plans.plan_errors import PlanRefused
from planner.plans.planning import Plan, plan
from planner.plans.render_kubernetes import hub_names, manifests
from planner.plans.rendering import inference_of, rdma_of, serving_of_plan
from planner.plans.serving import Place, Rdma, Serving, checked, from_launch, warnings_of
from planner.plans.sizing import Targets
from tests.planner.plans.questions import question
from tests.planner.plans.test_render_kubernetes import ROUTED, VERSIONS, pod, rendered, sides
from tests.planner.plans.test_serving import planned

RDMA = Rdma(resource="rdma/hca_shared_devices_a", count=8)


@cache
def _two_nodes() -> Plan:
    return plan(
        question(
            model=model_named("llama-3.1-405b"), precision="bf16", requests_per_s=1.0, targets=Targets(ttft_p99_s=3)
        )
    )


def group(**changes: Any) -> dict[str, dict[str, Any]]:
    """The pods of a replica of two nodes."""
    found = _two_nodes()
    serving = Serving(**{**_fields(from_launch(found.launch, "big", replicas=1)), **changes})
    kinds = {each["kind"]: each for each in manifests(serving)}
    template = kinds["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    return {part: template[f"{part}Template"]["spec"] for part in ("leader", "worker")}


def _fields(serving: Serving) -> dict[str, Any]:
    return {name: getattr(serving, name) for name in serving.__struct_fields__}


def engine(spec: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = spec["containers"][0]
    return found


def environment(spec: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each for each in engine(spec)["env"]}


def test_pods_of_several_nodes_have_rdma_and_may_lock_memory() -> None:
    """Devices of the plugin, IPC_LOCK and nothing else, as root, which alone an added capability is given to; shared memory, and no
    network of the host's.
    """
    for spec in group(rdma=RDMA).values():
        container = engine(spec)
        assert container["resources"]["limits"]["rdma/hca_shared_devices_a"] == 8
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsNonRoot"]) == (0, False)
        assert not {"hostNetwork", "hostIPC", "hostPID"} & set(spec)
        assert "/dev/shm" in {each["mountPath"] for each in container["volumeMounts"]}  # noqa: S108 - the device
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
        kubernetes_validate.validate(body, VERSIONS[-1], strict=True)


def test_without_rdma_the_pods_stay_restricted_and_it_is_said_what_that_costs() -> None:
    """TCP, and how RDMA is asked for."""
    for spec in group().values():
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert engine(spec)["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    serving = from_launch(_two_nodes().launch, "big", replicas=1)
    assert any("--rdma" in each for each in warnings_of(serving))
    assert any("enforce=privileged" in each for each in warnings_of(Serving(**{**_fields(serving), "rdma": RDMA})))
    with pytest.raises(PlanRefused, match="several nodes"):
        checked(planned(rdma=RDMA))


def test_pods_of_several_nodes_do_not_meet_at_the_loopback() -> None:
    """Gloo and NCCL fall back to it where a pod's name leads nowhere; whoever has another interface says so."""
    for spec in group().values():
        told = environment(spec)
        assert told["VLLM_HOST_IP"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
        assert {told[name]["value"] for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")} == {"eth0"}
    other = environment(group(environment={"NCCL_SOCKET_IFNAME": "net1"})["leader"])
    assert (other["NCCL_SOCKET_IFNAME"]["value"], other["GLOO_SOCKET_IFNAME"]["value"]) == ("net1", "eth0")
    assert "VLLM_HOST_IP" not in environment(pod())


def test_a_pod_asks_for_the_disk_that_it_fills() -> None:
    """Weights in an emptyDir count as the node's disk: each volume has a limit, and what all take together is asked for and limited,
    so that nobody is evicted for it.
    """
    spec = pod(weights_bytes=141_000_000_000)
    sizes = {each["name"]: int(each["emptyDir"]["sizeLimit"][:-2]) for each in spec["volumes"] if "emptyDir" in each}
    assert set(sizes) == {"weights", "shm", "home"}
    assert sizes["weights"] * 2**30 >= 1.2 * 141_000_000_000
    for container in (*spec["containers"], *spec["initContainers"]):
        asked, limit = (container["resources"][kind]["ephemeral-storage"] for kind in ("requests", "limits"))
        assert asked == limit
        assert int(asked[:-2]) > sizes["weights"] + sizes["home"]
    for elsewhere in ({"weights_claim": "weights"}, {"weights_class": "local-nvme"}):
        asked = engine(pod(weights_bytes=141_000_000_000, **elsewhere))["resources"]["requests"]["ephemeral-storage"]
        assert int(asked[:-2]) < 50


def test_room_is_for_what_is_downloaded_not_for_what_is_served() -> None:
    """An FP8 plan of a repository in bf16 downloads twice its weights, and says so; a checkpoint in FP8 does not."""
    wide = serving_of_plan(plan(question()), "h100")
    assert wide.quantises
    assert wide.weights_bytes == 2 * model_named("llama-3-70b").parameters
    assert any("141 GB are downloaded and made FP8" in each for each in warnings_of(wide))
    narrow = serving_of_plan(plan(question(weights="RedHatAI/Meta-Llama-3-70B-Instruct-FP8")), "h100")
    assert narrow.weights_bytes is not None
    assert narrow.weights_bytes < 0.6 * 2 * model_named("llama-3-70b").parameters
    assert not any("made FP8" in each for each in warnings_of(narrow))


@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_a_plan_is_not_rendered_with_weights_of_another_precision(precision: str) -> None:
    """Its GPUs would not hold them."""
    with pytest.raises(PlanRefused, match="--weights"):
        serving_of_plan(plan(question(precision=precision)), "h100")
    found = serving_of_plan(plan(question(precision=precision, weights="org/llama-3-70b-quantised")), "h100")
    assert found.repository == "org/llama-3-70b-quantised"


def _reached(address: str, egress: list[dict[str, Any]]) -> bool:
    """Whether a policy lets a pod reach this address at 443."""
    for rule in egress:
        if not any(port["port"] == 443 for port in rule["ports"]):
            continue
        for peer in rule["to"]:
            block = peer["ipBlock"]
            inside = ip_address(address) in ip_network(block["cidr"])
            if inside and not any(ip_address(address) in ip_network(each) for each in block.get("except", ())):
                return True
    return False


def test_weights_come_from_public_addresses_at_most() -> None:
    """Never the cloud's metadata, the cluster or the office; a mirror's network alone where one is named."""
    anywhere = rendered()["NetworkPolicy"]["spec"]["egress"]
    mirror = rendered(hub_cidrs=("10.1.0.0/16",))["NetworkPolicy"]["spec"]["egress"]
    assert _reached("3.5.7.9", anywhere)
    assert _reached("2600:9000::1", anywhere)
    for private in ("169.254.169.254", "10.0.0.1", "10.1.2.3", "172.20.0.1", "192.168.1.1", "100.64.0.1", "fd00::1"):
        assert not _reached(private, anywhere)
    assert _reached("10.1.2.3", mirror)
    assert not _reached("3.5.7.9", mirror)
    assert any("--hub-by-name" in each for each in warnings_of(planned()))
    assert not any("--hub-by-name" in each for each in warnings_of(planned(hub_cidrs=("10.1.0.0/16",))))


def test_weights_come_from_the_hubs_names_where_cilium_knows_them() -> None:
    """Its policy has the names, the plain one no address; names are asked for as they are, not below the cluster's domains."""
    found = rendered(hub_by_name=True)
    plain, named = found["NetworkPolicy"]["spec"], found["CiliumNetworkPolicy"]["spec"]
    assert 443 not in {port["port"] for rule in plain["egress"] for port in rule["ports"]}
    dns, hub = named["egress"]
    assert dns["toPorts"][0]["rules"]["dns"] == [{"matchPattern": "*"}]
    assert [each["matchPattern"] for each in hub["toFQDNs"]] == list(hub_names())
    assert {"huggingface.co", "*.xethub.hf.co"} <= set(hub_names())
    assert hub["toPorts"] == [{"ports": [{"port": "443", "protocol": "TCP"}]}]
    assert pod(hub_by_name=True)["dnsConfig"]["options"] == [{"name": "ndots", "value": "1"}]
    with pytest.raises(PlanRefused, match="addresses or from names"):
        checked(planned(hub_by_name=True, hub_cidrs=("10.0.0.0/8",)))
    with pytest.raises(PlanRefused, match="no network"):
        checked(planned(hub_cidrs=("huggingface.co",)))


def test_an_engine_asks_no_hub_for_what_is_there() -> None:
    """Weights, and those of the model that guesses, are fetched before it starts; with a claim nobody asks, unless it is said where."""
    told = {each["name"]: each.get("value") for each in engine(pod())["env"]}
    assert told["HF_HUB_OFFLINE"] == "1"
    (fetching,) = pod()["initContainers"]
    assert "HF_HUB_OFFLINE" not in {each["name"] for each in fetching["env"]}
    (finding,) = pod(weights_claim="weights")["initContainers"]
    assert "HF_HUB_OFFLINE" in {each["name"] for each in finding["env"]}
    (filling,) = pod(weights_claim="weights", hub_cidrs=("203.0.113.0/24",))["initContainers"]
    assert "HF_HUB_OFFLINE" not in {each["name"] for each in filling["env"]}
    assert "CiliumNetworkPolicy" in rendered(hub_by_name=True, weights_claim="weights")
    guessing = serving_of_plan(plan(question(profile="low", draft="org/eagle", requests_per_s=0.1)), "h100")
    document = next(each for each in manifests(guessing) if each["kind"] == "Deployment")
    fetched = [each["command"][2] for each in document["spec"]["template"]["spec"]["initContainers"]]
    assert fetched == ["meta-llama/Meta-Llama-3-70B-Instruct", "org/eagle"]
    assert "HF_HUB_OFFLINE" not in {each["name"] for each in engine(pod(repository="/models/llama"))["env"]}


def test_prefill_and_decode_have_rdma_too() -> None:
    """They hand KV caches over by it."""
    for serving in sides().values():
        found = next(
            each for each in manifests(Serving(**{**_fields(serving), "rdma": RDMA})) if each["kind"] == "Deployment"
        )
        spec = found["spec"]["template"]["spec"]
        assert engine(spec)["resources"]["limits"]["rdma/hca_shared_devices_a"] == 8
        assert not any("by TCP" in each for each in warnings_of(Serving(**{**_fields(serving), "rdma": RDMA})))
        assert any("by TCP" in each for each in warnings_of(serving))


def test_an_image_is_named_by_its_digest_or_that_is_said() -> None:
    """With the option that takes one; a registry that asks who pulls has a Secret."""
    assert any("sha256" in each for each in warnings_of(planned()))
    digest = planned(image=f"vllm/vllm-openai@sha256:{'0' * 64}")
    assert not any("sha256" in each for each in warnings_of(checked(digest)))
    assert pod(pull_secret="registry")["imagePullSecrets"] == [{"name": "registry"}]


def test_a_rollout_goes_on_without_spare_gpus() -> None:
    """Where a new pod would wait for an old one's GPUs, the old one ends first; otherwise nothing is lost."""
    assert rendered()["Deployment"]["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert rendered(surge=False)["Deployment"]["spec"]["strategy"]["rollingUpdate"] == {
        "maxUnavailable": 1,
        "maxSurge": 0,
    }


def test_a_nodes_drain_is_never_stuck() -> None:
    """Not by a pool of one replica, whose budget would otherwise be none, and not by a pod that never became ready."""
    budget = rendered(replicas=1)["PodDisruptionBudget"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert "minAvailable" not in budget
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_nodes_taints_are_tolerated() -> None:
    """The GPU's always; others as they are named."""
    found = pod(place=Place(taints=(("sku", "gpu"), ("dedicated", None))))["tolerations"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in found
    assert {"key": "sku", "operator": "Equal", "value": "gpu"} in found
    assert {"key": "dedicated", "operator": "Exists"} in found


def test_a_service_called_vllm_breaks_no_engine() -> None:
    """Its variable VLLM_PORT would be taken for a port; and no token of the cluster's lies in a pod."""
    spec = pod()
    assert spec["enableServiceLinks"] is False
    assert spec["automountServiceAccountToken"] is False


def test_caches_are_written_where_anybody_may() -> None:
    """An account that the image does not know has no home: every cache would go to the root folder."""
    told = environment(pod())
    mounted = {each["mountPath"] for each in engine(pod())["volumeMounts"]}
    assert {told["HOME"]["value"], told["HF_HOME"]["value"]} <= mounted
    assert told["USER"]["value"]


def test_the_gateway_apis_pool_has_the_same_pods() -> None:
    """An InferencePool with its endpoint picker, and a route to it; who comes that way is let in, and that it passes by the gateway is
    said.
    """
    found = rendered(inference=ROUTED)
    pool, route = found["InferencePool"], found["HTTPRoute"]
    assert pool["apiVersion"] == "inference.networking.k8s.io/v1"
    assert set(pool["spec"]) == {"selector", "targetPorts", "endpointPickerRef"}
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert pool["spec"]["targetPorts"] == [{"number": 8_000}]
    assert pool["spec"]["endpointPickerRef"] == {
        "name": "picker",
        "port": {"number": 9_002},
        "failureMode": "FailOpen",
    }
    (rule,) = route["spec"]["rules"]
    assert rule["backendRefs"] == [
        {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": pool["metadata"]["name"]}
    ]
    assert route["spec"]["parentRefs"] == [{"name": "public", "namespace": "gateways"}]
    *_, peers = found["NetworkPolicy"]["spec"]["ingress"]
    assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateways"}}} in peers["from"]
    assert any("passes by the gateway" in each for each in warnings_of(planned(inference=ROUTED)))
    assert "InferencePool" not in rendered()


@pytest.mark.parametrize(
    ("picker", "route"),
    [("picker", None), ("picker", "public"), ("picker", "gateways/"), ("picker:0", "a/b"), ("picker:x", "a/b")],
)
def test_a_way_in_that_is_none_is_refused(picker: str, route: str | None) -> None:
    """With what is wanted."""
    with pytest.raises(PlanRefused, match="--inference-pool"):
        inference_of(picker, route)


@pytest.mark.parametrize("text", ["rdma/a=0", "rdma/a=x", "rdma/a=999", "rdma/a="])
def test_devices_that_are_none_are_refused(text: str) -> None:
    """As is a name without its plugin's domain."""
    with pytest.raises(PlanRefused, match="--rdma"):
        rdma_of(text)
    with pytest.raises(PlanRefused, match="DOMAIN/NAME"):
        group(rdma=rdma_of("hca"))


def test_ways_in_and_devices_are_read() -> None:
    """Counts and ports where they are given."""
    assert rdma_of("nvidia.com/mlnxnics=8") == Rdma(resource="nvidia.com/mlnxnics", count=8)
    assert rdma_of("rdma/ib") == Rdma(resource="rdma/ib", count=1)
    assert inference_of("picker:9003", "gateways/public").picker_port == 9_003
