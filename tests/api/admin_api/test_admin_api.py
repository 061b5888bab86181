"""/v1/admin over a socket: what administrators' keys set, how often, and who may not."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from accounts.audit.log import AuditLog, Scope
from tests.api.admin_api.calls import SCRIPTED, call, globex, key_of
from tests.in_turn import in_turn
from tests.processes import until
from tests.running_gateway import Running, model, running_gateway

LATER = (datetime.now(UTC) + timedelta(days=30)).strftime("%Y-%m-%dT00:00:00Z")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Running]:
    async with running_gateway(
        tmp_path, [model("dear", SCRIPTED), model("cheap", SCRIPTED)], classifier={"enabled": False}
    ) as running:
        yield running


async def actions(gateway: Running) -> list[str]:
    found = await AuditLog(gateway.engine).page(Scope(organisation_id="default"), limit=500)
    return [each.action for each in reversed(found)]


async def test_a_team_is_put(gateway: Running) -> None:
    """201 then 200; the same body twice is one entry; what is read is what was put."""
    admin = await key_of(gateway, "admin")
    body = {"name": "Red", "weight": 2}
    first = await call(gateway, "PUT", "/teams/red", admin, body)
    again = await call(gateway, "PUT", "/teams/red", admin, body)
    read = await call(gateway, "GET", "/teams/red", admin)
    assert (first.status, again.status, read.status) == (201, 200, 200)
    assert first.body == again.body == read.body
    assert (read.body["name"], read.body["policy"]["learning"]) == ("Red", "numbers")
    assert [each["id"] for each in (await call(gateway, "GET", "/teams", admin)).body["data"]] == ["red", "team_a"]
    assert await actions(gateway) == ["team.set"]


async def test_a_policy_is_put_with_its_reason(gateway: Running) -> None:
    """Fields that are left out stay; without a reason, or with a model that is none, it is refused."""
    admin = await key_of(gateway, "admin")
    body = {"quality_floor": 0.95, "allowed_models": ["dear"], "continue_streams": True, "reason": "a trial"}
    for _ in range(2):
        told = await call(gateway, "PUT", "/teams/team_a/policy", admin, body)
        assert (told.status, told.body["spill_over"], told.body["allowed_models"]) == (200, True, ["dear"])
        assert told.body["continue_streams"] is True
    assert (await call(gateway, "GET", "/teams/team_a/policy", admin)).body == told.body
    assert await actions(gateway) == ["team.policy_changed"]
    for bad, param in (
        ({"spill_over": False}, "reason"),
        ({"spill_over": False, "reason": "  "}, "reason"),
        ({"allowed_models": ["nothing"], "reason": "a trial"}, "allowed_models"),
        ({"quality_floor": 2, "reason": "a trial"}, "quality_floor"),
    ):
        refused = await call(gateway, "PUT", "/teams/team_a/policy", admin, bad)
        assert (refused.status, refused.param) == (400, param)


async def test_a_key_that_only_reads_is_seen_to_be_used(gateway: Running) -> None:
    """One that a script of finance's has, asks no model, and would look forgotten; one that nobody used has no day."""
    admin = await key_of(gateway, "admin")
    await call(gateway, "PUT", "/teams/team_a/keys/idle", admin, {})

    async def used() -> dict[str, str | None]:
        found = []
        for team in (await call(gateway, "GET", "/teams", admin)).body["data"]:
            found += (await call(gateway, "GET", f"/teams/{team['id']}/keys", admin)).body["data"]
        return {each["role"] if each["role"] == "admin" else each["name"]: each["last_used_on"] for each in found}

    async def is_written() -> bool:
        return (await used())["admin"] is not None

    await until(is_written)
    found = await used()
    assert (datetime.now(UTC).date() - date.fromisoformat(found["admin"] or "")).days in {0, 1}
    assert found["idle"] is None


async def test_a_key_is_put_once_and_told_once(gateway: Running) -> None:
    """201 has the key, 200 has not; it works; nothing keeps the reply."""
    admin = await key_of(gateway, "admin")
    made = await call(gateway, "PUT", "/teams/team_a/keys/ci", admin, {"expires_at": LATER})
    again = await call(gateway, "PUT", "/teams/team_a/keys/ci", admin, {"expires_at": LATER})
    assert (made.status, again.status) == (201, 200)
    assert made.headers["cache-control"] == "no-store"
    assert "key" not in again.body
    assert made.body["key"].endswith(again.body["last4"])
    assert again.body == {name: value for name, value in made.body.items() if name != "key"}
    assert (await call(gateway, "GET", "/teams/team_a", made.body["key"])).status == 200
    listed = (await call(gateway, "GET", "/teams/team_a/keys", admin)).body["data"]
    mine = next(each for each in listed if each["name"] == "ci")
    assert (mine["state"], mine["requests_30d"]) == ("working", 0)
    assert all("key" not in each for each in listed)
    assert await actions(gateway) == ["key.created"]


