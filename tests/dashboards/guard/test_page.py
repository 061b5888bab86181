"""The guard's pages: counts equal what was sent, rules tighten and never loosen, and a text that is tried stays where it was typed."""

import csv
import io
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, get_args

import httpx
import msgspec
import pytest
from sqlalchemy import text as sql

from classifier.learning.store import LearningStore
from classifier.prediction import Prompt
from dashboards.guard.trying import MOST_CHARS, MOST_PROMPTS
from dashboards.ui.guard_words import DONE, RULE_KINDS
from guard.guard_config import RuleKind
from guard.ruleset import Action
from tests.classifier.learning.kept import a_weighing
from tests.dashboards.pages.teams import EVIL, running_teams
from tests.processes import until
from tests.running_gateway import Running
from tests.signed_in import Browser, signed_in

ALL: Final = "/dashboard/guard"
TEAM: Final = "/dashboard/teams/team_a/guard"
CARD: Final = "4111 1111 1111 1111"
MAIL: Final = "jane.doe@example.com"
FLOOR: Final[list[dict[str, Any]]] = [
    {"name": "cards", "kind": "pii", "entities": ["card"], "input": "block"},
    {"name": "mails", "kind": "pii", "entities": ["email"], "input": "mask"},
]
RULE: Final = {"name": "project", "kind": "words", "words": "bluebird\nred bird", "input": "block", "output": "off"}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with running_teams(tmp_path, guard={"rules": FLOOR}) as found:
        yield found


@pytest.fixture
async def tess(running: Running) -> AsyncIterator[Browser]:
    async with signed_in(running, "tess@example.com", teams={"team_a": "admin"}) as found:
        yield found


@pytest.fixture
async def ada(running: Running) -> AsyncIterator[Browser]:
    async with signed_in(running, "ada@example.com", role="admin") as found:
        yield found


async def ask(running: Running, said: str) -> httpx.Response:
    body = {"model": "small", "messages": [{"role": "user", "content": said}]}
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.post(
            f"{running.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {running.key}"}
        )


async def rows(browser: Browser, path: str) -> list[dict[str, str]]:
    answer = await browser.get(f"{path}{'&' if '?' in path else '?'}format=csv&table=found")
    return list(csv.DictReader(io.StringIO(answer.text)))


async def counts(browser: Browser, path: str) -> dict[tuple[str, str], tuple[str, str]]:
    return {(each["rule"], each["action"]): (each["requests"], each["findings"]) for each in await rows(browser, path)}


async def test_counts_are_what_was_sent_and_lead_to_the_requests(running: Running, tess: Browser, ada: Browser) -> None:
    """Refused requests too. A request's page and the list say what was found; other organisations see nothing of it."""
    first = await ask(running, f"write to {MAIL} and to {MAIL} or ann@example.com")
    assert first.headers["x-weighbridge-guard"] == "email=mask:3"
    assert (await ask(running, f"and {MAIL}")).status_code == 200
    refused = await ask(running, f"pay {CARD} for {MAIL}")
    assert refused.status_code == 400
    expected = {("email", "Masked"): ("3", "5"), ("card", "Refused"): ("1", "1")}

    async def told() -> bool:
        return await counts(tess, TEAM) == expected

    await until(told)
    assert await counts(ada, ALL) == expected
    assert await counts(tess, f"{TEAM}?from=2026-01-01&to=2026-01-02") == {}
    page = (await tess.get(TEAM)).text
    assert "E-mail addresses" in page
    for reply, words in ((first, "E-mail addresses: masked, 3"), (refused, "Payment card numbers: refused, 1")):
        request_id = reply.headers["x-request-id"]
        assert f"/dashboard/teams/team_a/requests/{request_id}" in page
        await until(lambda: _has(tess, f"/dashboard/teams/team_a/requests/{request_id}", words))  # noqa: B023
    listed = (await tess.get("/dashboard/teams/team_a/requests?columns=request_id,guard")).text
    assert "Payment card numbers: refused, 1; " in listed or "; Payment card numbers: refused, 1" in listed
    async with signed_in(running, "fay@example.com", role="admin", organisation_id="fjord") as rival:
        assert await counts(rival, ALL) == {}
        assert (await rival.get(TEAM)).status == 404
    async with running.engine.connect() as connection:
        kept = [
            str((await connection.execute(sql(f"SELECT * FROM {table}"))).all())  # noqa: S608 - two names of ours
            for table in ("guard_finding", "guarded_request")
        ]
    assert MAIL not in "".join(kept)
    assert "4111 1111" not in "".join(kept)


