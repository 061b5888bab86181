"""A team's keys on their pages: shown once, bounded, replaced, ended; and who may do so."""

import html
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest

from accounts.audit.log import AuditLog, Scope
from accounts.keys import KEY_CHARS, Pepper
from accounts.pepper_file import pepper_id
from cost.budgets.store import BudgetStore
from proxy.admit.limits.store import LimitStore
from tests.in_turn import in_turn
from tests.running_gateway import PEPPER, Running, model, running_gateway
from tests.signed_in import Answer, Browser, signed_in

KEYS = "/dashboard/teams/team_a/keys"
_KEY = re.compile(rf"wb-[0-9a-zA-Z-]{{{KEY_CHARS - 3}}}")
PAYLOAD = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    scripted = [model("m", [{"kind": "scripted", "upstream_model": "ok"}])]
    async with running_gateway(tmp_path, scripted, classifier={"enabled": False}) as found:
        yield found


@pytest.fixture
async def tess(running: Running) -> AsyncIterator[Browser]:
    """An administrator of the team, and nothing else."""
    async with signed_in(running, "tess@example.com", teams={"team_a": "admin"}) as found:
        yield found


def shown_key(page: Answer) -> str:
    found: set[str] = set(_KEY.findall(html.unescape(page.text)))
    assert len(found) == 1
    return found.pop()


async def key_id(running: Running, name: str) -> str:
    return next(key.key_id for key in reversed(await running.accounts.list_keys("team_a")) if key.name == name)


async def test_a_key_is_shown_once_and_works(running: Running, tess: Browser) -> None:
    """On the page that made it, with both snippets, which no cache keeps; never again; sending the form twice makes one."""
    made = await tess.post(KEYS, {"name": "checkout"})
    assert made.status == 201
    key = shown_key(made)
    text = html.unescape(made.text)
    assert f'-H "Authorization: Bearer {key}"' in text
    assert f'base_url="{running.base_url}"' in text
    assert made.headers["cache-control"] == "no-store"
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{running.base_url}/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
        ) as reply,
    ):
        assert reply.status == 200
    again = await tess.post(KEYS, {"name": "checkout"})
    assert again.status == 400
    assert "already" in again.text
    for page in (KEYS, f"{KEYS}/{await key_id(running, 'checkout')}", f"{KEYS}?format=csv"):
        assert key not in (await tess.get(page)).text
    assert [key.name for key in await running.accounts.list_keys("team_a")] == ["tests", "checkout"]


async def test_a_key_gets_its_bounds(running: Running, tess: Browser) -> None:
    """Expiry at the end of the day, limits and a budget, all of this key alone."""
    day = (datetime.now(UTC) + timedelta(days=10)).date()
    fields = {
        "name": "checkout",
        "expires_on": day.isoformat(),
        "requests_per_minute": "60",
        "budget_usd": "12.50",
        "budget_period": "month",
        "budget_kind": "hard",
    }
    assert (await tess.post(KEYS, fields)).status == 201
    made = next(key for key in await running.accounts.list_keys("team_a") if key.name == "checkout")
    assert made.expires_at == datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
    (rule,) = await LimitStore(running.engine).all()
    assert (rule.place.scope, rule.place.scope_id, rule.limits.requests_per_minute) == ("key", made.key_id, 60)
    (standing,) = await BudgetStore(running.engine).all()
    assert (standing.budget.scope_id, standing.budget.limit_nanousd) == (made.key_id, 12_500_000_000)
    page = await tess.get(f"{KEYS}/{made.key_id}")
    assert "$12.50" in page.text
    assert f'value="{day.isoformat()}"' in page.text


