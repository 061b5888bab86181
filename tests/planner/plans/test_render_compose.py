"""Compose: one machine, each replica with GPUs of its own."""

from typing import Any

import pytest
import yaml

from planner.plans.plan_errors import PlanRefused
from planner.plans.render_compose import compose, gateway_replicas
from planner.plans.serving import as_yaml
from tests.planner.plans.test_serving import planned


def engines(file: dict[str, Any]) -> list[dict[str, Any]]:
    return [service for name, service in file["services"].items() if name != "gateway"]


def test_no_two_replicas_share_a_gpu_or_a_port() -> None:
    """Four replicas of two GPUs on a node of eight."""
    services = engines(yaml.safe_load(as_yaml([compose(planned(replicas=4))])))
    devices = [
        device
        for each in services
        for device in each["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
    ]
    assert sorted(devices) == [str(number) for number in range(8)]
    assert len({each["ports"][0] for each in services}) == 4
    assert all(each["ports"][0].startswith("127.0.0.1:") for each in services)


def test_dollars_stay_dollars() -> None:
    """Compose would put variables in."""
    serving = planned(replicas=1, command=("vllm", "serve", "m", "--x", "$HOME", "$(POD_NAME)", "$$(Y)"))
    (service,) = engines(compose(serving))
    assert service["command"] == ["serve", "m", "--x", "$$HOME", "h100-0", "$$(Y)"]


def test_a_fleet_is_no_machine() -> None:
    """Refused, with what to give."""
    with pytest.raises(PlanRefused, match="--replicas"):
        compose(planned(replicas=100, max_replicas=200))


def test_the_gateway_stands_before_them() -> None:
    """A supervisor with control plane and workers, on the loopback, with volumes for what must outlive it; and its part of the
    configuration names the engines as Compose does.
    """
    file = compose(planned(replicas=2), workers=3)
    gateway = file["services"]["gateway"]
    assert gateway["command"][:2] == ["weighbridge", "serve"]
    assert gateway["command"][-2:] == ["--workers", "3"]
    assert set(gateway["depends_on"]) == {"h100-0", "h100-1"}
    assert gateway["ports"] == ["127.0.0.1:8080:8080"]
    assert [each["url"] for each in gateway_replicas(planned(replicas=2))] == [
        "http://h100-0:8000",
        "http://h100-1:8000",
    ]
    named = {each.split(":")[0] for service in file["services"].values() for each in service["volumes"]}
    assert named - {"./gateway.yaml"} == set(file["volumes"])


def test_secrets_come_from_the_environment_and_are_asked_for() -> None:
    """The engines' key and the pepper always, the hub's token where the weights are gated; no event port is published."""
    file = compose(planned(replicas=1))
    (engine,) = engines(file)
    assert engine["environment"]["VLLM_API_KEY"].startswith("${ENGINE_KEY:?")
    assert engine["environment"]["HF_TOKEN"].startswith("${HF_TOKEN:?")
    assert file["services"]["gateway"]["environment"]["WEIGHBRIDGE_PEPPER"].startswith("${WEIGHBRIDGE_PEPPER:?")
    assert all(port.endswith(":8000") for port in engine["ports"])
    (open_one,) = engines(compose(planned(replicas=1, repository="Qwen/Qwen3-30B-A3B")))
    assert open_one["environment"]["HF_TOKEN"] == "${HF_TOKEN:-}"


def test_a_replica_of_two_nodes_is_no_machine() -> None:
    """Refused, with what to do instead."""
    with pytest.raises(PlanRefused, match="k8s"):
        compose(planned(nodes=2, gpus=16, replicas=1))
