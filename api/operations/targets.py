"""Targets and their deployments with circuit breakers, last errors, and figures of the last minutes, as plain values."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from api.live.recent import WINDOW_US, Figures, Recent, Run
from api.live.workers import WorkersNow
from api.operations.masked import address
from cost.times import iso
from providers.breaker import BreakerSnapshot, Fault
from providers.catalog import Catalog
from providers.target import Deployment, Target

FAULTS: Final = {
    "ConnectFailed": "no connection",
    "UpstreamUnavailable": "it answered that it cannot serve",
    "AnswerLost": "the connection was lost before an answer came",
    "UpstreamRateLimited": "it refused for its rate limit",
    "UpstreamOverloaded": "it has too much to do",
    "FirstTokenTimeout": "no first token in time",
    "UpstreamTimeout": "it stopped answering",
    "ReplicaSilent": "the replica went down before a word",
    "StreamCut": "the answer broke off",
    "MalformedReply": "what it sent was no answer",
    "UpstreamRefusedUs": "it refused our key, account, permission or model name",
    "DeadlineExceeded": "no first token until the deadline",
}
"""Error classes in words."""

WHY: Final = {
    "failing": "it failed several times in a row",
    "key": "its provider refuses our key",
    "credit": "our credit there is used up",
    "quota": "our quota there is used up",
    "permission": "our account may not call it",
    "model": "its provider does not have the model",
    "address": "its address is wrong",
    "rate": "its provider's rate limit is reached",
    "limit": "its `requests_per_minute` or `tokens_per_minute` is used up",
    "overloaded": "its provider has too much to do",
}
"""Reasons for not calling a deployment, in words."""

Ready = Callable[[Target], Sequence[Deployment]]
"""Returns the deployments that a target has now: of a pool's target those replicas that take work."""