async def test_a_key_is_rotated_and_revoked(gateway: Running) -> None:
    """By its name or its id. After a rotation both work; a revoked one is refused; revoking by id twice is the same."""
    admin = await key_of(gateway, "admin")
    old = (await call(gateway, "PUT", "/teams/team_a/keys/ci", admin)).body
    new = await call(gateway, "POST", "/teams/team_a/keys/ci/rotate", admin, {"overlap_s": 600})
    assert new.status == 201
    for each in (old, new.body):
        assert (await call(gateway, "GET", "/teams/team_a", each["key"])).status == 200
    assert (await call(gateway, "GET", "/teams/team_a/keys/ci", admin)).body["id"] == new.body["id"]
    assert (await call(gateway, "GET", f"/teams/team_a/keys/{old['id']}", admin)).body["state"] == "working"
    twice = await call(gateway, "POST", f"/teams/team_a/keys/{old['id']}/rotate", admin, {"overlap_s": 600})
    assert (twice.status, twice.code) == (409, "name_taken")
    for _ in range(2):
        ended = await call(gateway, "DELETE", f"/teams/team_a/keys/{new.body['id']}", admin)
        assert (ended.status, ended.body["state"]) == (200, "revoked")
    assert (await actions(gateway)).count("key.revoked") == 1
    gone = await call(gateway, "GET", "/teams/team_a/keys/nothing", admin)
    assert (gone.status, gone.code) == (404, "key_not_found")


async def test_keys_and_teams_are_blocked_for_a_while(gateway: Running) -> None:
    """Whoever is blocked gets 403 with the code and words of it, until it is unblocked; twice is once; it is in the log."""
    await gateway.accounts.create_team("other")
    admin = await key_of(gateway, "admin", "other")
    made = (await call(gateway, "PUT", "/teams/team_a/keys/ci", admin)).body
    for place, shown in (("/teams/team_a/keys/ci", "key"), ("/teams/team_a", "team")):
        for _ in range(2):
            told = await call(gateway, "POST", f"{place}/block", admin, {"reason": "it leaked"})
            assert (told.status, told.body["blocked_at"] is None) == (200, False)
        refused = await until_status(gateway, made["key"], 403)
        assert (refused.code, shown in refused.body["error"]["message"]) == ("key_blocked", True)
        if shown == "key":
            assert told.body["state"] == "blocked"
            again = await call(gateway, "POST", f"{place}/rotate", admin, {"overlap_s": 0})
            assert (again.status, "unblock it first" in again.body["error"]["message"]) == (400, True)
        told = await call(gateway, "POST", f"{place}/unblock", admin, {})
        assert (told.status, told.body["blocked_at"]) == (200, None)
        await until_status(gateway, made["key"], 200)
    log = [each for each in await actions(gateway) if "block" in each]
    assert log == ["key.blocked", "key.unblocked", "team.blocked", "team.unblocked"]


async def test_a_teams_kept_answers_are_set_and_flushed(gateway: Running) -> None:
    """By the team's own administrators; it is in the log."""
    admin = await key_of(gateway, "admin")
    wanted = {"cache": "on", "cache_ttl_s": 600, "reason": "a trial"}
    told = await call(gateway, "PUT", "/teams/team_a/policy", admin, wanted)
    assert (told.status, told.body["cache"], told.body["cache_ttl_s"]) == (200, "on", 600)
    for wrong in ({"cache": "always"}, {"cache_ttl_s": 0}, {"cache_ttl_s": 10**9}):
        refused = await call(gateway, "PUT", "/teams/team_a/policy", admin, {**wrong, "reason": "a trial"})
        assert (refused.status, next(iter(wrong)) in refused.body["error"]["message"]) == (400, True)
    flushed = await call(gateway, "POST", "/teams/team_a/cache/flush", admin, {"reason": "a wrong answer"})
    assert flushed.status == 200
    assert (await gateway.accounts.get_team("team_a")).settings.cache_epoch == 1
    assert (await call(gateway, "POST", "/teams/nobody/cache/flush", admin, {})).status == 404
    assert (await actions(gateway)).count("team.cache_flushed") == 1


