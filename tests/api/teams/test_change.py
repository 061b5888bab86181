"""Teams and their policies."""

from typing import Any

import msgspec
import pytest

from accounts.audit.log import Scope
from api.policy.change import PolicyChoice, policy_of, proposed, set_policy
from api.teams.change import put_team
from proxy.errors import BadRequest, ChangesUnavailable, NotAllowed, TeamNotFound
from tests.api.changes.bench import ANN, Bench

WHY = "a trial"


class Kept:
    """Remembers what it was to forget."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.forgot: list[str] = []
        self._failure = failure

    async def forget_team(self, team_id: str) -> int:
        return self._forget(f"all of {team_id}")

    async def forget_prompts(self, team_id: str) -> int:
        return self._forget(f"texts of {team_id}")

    def _forget(self, what: str) -> int:
        if self._failure is not None:
            raise self._failure
        self.forgot.append(what)
        return 1


async def test_a_team_is_made_and_changed(bench: Bench) -> None:
    """What is left out stays, and putting the same twice logs it once."""
    for _ in range(2):
        team, _ = await put_team(bench.log, ANN, "acme", "green", name="Green")
    assert (team.name, team.settings.weight, team.organisation_id) == ("Green", 1.0, "acme")
    team, created = await put_team(bench.log, ANN, "acme", "green", weight=2.5, may_weigh=True)
    assert (team.name, team.settings.weight, created) == ("Green", 2.5, False)
    assert await bench.accounts.get_team("green") == team
    assert [(before, after["weight"]) for _, _, before, after in await bench.entries()] == [
        (None, 1.0),
        ({"name": "Green", "weight": 1.0, "blocked_at": None}, 2.5),
    ]


async def test_a_tenant_does_not_weigh_its_own_teams(bench: Bench) -> None:
    """What all organisations share is divided by weights; saying the weight as it stands changes nothing."""
    with pytest.raises(NotAllowed):
        await put_team(bench.log, ANN, "acme", "green", weight=2.0)
    team, created = await put_team(bench.log, ANN, "acme", "green", weight=1.0)
    assert (team.settings.weight, created) == (1.0, True)
    with pytest.raises(NotAllowed):
        await put_team(bench.log, ANN, "acme", "green", weight=1_000.0)
    assert (await bench.accounts.get_team("green")).settings.weight == 1.0


async def test_an_id_of_another_organisation_is_no_team(bench: Bench) -> None:
    """It is neither made nor changed, and nothing more is told."""
    with pytest.raises(TeamNotFound):
        await put_team(bench.log, ANN, "acme", "blue", name="Mine")
    assert await bench.accounts.get_team("blue") == bench.other


@pytest.mark.parametrize(
    ("team_id", "fields"),
    [
        ("Green!", {}),
        ("green", {"name": " "}),
        ("green", {"weight": 0.0}),
        ("green", {"weight": float("nan")}),
        ("green", {"weight": 1e9}),
    ],
)
async def test_what_a_team_cannot_be_leaves_nothing(bench: Bench, team_id: str, fields: Any) -> None:
    """A refused change made no team on the way, and no entry."""
    with pytest.raises(BadRequest):
        await put_team(bench.log, ANN, "acme", team_id, may_weigh=True, **fields)
    assert [team.team_id for team in await bench.accounts.teams_of("acme")] == ["red"]
    assert await bench.entries() == []


async def test_a_policy_is_changed_with_its_reason(bench: Bench) -> None:
    """What is left out stays; the log has before, after and why; the same again is no change."""
    choice = PolicyChoice(quality_floor=0.95, allowed_models=["b", "a"], spill_over=False)
    for _ in range(2):
        team = await set_policy(bench.log, ANN, bench.team, choice, reason=WHY, forget=None)
    assert team == await bench.accounts.get_team("red")
    assert policy_of(team) == {
        "allowed_models": ["a", "b"],
        "quality_floor": 0.95,
        "escalation": "off",
        "learning": "numbers",
        "shadow_share": 0.0,
        "spill_over": False,
        "continue_streams": False,
        "cache": "default",
        "cache_ttl_s": None,
    }
    entries = await bench.log.page(Scope(organisation_id="acme", team_id="red"))
    assert [(each.action, each.reason) for each in entries] == [("team.policy_changed", WHY)]


@pytest.mark.parametrize("reason", ["", "  ", "ab", "x" * 501])
async def test_a_policy_needs_a_reason(bench: Bench, reason: str) -> None:
    """Without one nothing changes."""
    with pytest.raises(BadRequest) as refused:
        await set_policy(bench.log, ANN, bench.team, PolicyChoice(spill_over=False), reason=reason, forget=None)
    assert refused.value.param == "reason"
    assert await bench.accounts.get_team("red") == bench.team


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        (PolicyChoice(quality_floor=0.0), "quality_floor"),
        (PolicyChoice(quality_floor=float("nan")), "quality_floor"),
        (PolicyChoice(shadow_share=1.5), "shadow_share"),
        (PolicyChoice(learning="off", shadow_share=0.1), "shadow_share"),
        (PolicyChoice(escalation="now"), "escalation"),  # type: ignore[arg-type]
        (PolicyChoice(allowed_models=["a", "z"]), "allowed_models"),
    ],
)
async def test_what_is_wrong_names_its_field(bench: Bench, choice: PolicyChoice, param: str) -> None:
    """Before applying, for the form, and while applying alike."""
    with pytest.raises(BadRequest) as refused:
        proposed(bench.team, choice, ["a", "b"])
    assert refused.value.param == param
    with pytest.raises(BadRequest):
        await set_policy(bench.log, ANN, bench.team, choice, reason=WHY, forget=None, models=["a", "b"])
    assert await bench.accounts.get_team("red") == bench.team


async def test_a_model_that_is_gone_may_stay(bench: Bench) -> None:
    """Only names that are new have to be known, so that a form can be sent after a model was removed."""
    team = await set_policy(bench.log, ANN, bench.team, PolicyChoice(allowed_models=["old"]), reason=WHY, forget=None)
    assert proposed(team, PolicyChoice(allowed_models=["old", "new"]), ["new"]).allowed_models == frozenset(
        {"old", "new"}
    )


@pytest.mark.parametrize(
    ("learning", "forgot"), [("off", ["all of red"] * 2), ("numbers", ["texts of red"] * 2), ("prompts", [])]
)
async def test_what_may_not_be_kept_is_forgotten(bench: Bench, learning: Any, forgot: list[str]) -> None:
    """At each call, so that a deletion that was interrupted can be finished."""
    kept = Kept()
    for _ in range(2):
        await set_policy(bench.log, ANN, bench.team, PolicyChoice(learning=learning), reason=WHY, forget=kept)
    assert kept.forgot == forgot


async def test_a_deletion_that_fails_is_told(bench: Bench) -> None:
    """The policy is changed all the same: from now on nothing more is kept."""
    choice = PolicyChoice(learning="off")
    with pytest.raises(ChangesUnavailable, match="policy is changed"):
        await set_policy(bench.log, ANN, bench.team, choice, reason=WHY, forget=Kept(TimeoutError()))
    assert (await bench.accounts.get_team("red")).settings.learning == "off"


async def test_another_organisations_team_is_never_changed(bench: Bench) -> None:
    """Also when a record with a false organisation is handed in."""
    false = msgspec.structs.replace(bench.other, organisation_id="acme")
    with pytest.raises(TeamNotFound):
        await set_policy(bench.log, ANN, false, PolicyChoice(spill_over=False), reason=WHY, forget=None)
    assert await bench.accounts.get_team("blue") == bench.other
