"""Renders a pool for one machine as a Docker Compose file: engines with GPUs of their own, and the gateway before them."""

import math
from typing import Any, Final

from planner.plans.plan_errors import PlanRefused
from planner.plans.serving import Serving, checked, is_gated

GATEWAY_IMAGE: Final = "weighbridge:local"
_MOST_HERE: Final = 16
_GATEWAY_PORT: Final = 8_080
_GRACE_S: Final = 30
_INSIDE: Final = "engines"


def compose(
    serving: Serving, *, first_port: int = 8_100, workers: int = 2, gateway_image: str = GATEWAY_IMAGE
) -> dict[str, Any]:
    """Return the Compose file, with one service for each replica: Compose's own `replicas` would give all of them the same
    GPUs. The service `gateway` is a supervisor with the control plane and its workers. Raises PlanRefused.
    """
    checked(serving)
    if serving.nodes > 1:
        raise PlanRefused("one machine holds no replica of several nodes; render k8s, or plan a narrower precision")
    if serving.replicas * serving.gpus > _MOST_HERE:
        raise PlanRefused(
            f"{serving.replicas} replicas of {serving.gpus} GPUs are more than one machine has; give --replicas"
        )
    engines = {
        f"{serving.name}-{index}": _replica(serving, index, first_port + index) for index in range(serving.replicas)
    }
    return {
        "name": serving.name,
        "services": {**engines, "gateway": _gateway(list(engines), workers, gateway_image)},
        "volumes": {"weights": {}, "var": {}},
        # KV events have no key of their own: they are read within this network only.
        "networks": {_INSIDE: {}},
    }


def gateway_replicas(serving: Serving) -> list[dict[str, str]]:
    """Return the pool's `replicas` in the gateway's configuration, as the gateway finds them within Compose."""
    names = [f"{serving.name}-{index}" for index in range(serving.replicas)]
    return [{"name": name, "url": f"http://{name}:{serving.port}"} for name in names]


def _gateway(engines: list[str], workers: int, image: str) -> dict[str, Any]:
    return {
        "image": image,
        "command": [
            "weighbridge", "serve", "--config", "/etc/weighbridge/gateway.yaml",
            "--host", "0.0.0.0", "--port", str(_GATEWAY_PORT), "--workers", str(workers),  # noqa: S104 - in its own container
        ],
        "environment": {
            "WEIGHBRIDGE_PEPPER": "${WEIGHBRIDGE_PEPPER:?run: openssl rand -hex 32, and keep it}",
            "ENGINE_KEY": _key(),
        },
        "ports": [f"127.0.0.1:{_GATEWAY_PORT}:{_GATEWAY_PORT}"],
        "volumes": ["./gateway.yaml:/etc/weighbridge/gateway.yaml:ro", "var:/app/var"],
        "networks": [_INSIDE],
        "depends_on": {name: {"condition": "service_started"} for name in engines},
        "stop_grace_period": "10m",
        "restart": "unless-stopped",
    }  # fmt: skip


def _key() -> str:
    return "${ENGINE_KEY:?run: openssl rand -hex 16}"


def _token(serving: Serving) -> str:
    return (
        "${HF_TOKEN:?its weights are gated: a token of an account that accepted the licence}"
        if is_gated(serving)
        else "${HF_TOKEN:-}"
    )


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
            "HF_TOKEN": _token(serving),
            "VLLM_API_KEY": _key(),
            "VLLM_NO_USAGE_STATS": "1",
            **{name: value.replace("$", "$$") for name, value in serving.environment.items()},
        },
        "ports": [f"127.0.0.1:{port}:{serving.port}"],
        "volumes": ["weights:/models"],
        "networks": [_INSIDE],
        "shm_size": "16gb",
        "stop_grace_period": f"{math.ceil(serving.drain_s) + _GRACE_S}s",
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