async def until_status(gateway: Running, key: str, status: int) -> Any:
    """The answer to this key, once it is the expected one: servers follow within seconds."""
    async with asyncio.timeout(30):
        while True:
            told = await call(gateway, "GET", "/teams/team_a", key)
            if told.status == status:
                return told
            await asyncio.sleep(0.05)


async def test_a_lifetime_counts_from_creation(gateway: Running) -> None:
    """The same body twice is one end and one entry; beside `expires_at`, or beyond the calendar, it is refused."""
    admin = await key_of(gateway, "admin")
    for _ in range(2):
        told = (await call(gateway, "PUT", "/teams/team_a/keys/ci", admin, {"expires_in_s": 86_400})).body
        created, ends = datetime.fromisoformat(told["created_at"]), datetime.fromisoformat(told["expires_at"])
        assert timedelta(hours=23, minutes=59) < ends - created <= timedelta(days=1)
    assert await actions(gateway) == ["key.created"]
    for bad in ({"expires_in_s": 5, "expires_at": LATER}, {"expires_in_s": 10**12}, {"expires_in_s": 0}):
        refused = await call(gateway, "PUT", "/teams/team_a/keys/ci", admin, bad)
        assert (refused.status, refused.param) == (400, "expires_in_s")


@in_turn("overlap_s", [-1, 31 * 86_400, 1.5, "1", None])
async def test_an_overlap_is_bounded(gateway: Running, overlap_s: Any) -> None:
    """From 0 to 30 days, in whole seconds."""
    admin = await key_of(gateway, "admin")
    await call(gateway, "PUT", "/teams/team_a/keys/ci", admin)
    told = await call(gateway, "POST", "/teams/team_a/keys/ci/rotate", admin, {"overlap_s": overlap_s})
    assert (told.status, told.param) == (400, "overlap_s")


async def test_an_invitation_leads_to_no_host_that_a_request_names(gateway: Running) -> None:
    """It has the secret that whoever is sent there would give away."""
    admin = await key_of(gateway, "admin")
    headers = {"authorization": f"Bearer {admin}", "host": "evil.example", "x-forwarded-host": "evil.example"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.put(f"{gateway.url}/v1/admin/people/eve@example.com", json={"name": "Eve"}) as reply,
    ):
        told = await reply.json()
    assert reply.status == 201, told
    assert "evil" not in told["link"]
    assert told["link"].startswith("http://127.0.0.1:")


async def test_people_and_members_are_put(gateway: Running) -> None:
    """A new person's link is told once; a place in a team is given, changed, and taken; DELETE disables."""
    admin = await key_of(gateway, "admin")
    made = await call(gateway, "PUT", "/people/ada@example.com", admin, {"name": "Ada", "role": "finance"})
    again = await call(gateway, "PUT", "/people/ada@example.com", admin, {"name": "Ada", "role": "finance"})
    assert (made.status, again.status) == (201, 200)
    assert made.body["link"].startswith(f"{gateway.url}/dashboard/welcome/")
    assert "link" not in again.body
    link = await call(gateway, "POST", "/people/ada@example.com/link", admin)
    assert (link.status, link.body["link"] != made.body["link"]) == (201, True)
    for status in (201, 200):
        told = await call(gateway, "PUT", "/teams/team_a/members/ada@example.com", admin, {"role": "admin"})
        assert (told.status, told.body["role"], told.body["source"]) == (status, "admin", "local")
    assert (await call(gateway, "GET", "/people/ada@example.com", admin)).body["teams"] == {"team_a": "admin"}
    listed = (await call(gateway, "GET", "/teams/team_a/members", admin)).body["data"]
    assert [each["email"] for each in listed] == ["ada@example.com"]
    for status in (200, 404):
        assert (await call(gateway, "DELETE", "/teams/team_a/members/ada@example.com", admin)).status == status
    ended = await call(gateway, "DELETE", "/people/ada@example.com", admin)
    assert (ended.status, ended.body["disabled"]) == (200, True)
    back = await call(gateway, "PUT", "/people/ada@example.com", admin, {"disabled": False})
    assert (back.status, back.body["disabled"]) == (200, False)
    unknown = await call(gateway, "PUT", "/teams/team_a/members/bob@example.com", admin, {"role": "admin"})
    assert (unknown.status, unknown.code) == (404, "person_not_found")