@in_turn(
    "fields, said",
    [
        ({"name": ""}, "This is needed."),
        ({"name": "x" * 201}, "At most 200 characters."),
        ({"name": "x", "expires_on": "soon"}, "A day such as"),
        ({"name": "x", "expires_on": "9999-12-31"}, "A day such as"),
        ({"name": "x", "expires_on": "2020-01-01"}, "in the past"),
        ({"name": "x", "requests_per_minute": "-1"}, "A whole number"),
        ({"name": "x", "request_burst": "0"}, "A whole number"),
        ({"name": "x", "budget_usd": "much"}, "A number from"),
        ({"name": "x", "budget_usd": "0.0000000001", "budget_period": "day", "budget_kind": "hard"}, "9 decimals"),
        ({"name": "x", "role": "owner"}, "Choose one of"),
    ],
)
async def test_what_is_wrong_stands_at_its_field(
    running: Running, tess: Browser, fields: dict[str, str], said: str
) -> None:
    """The form comes again as it was filled in, and nothing was made."""
    page = await tess.post(KEYS, fields)
    assert page.status == 400
    assert said in page.text
    assert 'aria-invalid="true"' in page.text or "role" in fields
    assert len(await running.accounts.list_keys()) == 1


async def test_a_key_is_replaced_with_an_overlap(running: Running, tess: Browser) -> None:
    """The new key is shown once; sending it twice replaces once."""
    old = await key_id(running, "tests")
    page = await tess.post(f"{KEYS}/{old}/rotate", {"overlap_s": "86400"})
    assert page.status == 201
    new = await key_id(running, "tests")
    assert new != old
    assert new == f"{old}.{shown_key(page).split('-')[1]}"
    assert "works until" in page.text
    twice = await tess.post(f"{KEYS}/{old}/rotate", {"overlap_s": "86400"})
    assert twice.status == 400
    assert len(await running.accounts.list_keys()) == 2
    assert (await tess.post(f"{KEYS}/{new}/rotate", {"overlap_s": "5"})).status == 400


async def test_limits_expiry_and_revocation(running: Running, tess: Browser) -> None:
    """Each by its form; empty limits are the configuration's; a revoked key has no forms any more."""
    mine = await key_id(running, "tests")
    page = f"{KEYS}/{mine}"
    assert (await tess.post(f"{page}/limits", {"concurrency": "3"})).location == page
    assert [rule.limits.concurrency for rule in await LimitStore(running.engine).all()] == [3]
    for _ in range(2):
        assert (await tess.post(f"{page}/limits", {"concurrency": ""})).location == page
    assert await LimitStore(running.engine).all() == []
    assert (await tess.post(f"{page}/expiry", {"expires_on": "2090-01-31"})).location == page
    assert (await running.accounts.list_keys())[0].expires_at == datetime(2090, 2, 1, tzinfo=UTC)
    assert (await tess.post(f"{page}/expiry", {"expires_on": "2020-01-31"})).status == 400
    assert (await tess.post(f"{page}/block")).location == page
    assert "Unblock the key" in (await tess.get(page)).text
    assert (await running.accounts.list_keys())[0].blocked_at is not None
    assert (await tess.post(f"{page}/unblock")).location == page
    assert (await running.accounts.list_keys())[0].blocked_at is None
    assert (await tess.post("/dashboard/teams/team_a/block")).status == 403
    assert (await tess.post(f"{page}/revoke")).location == KEYS
    shown = await tess.get(page)
    assert "revoked" in shown.text
    assert "<form" not in shown.text.partition("<main")[2]
    actions = [each.action for each in await AuditLog(running.engine).page(Scope(organisation_id="default"))]
    assert actions[:3] == ["key.revoked", "key.unblocked", "key.blocked"]
    assert actions[3:] == ["key.changed", "limit.removed", "limit.set"]


