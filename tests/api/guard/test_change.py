"""The guard's rules of organisations and teams: kept apart, on SQLite and on PostgreSQL."""

import asyncio
from typing import Any

import pytest

from accounts.caller import Caller
from api.guard.change import add_rule, remove_rule, rules_of, set_rules
from guard.guard_config import MOST_RULES
from guard.inspector import stored
from proxy.errors import BadRequest, ChangesUnavailable
from tests.api.changes.bench import ANN, PEPPER, Bench

MAILS: dict[str, Any] = {"name": "mails", "kind": "pii", "entities": ["email"], "input": "mask"}
WORDS: dict[str, Any] = {"name": "project", "kind": "words", "words": ["bluebird", "redbird"], "input": "block"}


async def caller(bench: Bench, team_id: str) -> Caller:
    """The owner of a new key, as a request has it."""
    minted = await bench.accounts.create_key(team_id, "k", PEPPER)
    (found,) = await bench.accounts.find_keys([minted.digest])
    assert found is not None
    assert await bench.accounts.caller_of(minted.key_id) == found.caller
    return found.caller


async def test_rules_reach_the_callers_of_their_team_and_nobody_else(bench: Bench) -> None:
    """(37, 41) The organisation's and the team's; of another organisation none, whatever its teams are called."""
    assert (await caller(bench, "red")).guard is None
    of_team = await set_rules(bench.log, ANN, "acme", [MAILS], team_id="red")
    of_all = await set_rules(bench.log, ANN, "acme", [WORDS])
    await bench.accounts.create_team("green", organisation_id="acme")
    assert (await caller(bench, "red")).guard == (stored(of_all), stored(of_team))
    assert (await caller(bench, "green")).guard == (stored(of_all), "")
    assert (await caller(bench, "blue")).guard is None
    # Rules under another organisation's name for a team are nobody's.
    await set_rules(bench.log, ANN, "globex", [WORDS], team_id="red")
    assert (await caller(bench, "red")).guard == (stored(of_all), stored(of_team))
    assert (await caller(bench, "blue")).guard is None
    assert await rules_of(bench.accounts, "acme", "red") == of_team


async def test_a_change_is_told_without_its_words(bench: Bench) -> None:
    """A list of words may be a secret itself; setting the same twice is one entry; taking away is told."""
    for _ in range(2):
        await set_rules(bench.log, ANN, "acme", [MAILS, WORDS])
    await set_rules(bench.log, ANN, "acme", [])
    entries = await bench.entries()
    assert [each[0] for each in entries] == ["guard.set", "guard.removed"]
    (_, kind, before, after), (_, _, gone, nothing) = entries
    assert (kind, before, nothing) == ("guard", None, None)
    assert after == gone
    assert after["mails"] == {"kind": "pii", "entities": ["email"], "input": "mask"}
    assert after["project"] == {"kind": "words", "input": "block", "words": 2}
    assert "bluebird" not in str(entries)


async def test_what_is_no_rule_changes_nothing(bench: Bench) -> None:
    """(51)."""
    await set_rules(bench.log, ANN, "acme", [MAILS])
    for bad in ({}, {**MAILS, "entities": ["CREDIT_CARD"]}, {"guardrail_name": "x"}):
        with pytest.raises(BadRequest) as refused:
            await set_rules(bench.log, ANN, "acme", [bad])
        assert refused.value.param == "rules"
    assert [each.name for each in await rules_of(bench.accounts, "acme")] == ["mails"]
    assert len(await bench.entries()) == 1


async def test_one_rule_is_added_and_removed_beside_the_others(bench: Bench) -> None:
    """Each with its entry; a name that is taken, a wrong key and too many are refused by the key they are about."""
    await add_rule(bench.log, ANN, "acme", MAILS, team_id="red")
    await add_rule(bench.log, ANN, "acme", WORDS, team_id="red")
    assert [each.name for each in await rules_of(bench.accounts, "acme", "red")] == ["mails", "project"]
    assert await rules_of(bench.accounts, "acme") == ()
    for wrong, key in (
        (MAILS, "name"),
        ({**MAILS, "name": "Bad Name"}, "name"),
        ({**MAILS, "name": "x", "entities": ["hair"]}, "kind"),
        ({**WORDS, "name": "x", "words": []}, "words"),
    ):
        with pytest.raises(BadRequest) as refused:
            await add_rule(bench.log, ANN, "acme", wrong, team_id="red")
        assert refused.value.param == key
    for _ in range(2):
        await remove_rule(bench.log, ANN, "acme", "mails", team_id="red")
    assert [each.name for each in await rules_of(bench.accounts, "acme", "red")] == ["project"]
    many = [{**WORDS, "name": f"w{number}"} for number in range(MOST_RULES)]
    await set_rules(bench.log, ANN, "acme", many, team_id="red")
    with pytest.raises(BadRequest, match="already"):
        await add_rule(bench.log, ANN, "acme", MAILS, team_id="red")


async def test_two_who_add_at_once_lose_nothing(bench: Bench) -> None:
    """Either both rules are there, or one of the two was told to try again."""
    done = await asyncio.gather(
        *(add_rule(bench.log, ANN, "acme", {**WORDS, "name": f"w{number}"}) for number in range(4)),
        return_exceptions=True,
    )
    failed = [each for each in done if isinstance(each, BaseException)]
    assert all(isinstance(each, ChangesUnavailable) for each in failed)
    there = {each.name for each in await rules_of(bench.accounts, "acme")}
    assert there == {each.name for each in done if not isinstance(each, BaseException)}
    assert there
