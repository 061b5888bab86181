"""Renders a pool as Ray Serve's LLM application, an alternative in which Ray balances and scales behind one address.

It gives up the gateway's own choice by prefix and load, its view of each replica, and its autoscaler.
"""

import json
import math
from typing import Any, Final

from planner.plans.plan_errors import PlanRefused
from planner.plans.serving import Serving, checked

# Of the HTTP server, which Ray has its own of.
_SERVER: Final = frozenset({"host", "port", "served-model-name", "enable-prompt-tokens-details", "shutdown-timeout"})
# Ray's own names; of another one it is left out, and Ray takes any GPU.
_ACCELERATORS: Final = ("B200", "H100", "H200", "A100", "L40S", "L4")


def ray_serve(serving: Serving) -> dict[str, Any]:
    """Return the configuration for `serve run FILE` or a RayService's serveConfigV2. Raises PlanRefused."""
    checked(serving)
    if serving.command[:2] != ("vllm", "serve") or serving.repository is None:
        raise PlanRefused("Ray Serve LLM starts vLLM itself, so it is rendered from a plan: --plan plan.json")
    config: dict[str, Any] = {
        "model_loading_config": {"model_id": serving.model, "model_source": serving.repository},
        "engine_kwargs": engine_arguments(serving.command[3:]),
        "deployment_config": {
            "autoscaling_config": {
                "min_replicas": serving.min_replicas,
                "initial_replicas": min(max(serving.replicas, serving.min_replicas), serving.max_replicas),
                "max_replicas": serving.max_replicas,
                "target_ongoing_requests": _target(serving),
            },
            "max_ongoing_requests": _ongoing(serving),
            "graceful_shutdown_timeout_s": math.ceil(serving.drain_s),
        },
    }
    accelerator = next((each for each in _ACCELERATORS if each in (serving.gpu_title or "").split()), None)
    if accelerator is not None:
        config["accelerator_type"] = accelerator
    if serving.environment:
        config["runtime_env"] = {"env_vars": dict(serving.environment)}
    return {
        "applications": [
            {
                "name": serving.name,
                "route_prefix": "/",
                "import_path": "ray.serve.llm:build_openai_app",
                "args": {"llm_configs": [config]},
            }
        ]
    }


def engine_arguments(words: tuple[str, ...]) -> dict[str, Any]:
    """Return vLLM flags as a mapping of EngineArgs fields. Raises PlanRefused for a word that is no flag."""
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--"):
            raise PlanRefused(f"`{flag[:80]}` is no flag of vLLM")
        value: Any = True if not rest or rest[0].startswith("--") else _typed(rest.pop(0))
        if flag[2:] not in _SERVER:
            found[flag[2:].replace("-", "_")] = value
    return found


def _typed(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float | dict) and not isinstance(value, bool) else text


def _target(serving: Serving) -> int:
    """Return the requests a replica beyond which Ray starts another one: what the plan runs within its targets."""
    most = _ongoing(serving)
    return max(1, min(most, most * 7 // 10 if serving.running is None else math.ceil(serving.running)))


def _ongoing(serving: Serving) -> int:
    value = engine_arguments(serving.command[3:]).get("max_num_seqs")
    return value if isinstance(value, int) else 256
