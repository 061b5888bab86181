"""Renders a pool for one machine as a Docker Compose file, with GPUs of its own for each replica."""

import math
from typing import Any

from selfhosted.offline.plans.plan_errors import PlanRefused
from selfhosted.offline.plans.serving import Serving, checked

_MOST_HERE = 16


def compose(serving: Serving, *, first_port: int = 8_100) -> dict[str, Any]:
    """The Compose file, with one service for each replica: Compose's own `replicas` would give all of them the same
    GPUs. Raises PlanRefused.
    """
    checked(serving)
    if serving.replicas * serving.gpus > _MOST_HERE:
        raise PlanRefused(
            f"{serving.replicas} replicas of {serving.gpus} GPUs are more than one machine has; give --replicas"
        )
    return {
        "name": serving.name,
        "services": {
            f"{serving.name}-{index}": _replica(serving, index, first_port + index) for index in range(serving.replicas)
        },
        "volumes": {"weights": {}},
    }


def _replica(serving: Serving, index: int, port: int) -> dict[str, Any]:
    first = index * serving.gpus
    devices = [str(device) for device in range(first, first + serving.gpus)]
    words = [word.replace("$(POD_NAME)", f"{serving.name}-{index}").replace("$$(", "$(") for word in serving.command]
    return {
        "image": serving.image,
        # Compose interpolates variables, so literal dollars are doubled.
        "entrypoint": [words[0].replace("$", "$$")],
        "command": [word.replace("$", "$$") for word in words[1:]],
        "environment": {
            "HF_HOME": "/models",
            "VLLM_NO_USAGE_STATS": "1",
            **{name: value.replace("$", "$$") for name, value in serving.environment.items()},
        },
        "ports": [f"127.0.0.1:{port}:{serving.port}"],
        "volumes": ["weights:/models"],
        "shm_size": "16gb",
        "stop_grace_period": f"{math.ceil(serving.drain_s) + 30}s",
        "restart": "unless-stopped",
        "healthcheck": {
            "test": ["CMD", "curl", "-sf", f"http://127.0.0.1:{serving.port}/health"],
            "interval": "10s",
            "timeout": "5s",
            "retries": 6,
            "start_period": f"{max(1_200, math.ceil(4 * serving.cold_start_s))}s",
        },
        "deploy": {
            "resources": {
                "reservations": {"devices": [{"driver": "nvidia", "device_ids": devices, "capabilities": ["gpu"]}]}
            }
        },
    }
