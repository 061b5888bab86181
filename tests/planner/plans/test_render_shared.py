"""Engines that share GPUs, as manifests and for Compose."""

from typing import Any

import kubernetes_validate
import msgspec
import pytest
import yaml

from planner.plans.plan_errors import PlanRefused
from planner.plans.render_shared import SharedServing, shared_compose, shared_manifests, sleeping
from planner.plans.serving import as_yaml, from_config
from selfhosted.config import LaunchConfig, PoolConfig


def shared(level: int = 1, **changes: Any) -> SharedServing:
    pools = []
    for index, name in enumerate(("llama", "qwen", "gemma")):
        command = ("vllm", "serve", f"/models/{name}", "--port", "{port}")
        launch = LaunchConfig(command=command, environment={"VLLM_LOGGING_LEVEL": "INFO"})
        serving = from_config(PoolConfig(name=name, targets=(f"{name}-8b",), launch=launch), gpus=2)
        pools.append(msgspec.structs.replace(sleeping(serving, 8_000 + index), key_secret="box-key", **changes))
    return SharedServing(name="box", level=level, pools=tuple(pools))


def rendered(**changes: Any) -> dict[str, list[dict[str, Any]]]:
    """By kind, read back from the YAML."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in yaml.safe_load_all(as_yaml(shared_manifests(shared(**changes)))):
        found.setdefault(each["kind"], []).append(each)
    return found


def test_engines_of_a_pod_have_the_same_gpus_and_start_one_after_the_other() -> None:
    """All but the last are sidecars, each is asleep before the next one starts, and each has a port and a Service of its own."""
    found = rendered(level=2)
    (deployment,) = found["Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    engines = [*pod["initContainers"], *pod["containers"]]
    assert [(each["name"], each.get("restartPolicy")) for each in engines] == [
        ("llama", "Always"),
        ("qwen", "Always"),
        ("gemma", None),
    ]
    assert pod["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": "box"}]
    (claim,) = found["ResourceClaimTemplate"]
    assert claim["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] == 2
    for index, each in enumerate(engines):
        assert each["resources"]["claims"] == [{"name": "gpus"}]
        assert "nvidia.com/gpu" not in each["resources"]["limits"]
        assert each["ports"] == [{"name": f"http-{index}", "containerPort": 8_000 + index, "protocol": "TCP"}]
        assert each["args"][-3:] == ["--port", str(8_000 + index), "--enable-sleep-mode"]
        assert {"name": "VLLM_SERVER_DEV_MODE", "value": "1"} in each["env"]
        script = each["startupProbe"]["exec"]["command"][-1]
        compile(script, "probe", "exec")
        assert f"127.0.0.1:{8_000 + index}/sleep?level=2" in script
    assert [(each["metadata"]["name"], each["spec"]["ports"][0]["targetPort"]) for each in found["Service"]] == [
        ("llama", "http-0"),
        ("qwen", "http-1"),
        ("gemma", "http-2"),
    ]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert all(each["spec"]["selector"].items() <= labels.items() for each in found["Service"])
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})


def test_nothing_but_the_gateway_reaches_the_routes_that_have_no_key() -> None:
    """Not even Prometheus: what it wants to know the gateway tells."""
    found = rendered(gateway_namespace="gateway")
    (policy,) = found["NetworkPolicy"]
    (rule,) = policy["spec"]["ingress"]
    assert rule["from"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateway"}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "weighbridge"}},
        }
    ]
    assert [each["port"] for each in rule["ports"]] == ["http-0", "http-1", "http-2"]
    assert not {"ScaledObject", "ServiceMonitor"} & found.keys()


@pytest.mark.parametrize("version", ["1.34", "1.37"])
def test_kubernetes_own_schemas_take_them(version: str) -> None:
    """Strictly; claims are of 1.34."""
    for each in shared_manifests(shared()):
        kubernetes_validate.validate(yaml.safe_load(as_yaml([each])), version, strict=True)


def test_on_one_machine_they_have_the_same_devices_and_no_port_outside() -> None:
    """Each waits until the one before it is healthy, which is when it sleeps."""
    services = yaml.safe_load(as_yaml([shared_compose(shared())]))["services"]
    assert list(services) == ["llama-0", "qwen-0", "gemma-0", "gateway"]
    before = None
    for name in ("llama-0", "qwen-0", "gemma-0"):
        engine = services[name]
        (devices,) = engine["deploy"]["resources"]["reservations"]["devices"]
        assert devices["device_ids"] == ["0", "1"]
        assert "ports" not in engine
        assert engine.get("depends_on") == (before and {before: {"condition": "service_healthy"}})
        assert "/sleep?level=1" in engine["healthcheck"]["test"][1]
        before = name
    assert services["gateway"]["ports"] == ["127.0.0.1:8080:8080"]


def test_what_cannot_stand_in_one_pod_is_refused() -> None:
    """A replica of several nodes has no GPUs to share."""
    with pytest.raises(PlanRefused, match="several nodes"):
        shared_manifests(shared(nodes=2))
