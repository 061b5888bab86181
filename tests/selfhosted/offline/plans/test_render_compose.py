"""Compose: one machine, each replica with GPUs of its own."""

import pytest
import yaml

from selfhosted.offline.plans.plan_errors import PlanRefused
from selfhosted.offline.plans.render_compose import compose
from selfhosted.offline.plans.serving import as_yaml
from tests.selfhosted.offline.plans.test_serving import planned


def test_no_two_replicas_share_a_gpu_or_a_port() -> None:
    """Four replicas of two GPUs on a node of eight."""
    services = yaml.safe_load(as_yaml([compose(planned(replicas=4))]))["services"].values()
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
    (service,) = compose(serving)["services"].values()
    assert service["command"] == ["serve", "m", "--x", "$$HOME", "h100-0", "$$(Y)"]


def test_a_fleet_is_no_machine() -> None:
    """Refused, with what to give."""
    with pytest.raises(PlanRefused, match="--replicas"):
        compose(planned(replicas=100, max_replicas=200))
