"""Handing out, replacing and ending keys."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from accounts.keys import digest_key
from api.budgets.change import put_budget
from api.keys.change import (
    block_key,
    create_key,
    newest_working,
    put_key,
    read_keys,
    revoke_key,
    rotate_key,
    set_key_expiry,
)
from api.limits.change import put_limit, read_limit
from cost.budgets.budget import Budget
from cost.budgets.store import BudgetStore
from proxy.admit.limits.limit import Limits
from proxy.admit.limits.rules import Place, Rule
from proxy.admit.limits.store import LimitStore
from proxy.errors import BadRequest, KeyNotFound, NameTaken, NotAllowed
from proxy.plan.known_names import KnownNames
from settings.key_ids import first_id
from tests.api.changes.bench import ANN, PEPPER, Bench

LATER = datetime.now(UTC) + timedelta(days=30)


async def test_putting_a_key_twice_makes_one(bench: Bench) -> None:
    """The second time nothing is made, nothing told and nothing logged."""
    made, minted = await put_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=False)
    again, nothing = await put_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=False)
    assert minted is not None
    assert nothing is None
    assert again == made
    (stored,) = await bench.accounts.find_keys([digest_key(minted.plaintext, PEPPER).hex()])
    assert stored is not None
    assert (stored.key_id, stored.team_id) == (made.key_id, "red")
    assert [entry[:2] for entry in await bench.entries()] == [("key.created", "key")]


async def test_putting_another_expiry_changes_the_key(bench: Bench) -> None:
    """The same key gets the new end, and the log has both."""
    made, _ = await put_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=False)
    changed, minted = await put_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=False, expires_at=LATER)
    assert minted is None
    assert (changed.key_id, changed.expires_at) == (made.key_id, LATER)
    action, _, before, after = (await bench.entries())[-1]
    assert (action, before["expires_at"]) == ("key.changed", None)
    assert after["expires_at"] is not None


async def test_many_at_once_make_one_key(bench: Bench) -> None:
    """Whoever puts the same name at the same time gets the same key, and one of them its text."""
    found = await asyncio.gather(*(put_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=False) for _ in range(4)))
    assert len({key.key_id for key, _ in found}) == 1
    assert sum(minted is not None for _, minted in found) == 1
    assert len(await bench.entries()) == 1


async def test_making_a_key_whose_name_works_is_refused(bench: Bench) -> None:
    """A form that is sent twice makes one key; once it is revoked the name is free."""
    made, _ = await create_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=False)
    with pytest.raises(NameTaken, match="ci"):
        await create_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=False)
    await revoke_key(bench.log, ANN, bench.team, made.key_id, may_all=False)
    await create_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=False)


@pytest.mark.parametrize("role", ["finance", "admin"])
async def test_a_team_administrator_never_gets_a_key_of_the_organisation(bench: Bench, role: str) -> None:
    """Making one, replacing one, which would tell it, ending one and moving its end are refused."""
    with pytest.raises(NotAllowed):
        await put_key(bench.log, ANN, bench.team, "books", PEPPER, may_all=False, role=role)  # type: ignore[arg-type]
    made, _ = await create_key(bench.log, ANN, bench.team, "books", PEPPER, may_all=True, role=role)  # type: ignore[arg-type]
    before = await bench.entries()
    with pytest.raises(NotAllowed):
        await rotate_key(bench.log, ANN, bench.team, made.key_id, PEPPER, overlap_s=0, may_all=False)
    with pytest.raises(NotAllowed):
        await revoke_key(bench.log, ANN, bench.team, made.key_id, may_all=False)
    with pytest.raises(NotAllowed):
        await set_key_expiry(bench.log, ANN, bench.team, made.key_id, LATER, may_all=False)
    with pytest.raises(NotAllowed):
        await put_key(bench.log, ANN, bench.team, "books", PEPPER, may_all=False, role=role, expires_at=LATER)  # type: ignore[arg-type]
    assert await bench.entries() == before
    assert (await read_keys(bench.accounts, bench.team))[0].revoked_at is None


async def test_a_role_never_changes(bench: Bench) -> None:
    """Whoever puts another role is told, and the key stays as it is."""
    await put_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=True)
    with pytest.raises(NameTaken, match="role"):
        await put_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=True, role="admin")


async def test_a_rotation_overlaps(bench: Bench) -> None:
    """Both keys work until the overlap ends, never longer than the old one would have; the name means the new one."""
    old, _ = await create_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=False, expires_at=LATER)
    new, minted = await rotate_key(bench.log, ANN, bench.team, old.key_id, PEPPER, overlap_s=3600, may_all=False)
    keys = await read_keys(bench.accounts, bench.team)
    now = datetime.now(UTC)
    assert [key.works_at(now) for key in keys] == [True, True]
    was = next(key for key in keys if key.key_id == old.key_id)
    assert was.expires_at is not None
    assert timedelta(minutes=59) < was.expires_at - now <= timedelta(hours=1)
    assert (new.name, new.role, new.expires_at) == ("ci", "member", LATER)
    assert minted.key_id == new.key_id
    assert newest_working(keys, "ci", now) == new
    assert [entry[0] for entry in await bench.entries()] == ["key.created", "key.rotated", "key.rotated"]
    with pytest.raises(NameTaken, match="newer"):
        await rotate_key(bench.log, ANN, bench.team, old.key_id, PEPPER, overlap_s=3600, may_all=False)


async def test_a_rotation_does_not_prolong_the_old_key(bench: Bench) -> None:
    """An overlap longer than what the old key had left changes nothing of it."""
    soon = datetime.now(UTC) + timedelta(minutes=5)
    old, _ = await create_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=False, expires_at=soon)
    await rotate_key(bench.log, ANN, bench.team, old.key_id, PEPPER, overlap_s=86_400, may_all=False)
    assert (await bench.accounts.key_of("acme", "red", old.key_id)).expires_at == soon


async def test_a_rotation_without_overlap_revokes(bench: Bench) -> None:
    """The old key is refused at once, and is replaced by nothing any more."""
    old, _ = await create_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=False)
    await rotate_key(bench.log, ANN, bench.team, old.key_id, PEPPER, overlap_s=0, may_all=False)
    assert (await bench.accounts.key_of("acme", "red", old.key_id)).revoked_at is not None
    with pytest.raises(KeyNotFound):
        await rotate_key(bench.log, ANN, bench.team, old.key_id, PEPPER, overlap_s=0, may_all=False)


async def test_limits_and_budgets_follow_a_rotation(bench: Bench) -> None:
    """A rotation lifts no bound: however often a key is replaced, its successors share its limits and its budget."""
    first, _ = await create_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=False)
    limits = Limits(requests_per_minute=7)
    await put_limit(
        bench.log, ANN, "acme", Rule(place=Place("key", first.key_id), limits=limits), names=KnownNames.empty()
    )
    budget = Budget(
        budget_id="b1",
        organisation_id="acme",
        scope="key",
        scope_id=first.key_id,
        period="month",
        kind="hard",
        limit_nanousd=5 * 10**9,
    )
    await put_budget(bench.log, ANN, budget, webhooks=frozenset(), names=KnownNames.empty())
    second, _ = await rotate_key(bench.log, ANN, bench.team, first.key_id, PEPPER, overlap_s=60, may_all=False)
    await revoke_key(bench.log, ANN, bench.team, first.key_id, may_all=False)
    third, _ = await rotate_key(bench.log, ANN, bench.team, second.key_id, PEPPER, overlap_s=60, may_all=False)
    assert {first_id(each.key_id) for each in (first, second, third)} == {first.key_id}
    assert len({first.key_id, second.key_id, third.key_id}) == 3
    assert await _limited(bench) == {first.key_id: 7}
    assert await _budgeted(bench) == {first.key_id: 5 * 10**9}
    limit = await read_limit(LimitStore(bench.engine), bench.accounts, "acme", Place("key", third.key_id))
    assert limit.limits == limits


async def test_a_block_names_all_keys_of_a_rotation(bench: Bench) -> None:
    """All are blocked, so the entry says which; one that is revoked or another key is not among them, and twice is once."""
    first, _ = await create_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=False)
    second, _ = await rotate_key(bench.log, ANN, bench.team, first.key_id, PEPPER, overlap_s=3600, may_all=False)
    third, _ = await rotate_key(bench.log, ANN, bench.team, second.key_id, PEPPER, overlap_s=3600, may_all=False)
    await create_key(bench.log, ANN, bench.team, "other", PEPPER, may_all=False)
    await revoke_key(bench.log, ANN, bench.team, second.key_id, may_all=False)
    for blocked in (True, True, False):
        await block_key(bench.log, ANN, bench.team, third.key_id, blocked=blocked, may_all=False)
    told = [(action, after.get("also")) for action, _, _, after in await bench.entries() if "block" in action]
    assert told == [("key.blocked", [first.key_id]), ("key.unblocked", [first.key_id])]


async def test_revoking_twice_is_the_same(bench: Bench) -> None:
    """The first moment stays, and the log has it once."""
    made, _ = await create_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=False)
    once = await revoke_key(bench.log, ANN, bench.team, made.key_id, may_all=False)
    assert await revoke_key(bench.log, ANN, bench.team, made.key_id, may_all=False) == once
    assert [entry[0] for entry in await bench.entries()] == ["key.created", "key.revoked"]


async def test_an_expiry_lies_ahead(bench: Bench) -> None:
    """A past one and one without a zone are refused; what is revoked gets none."""
    past = datetime.now(UTC) - timedelta(seconds=1)
    for expires_at in (past, datetime(2090, 1, 1)):  # noqa: DTZ001 - it is to be refused
        with pytest.raises(BadRequest):
            await create_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=False, expires_at=expires_at)
    made, _ = await create_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=False)
    changed = await set_key_expiry(bench.log, ANN, bench.team, made.key_id, LATER, may_all=False)
    assert changed.expires_at == LATER
    await revoke_key(bench.log, ANN, bench.team, made.key_id, may_all=False)
    with pytest.raises(KeyNotFound):
        await set_key_expiry(bench.log, ANN, bench.team, made.key_id, None, may_all=False)


async def test_another_teams_key_is_unknown(bench: Bench) -> None:
    """Whatever is tried on it through one's own team says the same as for no key at all."""
    theirs, _ = await create_key(bench.log, ANN, bench.other, "ci", PEPPER, may_all=True)
    for key_id in (theirs.key_id, "key_nothing"):
        with pytest.raises(KeyNotFound):
            await revoke_key(bench.log, ANN, bench.team, key_id, may_all=True)
        with pytest.raises(KeyNotFound):
            await rotate_key(bench.log, ANN, bench.team, key_id, PEPPER, overlap_s=0, may_all=True)
        with pytest.raises(KeyNotFound):
            await set_key_expiry(bench.log, ANN, bench.team, key_id, LATER, may_all=True)
    assert (await read_keys(bench.accounts, bench.other))[0].works_at(datetime.now(UTC))


async def test_no_key_stands_in_the_log(bench: Bench) -> None:
    """The audit log has the key's last four characters and nothing else of it."""
    _, minted = await create_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=False)
    (_, _, before, after) = (await bench.entries())[0]
    assert before is None
    assert after["last4"] == minted.plaintext[-4:]
    assert minted.plaintext[:-4] not in str(after)
    assert minted.digest not in str(after)


async def _limited(bench: Bench) -> dict[str, int | None]:
    rules = await LimitStore(bench.engine).of_team("acme", "red")
    return {rule.place.scope_id: rule.limits.requests_per_minute for rule in rules}


async def _budgeted(bench: Bench) -> dict[str, int]:
    found = await BudgetStore(bench.engine).of_organisation("acme")
    return {each.budget.scope_id: each.budget.limit_nanousd for each in found}