async def _has(browser: Browser, path: str, words: str) -> bool:
    return words in (await browser.get(path)).text


async def test_a_team_adds_rules_and_removes_its_own_alone(running: Running, tess: Browser, ada: Browser) -> None:
    """They hold for the next requests; those above stay whatever is sent, and a list's words are not shown."""
    assert (await ada.post(f"{ALL}/rules", {**RULE, "name": "ours", "words": "greenbird"})).location == f"{ALL}#rules"
    assert (await tess.post(f"{TEAM}/rules", RULE)).location == f"{TEAM}#rules"
    page = (await tess.get(TEAM)).text
    names = re.findall(r"<td[^>]*data-label=\"Rule\"><code>(.*?)</code>", page)
    whose = re.findall(r"<td[^>]*data-label=\"Set by\">(.*?)</td>", page)
    assert list(zip(names, whose, strict=True)) == [
        ("cards", "Configuration"),
        ("mails", "Configuration"),
        ("ours", "Organisation"),
        ("project", "Team"),
    ]
    assert page.count(f'action="{TEAM}/rules/remove"') == 1
    assert "bluebird" not in page
    assert "greenbird" not in page
    for name in ("cards", "ours", "project", "project"):
        assert (await tess.post(f"{TEAM}/rules/remove", {"name": name})).location == f"{TEAM}#rules"
    left = (await tess.get(TEAM)).text
    assert re.findall(r"<td[^>]*data-label=\"Rule\"><code>(.*?)</code>", left) == ["cards", "mails", "ours"]
    audit = (await ada.get("/dashboard/audit")).text
    assert "guard.set" in audit
    assert "bluebird" not in audit


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": ""}, "This is needed."),
        ({"name": "Big Name"}, "small letters"),
        ({"words": ""}, "words"),
        ({"kind": "pattern", "words": "", "pattern": "(?=look)"}, "pattern"),
        ({"kind": "pii", "words": ""}, "entities"),
        ({"input": "off"}, "does nothing"),
        ({"input": "erase"}, "Choose one of"),
    ],
)
async def test_what_is_no_rule_is_told_beside_the_form(running: Running, tess: Browser, change: Any, told: str) -> None:
    """With all that was typed; nothing is set."""
    answer = await tess.post(f"{TEAM}/rules", {**RULE, **change})
    assert (answer.status, told in answer.text) == (400, True)
    assert await running.accounts.guard_of("default", "team_a") == ""


