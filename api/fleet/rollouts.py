"""Versions and rollouts as operators and the rule change them, each step with its audit entry."""

from collections.abc import Collection, Sequence
from typing import Any, Literal

import msgspec

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from api.web.gateway import Gateway
from cost.times import iso, wall_us
from selfhosted.config import PoolConfig
from selfhosted.rollouts.comparison import Compared, compared
from selfhosted.rollouts.reading import Samples
from selfhosted.rollouts.store import RolloutStore
from selfhosted.rollouts.versions import (
    PPM,
    ModelVersion,
    Rollout,
    RolloutConflict,
    Rule,
    VersionUnknown,
    missing,
    promoted,
    rolled_back,
    started,
)


class ModelUnknown(VersionUnknown):
    """No pool serves the model. The message names those that are served."""


def pool_of_model(pools: Sequence[PoolConfig], model: str) -> str:
    """Return the pool whose versions are registered under this name: its first target. Raises ModelUnknown."""
    for pool in pools:
        if model == pool.targets[0]:
            return pool.name
        if model in pool.targets:
            raise ModelUnknown(f"{model} is another name of {pool.targets[0]} in the pool {pool.name}; name that one")
        if any(model == adapter.target for adapter in pool.adapters):
            raise ModelUnknown(f"{model} is an adapter of {pool.targets[0]}, and has no replicas of its own to share")
    known = ", ".join(pool.targets[0] for pool in pools[:20]) or "there is none: see selfhosted.pools"
    raise ModelUnknown(f"no pool serves {model[:128]}; models of our own: {known}")


def ready_versions(gateway: Gateway, pool: str) -> set[str] | None:
    """Return the versions of the pool's replicas that take work; None where there is no such pool here."""
    view = gateway.views.fleet
    watched = None if view is None else view.pools.get(pool)
    if watched is None:
        return None
    return {each.address.version for each in watched.snapshot().replicas if each.state == "ready"}


def check_registrable(pools: Sequence[PoolConfig], version: ModelVersion) -> None:
    """Check that a pool serves the model or adapter, as configured. Raises ModelUnknown."""
    if version.kind == "weights":
        pool_of_model(pools, version.model)
        return
    for pool in pools:
        if any(version.model == adapter.target for adapter in pool.adapters):
            if version.base != pool.targets[0]:
                raise ModelUnknown(f"{version.model} is an adapter of {pool.targets[0]}, not of {version.base[:128]}")
            return
    raise ModelUnknown(f"no pool has an adapter whose target is {version.model[:128]}; see selfhosted.pools[].adapters")


async def add_version(log: AuditLog, actor: Actor, version: ModelVersion) -> ModelVersion:
    """Register a version. Raises BadVersion, VersionExists and RolloutConflict."""
    version = msgspec.structs.replace(version, added_us=wall_us(), added_by=actor.name)
    async with log.change(actor, "model_version.added", reason=version.note) as change:
        await RolloutStore(change.within).add(version)
        told = {name: value for name, value in msgspec.structs.asdict(version).items() if value}
        change.tell("model_version", f"{version.model}/{version.version}", None, told)
    return version


async def start_canary(
    log: AuditLog,
    actor: Actor,
    model: str,
    pool: str,
    version: str,
    *,
    share_ppm: int,
    rule: Rule,
    reason: str = "",
) -> Rollout:
    """Give a version a share of the pool's conversations. Raises VersionUnknown and RolloutConflict."""
    async with log.change(actor, "rollout.canary", reason=reason) as change:
        store = RolloutStore(change.within)
        await store.version(model, version)
        before = msgspec.structs.replace(await store.rollout(model, pool), pool=pool)
        after = started(before, version, share_ppm, rule, by=actor.name, reason=reason, now_us=wall_us())
        await store.save(before, after)
        change.tell("rollout", model, before.told if before.since_us else None, after.told)
    return after


