"""Renders the gateway's configuration for a planned pool: routing, billing and queueing."""

from decimal import Decimal
from typing import Any, Final

from planner.plans.launch import READ_AHEAD_TOKENS
from planner.plans.planning import Plan
from planner.plans.render_compose import gateway_replicas
from planner.plans.serving import Serving, checked

_KEEPS: Final = frozenset({"--enable-prefix-caching", "--enable-prompt-tokens-details"})
"""With these flags an engine keeps the pieces of a prompt, and tells so."""


def gateway_snippet(plan: Plan, serving: Serving, *, one_machine: bool = False) -> dict[str, Any]:
    """Return the sections `selfhosted.pools`, `cost.pools` and `queues`, to be merged into gateway.yaml: for engines behind a
    Kubernetes Service, or for those of `render compose` on one machine, whose number nobody changes.

    The queue has no size of its own: it lets in what the KV caches of the ready replicas hold, however many those are.
    """
    checked(serving)
    pool: dict[str, Any] = {
        "name": serving.pool,
        "targets": [serving.model],
        "engine": "vllm",
        "upstream_model": serving.model,
        **({"replicas": gateway_replicas(serving)} if one_machine else _scaled(plan, serving)),
        "priority_scheduling": "--scheduling-policy" in serving.command,
        "max_num_seqs": plan.limits.sequences,
        **({} if serving.ranks == 1 else {"data_parallel_ranks": serving.ranks}),
        "read_ahead_tokens": READ_AHEAD_TOKENS if set(serving.command) >= _KEEPS else 0,
        "hardware": {
            "flops_per_token": 2.0 * plan.model.active_parameters,
            "peak_flops": plan.gpu.flops(plan.precision) * plan.launch.gpus,
        },
    }
    if serving.key_secret is not None:
        pool["api_key"] = "env:ENGINE_KEY"
    ports = dict(serving.kv_ports)
    if ports:
        pool["watch"] = {"kv_events_port": ports["kv-events"], "kv_replay_port": ports["kv-replay"]}
    snippet: dict[str, Any] = {"selfhosted": {"pools": [pool]}}
    if plan.cost is not None:
        weights = plan.seconds_per_million
        snippet["cost"] = {
            "pools": [
                {
                    "name": serving.pool,
                    "targets": [serving.model],
                    "replicas": serving.replicas,
                    "gpus_per_replica": serving.gpus,
                    "usd_per_gpu_hour": _number(plan.cost.usd_per_gpu_hour),
                    "overhead": _number(plan.cost.overhead),
                    "seconds_per_million": {
                        "input": round(weights.input, 3),
                        "cached_input": round(weights.cached_input, 3),
                        "output": round(weights.output, 3),
                    },
                }
            ]
        }
    snippet["queues"] = {serving.pool: {"targets": [serving.model]}}
    return snippet


def _scaled(plan: Plan, serving: Serving) -> dict[str, Any]:
    return {
        "kubernetes": {"service": serving.name, "namespace": serving.namespace, "port": "http"},
        "scale": {
            "min_replicas": serving.min_replicas,
            "max_replicas": serving.max_replicas,
            "cold_start_s": serving.cold_start_s,
            **({} if plan.targets.ttft_p99_s is None else {"ttft_target_s": plan.targets.ttft_p99_s}),
            **({} if plan.targets.tpot_p99_s is None else {"tpot_target_s": plan.targets.tpot_p99_s}),
        },
    }


def _number(value: Decimal) -> int | float:
    """Return the value as an int where it is whole. The configuration reads numbers by their digits, so nothing is lost on the
    way.
    """
    return int(value) if value == value.to_integral_value() else float(value)