def target_snapshots(
    catalog: Catalog,
    workers: WorkersNow,
    ready: Ready,
    recent: Recent,
    now_us: int,
    refused: Mapping[str, frozenset[str]] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Return every target of the catalog and every wildcard, in their order, as plain values. `refused` are the parameters
    that targets refused lately.
    """
    return [
        {
            **_target(target, workers, ready, recent, now_us),
            "refused_parameters": sorted(refused.get(target.target_id, ())),
        }
        for target in catalog
    ]


def _target(target: Target, workers: WorkersNow, ready: Ready, recent: Recent, now_us: int) -> dict[str, Any]:
    deployments = [_deployment(each, workers, recent, now_us) for each in target.deployments]
    available = sum(workers.is_called(each.deployment_id) for each in ready(target))
    run = recent.runs.get(target.target_id)
    return {
        "target_id": target.target_id,
        "provider": target.provider,
        "pool": target.pool,
        "tiers": sorted(target.tiers),
        "state": _state(len(deployments), available, deployments, is_failing=run is not None and run.is_failing),
        "run": _run_snapshot(run),
        "why": _why(deployments, now_us),
        "available": available,
        # The names that a wildcard stands for have prices of their own.
        "is_priced": target.price is not None or target.target_id.endswith("*"),
        "price_version": None if target.price is None else target.price.version,
        "late": [[*who, count] for who, count in recent.late.get(target.target_id, {}).items()],
        "routing_weight": target.routing_weight,
        "recent": figures_snapshot(recent.by_target.get(target.target_id)),
        "deployments": deployments,
    }


def _run_snapshot(run: Run | None) -> dict[str, Any]:
    """Return the run of failures as plain values."""
    if run is None:
        return {
            "failures": 0,
            "since_us": None,
            "first_us": None,
            "teams": 0,
            "minute_attempts": 0,
            "minute_failures": 0,
            "before": 0,
        }
    return msgspec.structs.asdict(run)


def _state(there: int, available: int, deployments: list[dict[str, Any]], *, is_failing: bool) -> str:
    """Return `ok`, `degraded`, `failing`, `down`, or `empty` for a pool's target without replicas."""
    if not there:
        return "empty"
    if not available:
        return "down"
    if is_failing:
        return "failing"
    closed = all(each["breaker"]["state"] == "closed" for each in deployments)
    return "ok" if closed and available == there else "degraded"


def _why(deployments: list[dict[str, Any]], now_us: int) -> str | None:
    """Return the cause in words: why a deployment is not called now, else the latest error of the last minutes; None without one."""
    found = [(error, each["breaker"]) for each in deployments for error in each["errors"]]
    out_of_use = [each for each in found if each[1]["state"] != "closed"]
    recent = [each for each in found if each[0]["at_us"] >= now_us - WINDOW_US]
    if not (out_of_use or recent):
        return next((each["breaker"]["why"] for each in deployments if each["breaker"]["why"]), None)
    error, breaker = max(out_of_use or recent, key=lambda each: int(each[0]["at_us"]))
    failed = breaker["why"] in {None, WHY["failing"]} or breaker["state"] == "closed"
    text = error["text"] if failed else breaker["why"]
    status = "" if error["status"] is None else str(error["status"])
    said = "" if error["said"] is None else f"“{error['said']}”"
    told = ": ".join(filter(None, (status, said)))
    return f"{text} ({told})" if told else str(text)


def _deployment(deployment: Deployment, workers: WorkersNow, recent: Recent, now_us: int) -> dict[str, Any]:
    look = workers.breaker(deployment.deployment_id)
    return {
        "deployment_id": deployment.deployment_id,
        "kind": deployment.kind,
        "address": address(deployment.base_url) if deployment.base_url else None,
        "weight": deployment.weight,
        "breaker": _breaker(look),
        "errors": [_fault(ago_s, fault, now_us) for ago_s, fault in look.faults],
        "recent": figures_snapshot(recent.by_deployment.get(deployment.deployment_id)),
    }


def _breaker(look: BreakerSnapshot) -> dict[str, Any]:
    return {
        "state": look.state,
        "opens_again_s": None if look.opens_again_s is None else round(look.opens_again_s, 1),
        "failures_in_row": look.failures,
        "ejections": look.ejections,
        "why": WHY.get(look.why, look.why) or None,
        "only_for": look.only_for,
    }


def _fault(ago_s: float, fault: Fault, now_us: int) -> dict[str, Any]:
    at_us = now_us - int(ago_s * 1_000_000)
    return {
        "at": iso(at_us),
        "at_us": at_us,
        "kind": fault.kind,
        "text": FAULTS.get(fault.kind, fault.kind),
        "status": fault.status,
        "counted": fault.counted,
        "said": fault.detail or None,
    }


def figures_snapshot(found: Figures | None) -> dict[str, Any]:
    """Return figures as plain values; unknown ones are None, never 0."""
    if found is None:
        return {**dict.fromkeys(_FIGURES), "attempts": 0, "failed": 0, "turned_away": 0}
    return {
        "attempts": found.attempts,
        "failed": found.failed,
        "turned_away": found.turned_away,
        "failed_share": _rounded(found.failed_share),
        "ttft_p50_s": _rounded(found.ttft_p50_s),
        "ttft_p95_s": _rounded(found.ttft_p95_s),
        "model_ttft_p50_s": _rounded(found.model_ttft_p50_s),
        "model_ttft_p95_s": _rounded(found.model_ttft_p95_s),
        "sure_ttft_p50_s": _rounded(found.sure_ttft_p50_s),
        "sure_ttft_p95_s": _rounded(found.sure_ttft_p95_s),
        "usual_model_ttft_p50_s": _rounded(found.usual_model_ttft_s),
        "tokens_per_s": _rounded(found.tokens_per_s),
    }


_FIGURES: Final = (
    "failed_share",
    "ttft_p50_s",
    "ttft_p95_s",
    "model_ttft_p50_s",
    "model_ttft_p95_s",
    "sure_ttft_p50_s",
    "sure_ttft_p95_s",
    "usual_model_ttft_p50_s",
    "tokens_per_s",
)
_PLACES: Final = 4


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _PLACES)