async def test_who_may_not_sees_and_does_less(running: Running) -> None:
    """A member reads the list; forms answer 403; another team's member finds nothing; nothing changes."""
    mine = await key_id(running, "tests")
    await running.accounts.create_team("team_b")
    forms = ("", f"/{mine}/rotate", f"/{mine}/expiry", f"/{mine}/limits", f"/{mine}/revoke")
    async with signed_in(running, "milo@example.com", teams={"team_a": "member"}) as milo:
        assert (await milo.get(KEYS)).status == 200
        assert f"{KEYS}/new" not in (await milo.get(KEYS)).text
        assert "<form" not in (await milo.get(f"{KEYS}/{mine}")).text.partition("<main")[2]
        assert (await milo.get(f"{KEYS}/new")).status == 403
        assert [(await milo.post(KEYS + form, {"name": "x"})).status for form in forms] == [403] * 5
    async with signed_in(running, "bert@example.com", teams={"team_b": "admin"}) as bert:
        assert (await bert.get(KEYS)).status == 404
        assert [(await bert.post(KEYS + form, {"name": "x"})).status for form in forms] == [404] * 5
        # Through one's own team another team's key is as unknown as none.
        theirs = KEYS.replace("team_a", "team_b")
        for key in (mine, "key_nothing"):
            assert (await bert.get(f"{theirs}/{key}")).status == 404
            assert (await bert.post(f"{theirs}/{key}/revoke")).status == 404
            assert (await bert.post(f"{theirs}/{key}/limits", {"concurrency": "1"})).status == 404
            assert (await bert.post(f"{theirs}/{key}/rotate", {"overlap_s": "0"})).status == 404
    async with signed_in(running, "finn@example.com", role="finance") as finn:
        assert (await finn.get(KEYS)).status == 200
        assert (await finn.post(KEYS, {"name": "x"})).status == 403
    assert (await running.accounts.list_keys())[0].revoked_at is None
    assert await AuditLog(running.engine).page(Scope(organisation_id="default")) == []


async def test_a_team_administrator_gets_no_key_of_the_organisation(running: Running, tess: Browser) -> None:
    """Neither by the form's role nor by replacing one; an administrator of the organisation does."""
    assert (await tess.post(KEYS, {"name": "boss", "role": "admin"})).status == 403
    secret = PEPPER.encode()
    pepper = Pepper(id=pepper_id(secret), secret=secret)
    boss = (await running.accounts.create_key("team_a", "boss", pepper, role="admin")).key_id
    assert (await tess.post(f"{KEYS}/{boss}/rotate", {"overlap_s": "0"})).status == 403
    assert "<form" not in (await tess.get(f"{KEYS}/{boss}")).text.partition("<main")[2]
    async with signed_in(running, "ada@example.com", role="admin") as ada:
        made = await ada.post(KEYS, {"name": "books", "role": "finance"})
        assert made.status == 201
        assert "/usage" in made.text
        assert (await ada.post(f"{KEYS}/{boss}/rotate", {"overlap_s": "0"})).status == 201


async def test_names_stay_text(running: Running, tess: Browser) -> None:
    """A payload for a name is shown as it was typed, everywhere."""
    made = await tess.post(KEYS, {"name": PAYLOAD})
    mine = await key_id(running, PAYLOAD)
    budgets = KEYS.replace("/keys", "/budgets")
    assert (await tess.post(f"{KEYS}/{mine}/limits", {"concurrency": "1"})).status == 303
    pages = [made, *[await tess.get(page) for page in (KEYS, f"{KEYS}/{mine}", budgets)]]
    for page in pages:
        assert html.escape("<script>alert(1)</script>") in page.text
        assert "<script>alert" not in page.text
        assert "<img src=x" not in page.text


async def test_the_list_sorts_searches_and_is_a_csv(tess: Browser) -> None:
    """By its address."""
    for name in ("beta", "alpha"):
        await tess.post(KEYS, {"name": name})
    page = await tess.get(f"{KEYS}?sort=name")
    assert page.text.index(">alpha<") < page.text.index(">beta<") < page.text.index(">tests<")
    csv = await tess.get(f"{KEYS}?sort=name&q=alph&format=csv")
    assert csv.headers["content-type"].startswith("text/csv")
    assert [line.split(",")[0] for line in csv.text.splitlines()] == ["name", "alpha"]
