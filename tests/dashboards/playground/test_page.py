"""Trying a prompt: the decision calls nobody, a call is booked like any, and neither is open to who may not."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cost.ledger.store import LedgerStore
from tests.api.admin_api.calls import key_of as key_for
from tests.dashboards.pages.teams import running_teams
from tests.in_turn import in_turn
from tests.running_gateway import Running
from tests.signed_in import Browser, signed_in

HERE = "/dashboard/teams/team_a/playground"
PROMPT = "<b>Where</b> is my parcel? SECRET"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with running_teams(tmp_path) as found:
        yield found


@pytest.fixture
async def tess(running: Running) -> AsyncIterator[Browser]:
    """An administrator of the team."""
    async with signed_in(running, "tess@example.com", teams={"team_a": "admin"}) as found:
        yield found


@pytest.fixture
async def milo(running: Running) -> AsyncIterator[Browser]:
    """A member of the team."""
    async with signed_in(running, "milo@example.com", teams={"team_a": "member"}) as found:
        yield found


async def key_of(running: Running) -> str:
    return (await running.accounts.list_keys("team_a"))[0].key_id


async def test_each_quality_tells_what_it_would_choose(running: Running, milo: Browser) -> None:
    """With chance, price and the line that decides; the team's own is marked; nothing is called or booked."""
    await running.accounts.update_team("team_a", quality_floor=0.93)
    page = (await milo.post(HERE, {"prompt": PROMPT})).text
    shown = re.findall(r'data-label="Minimum quality">([^<]+)', page)
    assert shown == ["90.0 % to 100.0 %"], "what does not differ is one row"
    assert page.count("The team&#39;s minimum is 93.0 %.") == 1
    assert re.search(r'data-label="One prompt may lose">30.0 points to nothing<', page)
    assert "was not measured, so what is kept is not known." in page
    assert re.search(r'data-label="Model"><code>(large|small)</code>', page)
    assert "is declared capable up to" in page
    assert "&lt;b&gt;Where&lt;/b&gt;" in page
    assert "<b>Where" not in page
    assert await running.rows() == []


@in_turn(
    "fields, said",
    [
        ({"prompt": " "}, "This is needed."),
        ({"prompt": "x" * 20_001}, "At most 20000 characters."),
        ({"prompt": "x", "tools": "{"}, "A JSON list of tools"),
        ({"prompt": "x", "tools": "[" * 9_000}, "A JSON list of tools"),
        ({"prompt": "x", "max_tokens": "9999"}, "A whole number from 1 to 4,096."),
    ],
)
async def test_what_is_wrong_stands_at_its_field(tess: Browser, fields: dict[str, str], said: str) -> None:
    """And the rest is kept."""
    page = await tess.post(HERE, fields)
    assert page.status == 400
    assert said in page.text


async def test_tools_and_a_system_prompt_are_weighed_too(running: Running, milo: Browser) -> None:
    """What cannot take tools is told as passed over: here nobody is left."""
    tools = '[{"type": "function", "function": {"name": "weigh", "parameters": {"type": "object"}}}]'
    plain, whole = [
        (await milo.post(HERE, fields)).text
        for fields in ({"prompt": PROMPT}, {"prompt": PROMPT, "system": "Be kind. " * 90, "tools": tools})
    ]

    def tokens(page: str) -> int:
        return int((re.search(r"about ([0-9,]+) tokens in", page) or [""])[1].replace(",", ""))

    assert tokens(whole) > tokens(plain) + 100
    assert await running.rows() == []


async def test_two_models_answer_side_by_side_and_are_booked_to_the_key(running: Running, tess: Browser) -> None:
    """With what each cost; the request's page is linked; the ledger has both under the key that was chosen."""
    key_id = await key_of(running)
    fields = {"prompt": PROMPT, "model": "large", "other": "small", "key": key_id, "max_tokens": "64"}
    page = (await tess.post(f"{HERE}/call", fields)).text
    answered = re.findall(r'href="/dashboard/teams/team_a/requests/(req_[^"]+)"', page)
    assert len(answered) == 2
    await running.rows()
    for request_id, target in zip(answered, ("large", "small"), strict=True):
        (settled,) = [each for each in await LedgerStore(running.engine).entries(request_id) if each.entry == "settle"]
        assert (settled.team_id, settled.key_id, settled.target_id, settled.tier) == (
            "team_a",
            key_id,
            target,
            "interactive",
        )
        assert settled.served
        assert (await tess.get(f"/dashboard/teams/team_a/requests/{request_id}")).status == 200


async def test_a_refusal_is_shown_as_a_caller_gets_it(running: Running, tess: Browser) -> None:
    """A model that the key may not use is answered by the line itself; the other one answers."""
    key_id = await key_of(running)
    await running.accounts.set_key_models("default", "team_a", key_id, ["small"])
    fields = {"prompt": "x", "model": "large", "other": "small", "key": key_id}
    page = (await tess.post(f"{HERE}/call", fields)).text
    assert "The model `large` does not exist, or your team or this key may not use it." in page
    assert "Answered by</dt><dd>small" in page


async def test_only_who_may_spend_the_teams_money_calls(running: Running, tess: Browser, milo: Browser) -> None:
    """No member, no other team's key, no revoked key, and nobody without the form's secret."""
    key_id = await key_of(running)
    fields = {"prompt": "x", "model": "large", "other": "", "key": key_id}
    assert (await milo.post(f"{HERE}/call", fields)).status == 403
    assert (await tess.post("/dashboard/teams/team_b/playground/call", fields)).status == 404
    assert (await tess.post("/dashboard/teams/team_b/playground", fields)).status == 404
    await key_for(running, "member", "team_b")
    theirs = (await running.accounts.list_keys("team_b"))[0].key_id
    assert (await tess.post(f"{HERE}/call", {**fields, "key": theirs})).status == 400
    without = await tess.send(f"{HERE}/call", fields, {"sec-fetch-site": "same-origin"})
    assert without.status == 403
    await running.accounts.revoke_key(key_id)
    assert (await tess.post(f"{HERE}/call", fields)).status == 400
    assert await running.rows() == []