async def test_a_text_that_is_tried_is_told_and_kept_nowhere(
    running: Running, tess: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    """Escaped where it is shown again, with the ends of what was found alone; in no table, log or count."""
    caplog.set_level(logging.DEBUG)
    sent = f"{EVIL}\npay {CARD}</textarea>, {MAIL}"
    answer = await tess.post(f"{TEAM}/try", {"text": sent})
    assert answer.status == 200
    assert EVIL not in answer.text
    assert "</textarea>," not in answer.text
    table = answer.text[answer.text.index('id="table-tried"') :]
    for wanted in (
        "Payment card numbers",
        "Refused",
        "Line 2, character 5",
        "41…11 (19 characters)",
        "cards",
        "Masked",
    ):
        assert wanted in table
    assert MAIL not in table
    assert MAIL not in caplog.text
    assert "4111 1111" not in caplog.text
    assert await counts(tess, TEAM) == {}
    assert "Nothing is found" in (await tess.post(f"{TEAM}/try", {"text": "hello"})).text


@pytest.mark.parametrize("sent", ["", "   ", "x" * (MOST_CHARS + 1)])
async def test_a_text_has_bounds(tess: Browser, sent: str) -> None:
    """The page says so."""
    assert (await tess.post(f"{TEAM}/try", {"text": sent})).status == 400


async def test_much_that_is_found_is_cut(tess: Browser) -> None:
    """The number of all is told."""
    answer = await tess.post(f"{TEAM}/try", {"text": "a@example.com " * 1_000})
    assert "The first 200 of 1,000 are shown." in answer.text


async def test_prompts_that_a_team_keeps_are_tried_by_its_members_alone(
    running: Running, tess: Browser, ada: Browser
) -> None:
    """Counts and links; another team's prompts are not among them, and who may not read prompts may not try them."""
    assert "Try the prompts that are kept" not in (await tess.get(TEAM)).text
    assert (await tess.post(f"{TEAM}/prompts")).text.count("looked through") == 0
    await running.accounts.update_team("team_a", learning="prompts")
    kept = [
        a_weighing(
            request_id=f"r{number}",
            team_id="team_a",
            organisation_id="default",
            at_us=1_000 + number,
            prompt=msgspec.json.encode(Prompt(text=f"write to {MAIL}", history=f"paid with {CARD}")).decode(),
        )
        for number in range(MOST_PROMPTS + 5)
    ]
    theirs = a_weighing(request_id="theirs", team_id="team_b", organisation_id="default", at_us=9_000, prompt=MAIL)
    await LearningStore(running.engine).add([*kept, theirs], [])
    page = (await tess.post(f"{TEAM}/prompts")).text
    assert "100 prompts looked through" in page
    assert "theirs" not in page
    assert MAIL not in page
    table = page[page.index('aria-label="Found in kept prompts"') :]
    assert len(re.findall(r'href="/dashboard/teams/team_a/requests/r10[0-4]"', table)) == 2 * 5
    assert "Refused" not in table
    told = await ada.post(f"{TEAM}/prompts")
    assert "own members only" in told.text
    assert "looked through" not in told.text


async def test_every_kind_has_words(tmp_path: Path) -> None:
    """Also those that only the configuration may have; a text that is tried goes to no service."""
    rules = [
        {"name": "keys", "kind": "secret", "input": "block"},
        {"name": "tickets", "kind": "pattern", "pattern": "TICKET-[0-9]+", "input": "flag"},
        {"name": "attempts", "kind": "injection", "input": "flag"},
        {"name": "judge", "kind": "http", "url": "http://127.0.0.1:9/v1/moderations", "input": "block"},
    ]
    async with (
        running_teams(tmp_path, guard={"rules": rules}) as running,
        signed_in(running, "tess@example.com", teams={"team_a": "admin"}) as tess,
    ):
        page = (await tess.post(f"{TEAM}/try", {"text": "about TICKET-17"})).text
    assert set(RULE_KINDS) == set(get_args(RuleKind))
    assert set(DONE) == set(get_args(Action))
    for wanted in ("All 28 kinds", RULE_KINDS["pattern"], RULE_KINDS["injection"], RULE_KINDS["http"], "left out"):
        assert wanted in page
    assert 'value="http"' not in page
    assert "tickets" in page[page.index('id="table-tried"') :]


async def test_rules_that_cannot_be_read_are_told(running: Running, tess: Browser) -> None:
    """Nothing is shown as if no rule held."""
    await running.accounts.set_guard("default", "team_a", '[{"name":"old","kind":"gone"}]')
    answer = await tess.get(TEAM)
    assert (answer.status, "cannot be read any more" in answer.text) == (200, True)
    assert (await tess.post(f"{TEAM}/try", {"text": CARD})).status == 200


async def test_without_a_rule_nothing_is_known(tmp_path: Path) -> None:
    """No figure says that nothing was found where nothing looks; a team's own rules are not denied on the page of all teams."""
    async with running_teams(tmp_path) as running:
        async with signed_in(running, "tess@example.com", teams={"team_a": "admin"}) as tess:
            page = (await tess.get(TEAM)).text
            assert page.count("no rule holds</div>") == 2
            assert "whether there was anything to find is not known" in page
            assert (await tess.post(f"{TEAM}/rules", RULE)).status == 303
            page = (await tess.get(TEAM)).text
            assert "no rule holds</div>" not in page
            assert "Nothing was found in this time." in page
        async with signed_in(running, "ada@example.com", role="admin") as ada:
            page = (await ada.get(ALL)).text
        assert "nothing is looked at" not in page
        assert "No rule holds for all teams; those that added rules of their own found nothing in this time." in page