async def test_budgets_are_raised_and_topped_up(gateway: Running) -> None:
    """A raise shows beside the limit, and ends; a top-up of the same id is paid in once; other budgets take none."""
    admin = await key_of(gateway, "admin")
    budget = {"scope": "team", "scope_id": "team_a", "period": "month", "limit_usd": 5, "kind": "hard"}
    await call(gateway, "PUT", "/budgets/b1", admin, budget)
    raised = await call(gateway, "POST", "/budgets/b1/raise", admin, {"limit_usd": 8.5, "until": LATER})
    assert (raised.status, raised.body["limit_usd"], raised.body["raised_limit_usd"]) == (200, 5, 8.5)
    assert (raised.body["left_usd"], raised.body["raised_until"]) == (8.5, LATER)
    again = await call(gateway, "PUT", "/budgets/b1", admin, budget)
    assert (again.status, again.body["raised_limit_usd"]) == (200, 8.5)
    for bad in (
        {"limit_usd": 1},
        {"until": LATER},
        {"limit_usd": 1, "until": "2020-01-01T00:00:00Z"},
        {"limit_usd": -1, "until": LATER},
    ):
        assert (await call(gateway, "POST", "/budgets/b1/raise", admin, bad)).status == 400
    ended = await call(gateway, "POST", "/budgets/b1/raise", admin, {})
    assert (ended.status, ended.body["raised_until"]) == (200, None)
    assert (await call(gateway, "POST", "/budgets/b1/topups", admin, {"amount_usd": 5})).status == 400
    for status in (201, 200):
        assert (await call(gateway, "PUT", "/budgets/b2", admin, {**budget, "period": "prepaid"})).status == status
    for status in (201, 200):
        paid = await call(gateway, "POST", "/budgets/b2/topups", admin, {"amount_usd": 2.5, "id": "i1", "note": "Q4"})
        assert (paid.status, paid.body["limit_usd"], paid.body["resets_at"]) == (status, 7.5, None)
    listed = (await call(gateway, "GET", "/budgets/b2/topups", admin)).body["data"]
    assert [(each["id"], each["amount_usd"], each["note"]) for each in listed] == [("first", 5, ""), ("i1", 2.5, "Q4")]
    assert (
        await call(gateway, "PUT", "/budgets/b2", admin, {**budget, "period": "prepaid", "limit_usd": 9})
    ).status == 400
    assert (await call(gateway, "POST", "/budgets/b9/topups", admin, {"amount_usd": 1})).code == "budget_not_found"
    log = [each for each in await actions(gateway) if each != "budget.set"]
    assert log == ["budget.raised", "budget.raised", "budget.topped_up"]


async def test_budgets_and_limits_are_put(gateway: Running) -> None:
    """Exact amounts; what was put is what is read; after DELETE it is not found."""
    admin = await key_of(gateway, "admin")
    budget = {"scope": "team", "scope_id": "team_a", "period": "month", "limit_usd": 500}
    limit = {"requests_per_minute": 60, "concurrency": 0}
    for path, body, code in (
        ("/budgets/b1", budget, "budget_not_found"),
        ("/limits/team/team_a", limit, "limit_not_found"),
        ("/limits/team/team_a?model=dear", limit, "limit_not_found"),
        ("/limits/organisation/default", limit, "limit_not_found"),
        ("/limits/model/dear", limit, "limit_not_found"),
    ):
        first = await call(gateway, "PUT", path, admin, body)
        again = await call(gateway, "PUT", path, admin, body)
        assert (path, first.status, again.status) == (path, 201, 200)
        read = await call(gateway, "GET", path, admin)
        assert read.body == again.body
        assert {name: read.body[name] for name in body} == body
        assert (await call(gateway, "DELETE", path, admin)).status == 200
        gone = await call(gateway, "GET", path, admin)
        assert (gone.status, gone.code) == (404, code)
    assert len(await actions(gateway)) == 10