async def promote(
    log: AuditLog,
    actor: Actor,
    model: str,
    pool: str,
    version: str | None = None,
    *,
    reason: str = "",
    seen: Rollout | None = None,
) -> Rollout:
    """Give a version all conversations; without one, the version on trial. `seen` is the rollout on which the step was
    decided. Raises VersionUnknown, and RolloutConflict, also when a later step was taken than the one seen.
    """
    async with log.change(actor, "rollout.promoted", reason=reason) as change:
        store = RolloutStore(change.within)
        before = msgspec.structs.replace(await store.rollout(model, pool), pool=pool)
        _check_seen(before, seen)
        chosen = version or (before.candidate if before.state == "canary" else "")
        if not chosen:
            raise RolloutConflict(f"no version of {model} is on trial; say which one to promote")
        await store.version(model, chosen)
        after = promoted(before, chosen, by=actor.name, reason=reason, now_us=wall_us())
        await store.save(before, after)
        change.tell("rollout", model, before.told if before.since_us else None, after.told)
    return after


async def roll_back(
    log: AuditLog, actor: Actor, model: str, *, reason: str = "", seen: Rollout | None = None
) -> Rollout:
    """Take all conversations from the version on trial. `seen` is what the step was decided on. Raises
    RolloutConflict, also when a later step was taken than the one seen.
    """
    async with log.change(actor, "rollout.rolled_back", reason=reason) as change:
        store = RolloutStore(change.within)
        before = await store.rollout(model, "")
        _check_seen(before, seen)
        after = rolled_back(before, by=actor.name, reason=reason, now_us=wall_us())
        await store.save(before, after)
        change.tell("rollout", model, before.told, after.told)
    return after


def _check_seen(before: Rollout, seen: Rollout | None) -> None:
    if seen is not None and before.since_us != seen.since_us:
        raise RolloutConflict(f"the rollout of {before.model} was changed meanwhile; look at it again")


def version_as_json(version: ModelVersion) -> dict[str, Any]:
    """Return the JSON object of a version; what is unknown is null."""
    plain = {name: value or None for name, value in msgspec.structs.asdict(version).items()}
    plain |= {"arguments": list(version.arguments), "adapters": list(version.adapters)}
    del plain["added_us"]
    return {"object": "model_version", **plain, "added_at": iso(version.added_us)}


def rollout_as_json(rollout: Rollout, ready: Collection[str] | None = None) -> dict[str, Any]:
    """Return the JSON object of a rollout. `ready` are the versions of its pool's replicas that take work, where they are known."""
    return {
        "object": "rollout",
        "model": rollout.model,
        "pool": rollout.pool,
        "state": rollout.state,
        "stable": rollout.stable or None,
        "candidate": rollout.candidate or None,
        "percent": rollout.share_ppm * 100 / PPM,
        "missing": None if ready is None else missing(rollout, ready) or None,
        "since": iso(rollout.since_us),
        "changed_by": rollout.changed_by,
        "reason": rollout.reason,
        "rule": msgspec.structs.asdict(rollout.rule),
    }


def comparison_as_json(samples: Samples) -> dict[str, Any]:
    """Return the JSON object of both versions' figures with their 95 % intervals; what is unknown is null."""
    return {
        "attempts": {"stable": samples.stable.attempts, "candidate": samples.candidate.attempts},
        "is_whole": samples.is_whole,
        "figures": [
            {
                "name": each.name,
                "stable": None if each.stable is None else msgspec.structs.asdict(each.stable),
                "candidate": None if each.candidate is None else msgspec.structs.asdict(each.candidate),
                "difference": None if each.low is None else {"low": each.low, "high": each.high},
                "verdict": verdict_of(each),
            }
            for each in compared(samples.stable, samples.candidate)
        ],
    }


def verdict_of(figure: Compared) -> Literal["worse", "better", "no difference shown", "unknown"]:
    """Return the verdict on the candidate that the interval of the difference allows."""
    if figure.low is None:
        return "unknown"
    return "worse" if figure.is_worse else "better" if figure.is_better else "no difference shown"


def gets(rollout: Rollout | None, version: ModelVersion) -> str:
    """Return a version's share of conversations in words."""
    if version.kind == "adapter":
        return "as it is asked for"
    if rollout is None or not rollout.since_us:
        return "whatever its replicas are given"
    if version.version == rollout.candidate:
        return "nothing, rolled back" if rollout.state == "rolled_back" else f"{rollout.share_ppm * 100 / PPM:g} %"
    rest = f"{100 - rollout.share_ppm * 100 / PPM:g} %"
    if rollout.stable:
        return rest if version.version == rollout.stable else "nothing"
    return f"{rest}, with all but {rollout.candidate}"
