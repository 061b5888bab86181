"""Versions and rollouts in the database, on both kinds of it, and what versions did by the ledger."""

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.learning.store import LearningStore, Verdict
from cost.ledger.entries import Entry
from cost.ledger.store import LedgerStore
from selfhosted.rollouts.reading import VersionReader
from selfhosted.rollouts.store import RolloutStore
from selfhosted.rollouts.versions import (
    ModelVersion,
    Rollout,
    RolloutConflict,
    Rule,
    VersionExists,
    VersionUnknown,
    promoted,
    started,
)
from tests.cost.entries import reserve, settle

NOON_US = reserve().at_us
WHOLE = ModelVersion(
    model="llama",
    version="v2",
    weights="hf://meta/llama",
    digest="a" * 40,
    precision="fp8",
    layout="tp4",
    tokenizer="hf://meta/llama",
    arguments=("--max-model-len", "8192"),
    adapters=("sql",),
    note="longer context",
    added_us=5,
    added_by="ada",
)


async def test_versions_come_back_whole_and_never_change(engine: AsyncEngine) -> None:
    """The newest first; a second of the same name is refused, and another model has its own."""
    store = RolloutStore(engine)
    older = ModelVersion(model="llama", version="v1", weights="/models/llama", added_us=1)
    adapter = ModelVersion(model="sql", version="1", kind="adapter", base="llama", weights="/loras/sql", added_us=9)
    for each in (older, WHOLE, adapter):
        await store.add(each)
    assert await store.versions() == (WHOLE, older, adapter)
    assert await store.versions("sql") == (adapter,)
    assert await store.version("llama", "v2") == WHOLE
    with pytest.raises(VersionExists, match="versions never change"):
        await store.add(msgspec.structs.replace(WHOLE, weights="/elsewhere"))
    with pytest.raises(VersionUnknown, match="models add"):
        await store.version("sql", "v2")


async def test_a_step_is_taken_once(engine: AsyncEngine) -> None:
    """Who looked before another one's step is refused, for the first step too."""
    store = RolloutStore(engine)
    nothing = await store.rollout("llama", "own")
    assert nothing == Rollout(model="llama", pool="own")
    rule = Rule(ttft_worse=None, promote_after=500)
    canary = started(nothing, "v2", 50_000, rule, by="ada", reason="new weights", now_us=NOON_US)
    await store.save(nothing, canary)
    assert await store.rollouts() == await store.rollouts(["own"]) == (canary,)
    assert await store.rollouts(["other"]) == ()
    done = promoted(canary, "v2", by="ada", reason="", now_us=NOON_US)
    await store.save(canary, done)
    assert await store.rollout("llama", "own") == done
    for before in (nothing, canary):
        with pytest.raises(RolloutConflict, match="changed meanwhile"):
            await store.save(before, done)


def attempt(name: str, version: str, **changes: object) -> list[Entry]:
    facts = {"version": version, "at_us": NOON_US + 10, "target_id": "llama", "served": True, **changes}
    return [reserve(name, **facts | {"served": False}), settle(name, **facts)]


async def test_what_versions_did(engine: AsyncEngine) -> None:
    """By the ledger's rows since the last step, of callers and this pool; verdicts are those on these very answers."""
    failed = {"served": False, "status": 502, "flags": ("upstream_error",), "ttft_us": None}
    entries = [
        *attempt("new", "v2", ttft_us=300_000, duration_us=2_290_000, output_tokens=200),
        *attempt("cut", "v2", served=False, flags=("stream_cut",)),
        *attempt("broken", "v2", **failed),
        *attempt("bad-request", "v2", **failed | {"status": 400}),
        *attempt("hung-up", "v2", served=False, status=499, flags=("caller_gone",)),
        *attempt("old", "v1"),
        *attempt("weak", "v0", served=False, flags=("escalated",)),
        *attempt("unversioned", ""),
        *attempt("before", "v2", at_us=NOON_US - 1),
        *attempt("elsewhere", "v2", target_id="other"),
        *attempt("shadow", "v2", origin="shadow"),
    ]
    await LedgerStore(engine).insert(entries)
    verdicts = [
        Verdict(
            request_id=request_id,
            at_us=NOON_US,
            organisation_id="default",
            team_id=team_id,
            target_id="llama",
            source="implicit",
            signal="regenerated",
            adequate=0.0,
        )
        for request_id, team_id in (("new", "team_payments"), ("old", "another_team"), ("cut", "team_payments"))
    ]
    await LearningStore(engine).add_verdicts(verdicts)
    rollout = Rollout(model="llama", pool="own", candidate="v2", share_ppm=50_000, state="canary", since_us=NOON_US)
    found = await VersionReader(engine).samples(rollout, ["llama"], NOON_US + 1_000)
    theirs, ours = found.candidate, found.stable
    assert (theirs.attempts, theirs.failed, theirs.weak) == (5, 2, 0)
    assert (theirs.ttft_s, theirs.tpot_s) == ((0.3,), (0.01,))
    assert theirs.verdicts == {"implicit": (0.0,)}
    assert (ours.attempts, ours.failed, ours.weak, ours.verdicts) == (2, 0, 1, {})
    assert found.is_whole