@in_turn(
    "method, path, body",
    [
        ("PUT", "/teams/team_a", {"nmae": "x"}),
        ("PUT", "/teams/team_a", {"name": 5}),
        ("PUT", "/teams/team_a", "[]"),
        ("PUT", "/teams/team_a", "{"),
        ("PUT", "/teams/team_a", '{"name": "M\xfcller"}'.encode("latin-1")),
        ("PUT", "/teams/team_a/keys/ci", {"role": "owner"}),
        ("PUT", "/teams/team_a/keys/ci", {"expires_at": "2020-01-01T00:00:00Z"}),
        ("PUT", "/teams/team_a/keys/ci", {"expires_at": "2090-01-01"}),
        ("PUT", "/people/nobody", {}),
        ("PUT", "/people/ada@example.com", {"role": "owner"}),
        ("PUT", "/budgets/b1", {"scope": "team"}),
        ("PUT", "/budgets/b1", {"scope": "team", "scope_id": "team_a", "period": "month", "limit_usd": -1}),
        ("PUT", "/limits/team/team_a", {"requests_per_minute": -1}),
        ("PUT", "/limits/team/team_a", {}),
        ("PUT", "/limits/planet/earth", {"concurrency": 1}),
    ],
)
async def test_what_is_wrong_is_refused_in_words(gateway: Running, method: str, path: str, body: Any) -> None:
    """400 with a sentence, and nothing changes."""
    admin = await key_of(gateway, "admin")
    told = await call(gateway, method, path, admin, body)
    assert told.status == 400
    assert len(told.body["error"]["message"]) > 15
    assert await actions(gateway) == []


async def test_what_would_be_right_is_told(gateway: Running) -> None:
    """The fields that there are, and a field's few words: nobody need guess a second time."""
    admin = await key_of(gateway, "admin")
    told = await call(gateway, "PUT", "/teams/team_a/policy", admin, {"continue_stream": True})
    assert "There are `reason`, `quality_floor`, " in told.body["error"]["message"]
    assert "`continue_streams`" in told.body["error"]["message"]
    told = await call(gateway, "PUT", "/teams/team_a/policy", admin, {"escalation": "maybe", "reason": "why"})
    assert (
        "Invalid enum value 'maybe'. It is one of `agreement`, `agreement-all`, `all`, `off`, `whole`."
        in told.body["error"]["message"]
    ), told.body


async def test_who_may_not_is_refused(gateway: Running) -> None:
    """A member reads its own team; finance reads all; neither changes anything; another team looks like none."""
    await gateway.accounts.create_team("red")
    member, finance, admin = [await key_of(gateway, role) for role in ("member", "finance", "admin")]
    theirs = await globex(gateway)
    changes: list[tuple[str, str, Any]] = [
        ("PUT", "/teams/team_a", {}),
        ("PUT", "/teams/team_a/policy", {"reason": "a trial"}),
        ("PUT", "/teams/team_a/keys/ci", {}),
        ("POST", "/teams/team_a/keys/tests/rotate", {"overlap_s": 0}),
        ("DELETE", "/teams/team_a/keys/tests", None),
        ("PUT", "/teams/team_a/members/a@example.com", {"role": "member"}),
        ("DELETE", "/teams/team_a/members/a@example.com", None),
    ]
    for method, path, body in changes:
        assert (await call(gateway, method, path, member, body)).code == "not_allowed", path
        assert (await call(gateway, method, path, finance, body)).code == "not_allowed", path
        other = await call(gateway, method, path, theirs, body)
        assert (path, other.status, other.code) == (path, 404, "team_not_found")
        hidden = await call(gateway, method, path.replace("team_a", "red"), member, body)
        nothing = await call(gateway, method, path.replace("team_a", "none"), member, body)
        assert (path, hidden.status, nothing.status) == (path, 404, 404)
    for path in ("/teams/team_a", "/teams/team_a/keys", "/teams/team_a/members", "/teams/team_a/policy"):
        for key, status in ((member, 200), (finance, 200), (admin, 200), (theirs, 404)):
            assert (path, (await call(gateway, "GET", path, key)).status) == (path, status)
    for path, status in (("/budgets", 200), ("/limits", 200), ("/people", 200)):
        assert (await call(gateway, "GET", path, finance)).status == status
        assert (await call(gateway, "GET", path, member)).code == "not_allowed"
    # A model's limit holds for all organisations, so it is the operator's.
    assert (await call(gateway, "PUT", "/limits/model/dear", theirs, {"concurrency": 1})).code == "not_allowed"
    # And what bounds a tenant, or divides what all share, is not the tenant's to change.
    lifted = await call(gateway, "PUT", "/limits/organisation/globex", theirs, {"requests_per_minute": 0})
    taken = await call(gateway, "DELETE", "/limits/organisation/globex", theirs)
    heavier = await call(gateway, "PUT", "/teams/team_b", theirs, {"weight": 1_000})
    assert [each.code for each in (lifted, taken, heavier)] == ["not_allowed"] * 3
    assert await actions(gateway) == []


async def test_a_browsers_session_is_no_key(gateway: Running) -> None:
    """The API takes keys alone."""
    assert (await call(gateway, "GET", "/teams", "")).status == 401
    assert (await call(gateway, "GET", "/teams", "wb-not-a-key")).status == 401
