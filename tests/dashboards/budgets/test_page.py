"""A team's budgets and limits on their page: the organisation's administrators bound the team, the team's its keys."""

import csv
import html
import io
import re
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from accounts.keys import Pepper
from api.budgets.listing import budget_as_json
from cost.budgets.budget import Budget
from cost.budgets.periods import Period
from cost.budgets.store import BudgetStore
from cost.ledger.store import LedgerStore
from cost.scopes import Scope
from cost.times import DAY_US, wall_us
from proxy.admit.limits.limit import Limits
from proxy.admit.limits.rules import Place, Rule
from proxy.admit.limits.store import LimitStore
from tests.api.webhooks.receiver import SECRET
from tests.cost.entries import settle
from tests.in_turn import in_turn
from tests.running_gateway import Running, model, running_gateway
from tests.signed_in import Browser, signed_in

BUDGETS = "/dashboard/teams/team_a/budgets"
FORM = {"limit_usd": "5", "period": "month", "kind": "hard", "on_exhausted": "refuse", "webhook": ""}


@pytest.fixture
async def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.setenv("WEBHOOK_TEST_SECRET", SECRET)
    # Nobody listens there, and nothing is sent.
    finance = {"name": "finance", "url": "http://127.0.0.1:9/", "secret": "env:WEBHOOK_TEST_SECRET"}
    scripted = [model("m", [{"kind": "scripted", "upstream_model": "ok"}])]
    async with running_gateway(tmp_path, scripted, webhooks={"destinations": [finance]}) as found:
        yield found


@pytest.fixture
async def tess(running: Running) -> AsyncIterator[Browser]:
    """An administrator of the team, and nothing else."""
    async with signed_in(running, "tess@example.com", teams={"team_a": "admin"}) as found:
        yield found


@pytest.fixture
async def ada(running: Running) -> AsyncIterator[Browser]:
    """The organisation's administrator."""
    async with signed_in(running, "ada@example.com", role="admin") as found:
        yield found


async def key_of(running: Running) -> str:
    return (await running.accounts.list_keys("team_a"))[0].key_id


async def kept(running: Running) -> list[Budget]:
    return [each.budget for each in await BudgetStore(running.engine).all()]


async def team_budget(running: Running, budget_id: str = "b1") -> None:
    budget = Budget(
        budget_id=budget_id,
        organisation_id="default",
        scope="team",
        scope_id="team_a",
        period="month",
        kind="soft",
        limit_nanousd=10**9,
    )
    await BudgetStore(running.engine).put(budget)


async def test_a_budget_is_set_changed_and_removed(running: Running, ada: Browser) -> None:
    """Of the team, by the organisation's administrator."""
    assert (await ada.post(BUDGETS, {**FORM, "budget_of": "team", "webhook": "finance"})).location == BUDGETS
    (budget,) = await kept(running)
    assert (budget.scope, budget.scope_id, budget.limit_nanousd) == ("team", "team_a", 5 * 10**9)
    assert (budget.kind, budget.webhook) == ("hard", "finance")
    page = f"{BUDGETS}/{budget.budget_id}"
    assert 'value="5"' in (await ada.get(page)).text
    change = {"limit_usd": "7.25", "on_exhausted": "downgrade", "webhook": ""}
    assert (await ada.post(page, change)).location == BUDGETS
    (changed,) = await kept(running)
    assert (changed.limit_nanousd, changed.on_exhausted, changed.kind) == (7_250_000_000, "downgrade", "hard")
    assert (await ada.post(f"{page}/remove")).location == BUDGETS
    assert await kept(running) == []
    assert (await ada.get(page)).status == 404


@in_turn(
    "changes, said",
    [
        ({"budget_of": ""}, "This is needed."),
        ({"budget_of": "planet"}, "Choose the team"),
        ({"budget_of": "key:key_nothing"}, "There is no key"),
        ({"limit_usd": ""}, "This is needed"),
        ({"limit_usd": "-1"}, "A number from"),
        ({"period": "decade"}, "Choose one of"),
        ({"webhook": "nowhere"}, "Choose one of"),
    ],
)
async def test_what_is_wrong_stands_at_its_field(
    running: Running, ada: Browser, changes: dict[str, str], said: str
) -> None:
    """The form comes again, and nothing was set."""
    page = await ada.post(BUDGETS, {**FORM, "budget_of": "team", **changes})
    assert page.status == 400
    assert said in page.text
    assert await kept(running) == []


async def test_a_budget_is_raised_and_topped_up(running: Running, ada: Browser) -> None:
    """By forms of its page; the raise ends with the day, and a payment sent twice is paid in once."""
    await ada.post(BUDGETS, {**FORM, "budget_of": "team", "period": "prepaid"})
    (made,) = await kept(running)
    page = f"{BUDGETS}/{made.budget_id}"
    assert (await ada.post(f"{page}/raise", {"raised_usd": "9", "raised_until": "2090-01-31"})).location == page
    assert "Raised until" in (await ada.get(page)).text
    assert (await kept(running))[0].raised_nanousd == 9 * 10**9
    for bad in (
        {"raised_usd": "9", "raised_until": ""},
        {"raised_usd": "9", "raised_until": "soon"},
        {"raised_usd": "9", "raised_until": "2020-01-01"},
    ):
        assert (await ada.post(f"{page}/raise", bad)).status == 400
    assert (await ada.post(f"{page}/raise", {"raised_usd": "", "raised_until": ""})).location == page
    for _ in range(2):
        assert (await ada.post(f"{page}/topups", {"topup_usd": "3", "topup_id": "t1"})).location == page
    assert (await ada.post(f"{page}/topups", {"topup_usd": "", "topup_id": "t2"})).status == 400
    (after,) = await kept(running)
    assert (after.limit_nanousd, after.raised_until_us) == (8 * 10**9, 0)


async def test_budgets_of_no_team_have_a_page_too(running: Running, ada: Browser, tess: Browser) -> None:
    """The organisation's, a tag's, a model's and that of each end user are raised, changed and removed as a team's are."""
    await running.accounts.create_organisation("globex")
    scopes: tuple[tuple[Scope, str, str], ...] = (
        ("organisation", "default", "Budget of the whole organisation"),
        ("tag", "default/search", "search"),
        ("model", "default/m", "Budget of m"),
        ("end_user", "*/default", "Each one of every team"),
    )
    for scope, scope_id, shown in scopes:
        made = Budget(
            budget_id=f"b_{scope}",
            organisation_id="default",
            scope=scope,
            scope_id=scope_id,
            period="month",
            kind="hard",
            limit_nanousd=10**9,
        )
        await BudgetStore(running.engine).put(made)
        page = f"/dashboard/budgets/{made.budget_id}"
        assert f'href="{page}"' in (await ada.get("/dashboard/budgets")).text
        assert shown in (await ada.get(page)).text
        assert (await ada.post(f"{page}/raise", {"raised_usd": "9", "raised_until": "2090-01-31"})).location == page
        assert "Raised until" in (await ada.get(page)).text
        assert (await ada.post(f"{page}/raise", {"raised_usd": "0.5", "raised_until": "2090-01-31"})).status == 400
        assert (await BudgetStore(running.engine).get(made.budget_id)).limit_nanousd == 9 * 10**9
        assert (await ada.post(page, {"limit_usd": "2", "on_exhausted": "refuse", "webhook": ""})).status == 303
        assert (await tess.get(page)).status == 403
        assert (await tess.post(f"{page}/raise", {"raised_usd": "99", "raised_until": "2090-01-31"})).status == 403
        async with signed_in(running, "eve@example.com", role="admin", organisation_id="globex") as eve:
            assert (await eve.get(page)).status == 404
            assert (await eve.post(f"{page}/raise", {"raised_usd": "", "raised_until": ""})).status == 404
        assert (await ada.post(f"{page}/remove")).location == "/dashboard/budgets"
    assert await kept(running) == []


async def test_amounts_stand_in_a_second_currency_too(tmp_path: Path) -> None:
    """On pages and in files, with its rate and day; what is stored is dollars."""
    scripted = [model("m", [{"kind": "scripted", "upstream_model": "ok"}])]
    eur = {"EUR": {"rate": "0.92", "as_of": "2026-11-27", "source": "ECB"}}
    async with (
        running_gateway(tmp_path, scripted, cost={"shown_currency": eur}) as running,
        signed_in(running, "ada@example.com", role="admin") as ada,
    ):
        await ada.post(BUDGETS, {**FORM, "budget_of": "team"})
        shown = (await ada.get(BUDGETS)).text
        assert "4.60 EUR" in shown
        assert "0.92 EUR to the US dollar of 2026-11-27 (ECB)" in shown
        heading, row = (await ada.get(f"{BUDGETS}?format=csv&table=budgets")).text.splitlines()
        cells = dict(zip(heading.split(","), row.split(","), strict=True))
        limits = {name: Decimal(value) for name, value in cells.items() if name.startswith("limit")}
        assert limits == {"limit_usd": 5, "limit_eur_at_0.92_of_2026-11-27": Decimal("4.6")}
        headers = {"authorization": f"Bearer {running.key}", "accept": "text/csv"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"{running.url}/v1/usage?group_by=day") as reply,
        ):
            assert (await reply.text()).splitlines()[0].endswith(",savings_usd,cost_eur_at_0.92_of_2026-11-27")
        assert [each.limit_nanousd for each in await kept(running)] == [5 * 10**9]


async def test_the_same_budget_twice_is_told(running: Running, ada: Browser) -> None:
    """One for the same team, period and kind stands in the way."""
    await ada.post(BUDGETS, {**FORM, "budget_of": "team"})
    assert (await ada.post(BUDGETS, {**FORM, "budget_of": "team"})).status == 400
    assert len(await kept(running)) == 1


async def test_a_teams_administrator_bounds_its_keys(running: Running, tess: Browser) -> None:
    """Not the team: it cannot widen what it was given, by no form."""
    await team_budget(running)
    place = Place("team", "team_a")
    await LimitStore(running.engine).put(Rule(place=place, limits=Limits(concurrency=1)))
    key = f"key:{await key_of(running)}"
    assert 'value="team"' not in (await tess.get(BUDGETS)).text
    assert (await tess.post(BUDGETS, {**FORM, "budget_of": key})).location == BUDGETS
    assert (await tess.post(f"{BUDGETS}/limits", {"limit_of": key, "concurrency": "2"})).location == BUDGETS
    refused: list[tuple[str, dict[str, Any]]] = [
        ("", {**FORM, "budget_of": "team", "kind": "hard"}),
        ("/b1", {**FORM, "limit_usd": "1000"}),
        ("/b1/remove", {}),
        ("/limits", {"limit_of": "team", "concurrency": "1000"}),
        ("/limits/remove", {"limit_of": "team"}),
    ]
    for path, fields in refused:
        assert (path, (await tess.post(BUDGETS + path, fields)).status) == (path, 403)
    assert sorted(budget.scope for budget in await kept(running)) == ["key", "team"]
    rules = {rule.place.scope: rule.limits.concurrency for rule in await LimitStore(running.engine).all()}
    assert rules == {"key": 2, "team": 1}
    assert "<form" not in (await tess.get(f"{BUDGETS}/b1")).text.partition("<main")[2]


async def test_a_teams_administrator_is_offered_the_keys_that_it_may_bound(
    running: Running, tess: Browser, ada: Browser
) -> None:
    """Not a key of another role; a refusal keeps what was typed, at the field that it is about."""
    member, pepper = await key_of(running), Pepper(id="p", secret=b"p" * 32)
    admins = (await running.accounts.create_key("team_a", "robot", pepper, role="admin")).key_id
    page = (await tess.get(BUDGETS)).text
    assert f'value="key:{member}"' in page
    assert f'value="key:{admins}"' not in page
    assert f'value="key:{admins}"' in (await ada.get(BUDGETS)).text
    refused = await tess.post(BUDGETS, {**FORM, "budget_of": f"key:{admins}", "limit_usd": "12.75", "period": "week"})
    assert refused.status == 403
    assert "is for the organisation&#39;s administrators to change" in refused.text
    assert 'value="12.75"' in refused.text
    assert '<option value="week" selected' in refused.text
    assert await kept(running) == []
    await ada.post(BUDGETS, {**FORM, "budget_of": f"key:{admins}"})
    (made,) = await kept(running)
    assert ">Show</a>" in (await tess.get(BUDGETS)).text
    assert "<form" not in (await tess.get(f"{BUDGETS}/{made.budget_id}")).text.partition("<main")[2]


async def test_soft_budgets_are_not_told_as_refusing(running: Running, ada: Browser, tess: Browser) -> None:
    """A spent one stops nobody: it is counted apart from hard ones, on the organisation's page and on the team's."""
    await team_budget(running)
    await LedgerStore(running.engine).insert(
        [settle("r", team_id="team_a", at_us=wall_us(), cost_nanousd=2_000_000_000)]
    )
    everywhere = html.unescape((await ada.get("/dashboard/budgets")).text)
    assert re.search(r"Hard, used up.{0,120}?>0<", everywhere, re.DOTALL)
    assert re.search(r"Soft, used up.{0,120}?>1<.{0,120}?they warn and refuse nothing", everywhere, re.DOTALL)
    assert "over, warns only" in everywhere
    assert "over, warns only" in (await tess.get(BUDGETS)).text
    assert "Over, warns only" in (await tess.get("/dashboard/teams/team_a")).text
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {running.key}"}) as session,
        session.post(f"{running.base_url}/chat/completions", json=body) as reply,
    ):
        assert reply.status == 200, "and in deed it refuses nothing"


async def test_limits_are_set_shown_for_change_and_removed(running: Running, ada: Browser) -> None:
    """On all models or one; the address fills the form; without any value it says what to do."""
    fields = {"limit_of": "team", "model": "m", "requests_per_minute": "60"}
    assert (await ada.post(f"{BUDGETS}/limits", fields)).location == BUDGETS
    (rule,) = await LimitStore(running.engine).all()
    assert rule.place == Place("team", "team_a", "m")
    page = await ada.get(f"{BUDGETS}?limit_of=team&model=m")
    assert 'name="requests_per_minute" type="number" value="60"' in page.text
    assert (await ada.post(f"{BUDGETS}/limits", {"limit_of": "team"})).status == 400
    assert (await ada.post(f"{BUDGETS}/limits", {"limit_of": "team", "model": "m", "request_burst": "5"})).status == 400
    for _ in range(2):
        assert (await ada.post(f"{BUDGETS}/limits/remove", fields)).location == BUDGETS
    assert await LimitStore(running.engine).all() == []


async def test_another_teams_budget_is_unknown(running: Running, ada: Browser) -> None:
    """By its id on one's own team's page, also to who may read that team."""
    await running.accounts.create_team("team_b")
    await team_budget(running)
    theirs = BUDGETS.replace("team_a", "team_b")
    assert (await ada.get(f"{theirs}/b1")).status == 404
    assert (await ada.post(f"{theirs}/b1", FORM)).status == 404
    assert (await ada.post(f"{theirs}/b1/remove")).status == 404
    assert len(await kept(running)) == 1


async def test_a_tags_spending_is_not_a_teams_to_see(running: Running, ada: Browser, tess: Browser) -> None:
    """The team is told the budget of a tag that it uses, but not what others spend under it."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    headers = {"authorization": f"Bearer {running.key}", "x-weighbridge-tag": "search"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{running.base_url}/chat/completions", json=body, headers=headers) as reply,
    ):
        assert reply.status == 200
    await running.rows()
    budget = Budget(
        budget_id="b1",
        organisation_id="default",
        scope="tag",
        scope_id="default/search",
        period="month",
        kind="soft",
        limit_nanousd=10**9,
    )
    await BudgetStore(running.engine).put(budget)
    shown = [(await browser.get(f"{BUDGETS}?format=csv&table=budgets")).text for browser in (ada, tess)]
    cells = [text.splitlines()[1].split(",") for text in shown]
    assert [each[:4] for each in cells] == [["Tag search", "month", "soft", "1.000000000"]] * 2
    assert (cells[0][4] != "", cells[1][4:8]) == (True, [""] * 4)
    assert (await tess.get(f"{BUDGETS}/b1")).status == 200


async def test_who_may_not_changes_nothing(running: Running) -> None:
    """A member reads and finds no forms; another team's administrator finds nothing."""
    await running.accounts.create_team("team_b")
    async with signed_in(running, "milo@example.com", teams={"team_a": "member"}) as milo:
        page = await milo.get(BUDGETS)
        assert page.status == 200
        assert '<form method="post"' not in page.text.partition("<main")[2]
        for path in ("", "/limits", "/limits/remove"):
            assert (await milo.post(BUDGETS + path, {})).status == 403
    async with signed_in(running, "bert@example.com", teams={"team_b": "admin"}) as bert:
        assert (await bert.get(BUDGETS)).status == 404


async def test_both_tables_are_csvs(running: Running, ada: Browser) -> None:
    """Each by its name."""
    await team_budget(running)
    budgets = await ada.get(f"{BUDGETS}?format=csv&table=budgets")
    assert budgets.text.splitlines()[0].startswith("of,period,kind,limit_usd")
    assert budgets.text.splitlines()[1].startswith("The whole team,month,soft,1")
    limits = await ada.get(f"{BUDGETS}?format=csv&table=limits")
    assert limits.text.splitlines()[0].startswith("of,model,requests_per_minute")


async def test_all_budgets_of_the_organisation_are_on_one_page(running: Running, ada: Browser, tess: Browser) -> None:
    """By name, the most used first, with a way to each; another organisation's and its keys are not there."""
    store, now_us = BudgetStore(running.engine), wall_us()
    key_id = await key_of(running)
    await running.accounts.create_organisation("globex")
    await running.accounts.create_team("gx", "Globex team", organisation_id="globex")
    for budget_id, owner, scope, scope_id, limit_nanousd in (
        ("b_team", "default", "team", "team_a", 1_000_000_000),
        ("b_key", "default", "key", key_id, 10_000_000_000),
        ("b_theirs", "globex", "team", "gx", 1),
    ):
        await store.put(
            Budget(
                budget_id=budget_id,
                organisation_id=owner,
                scope=cast(Scope, scope),
                scope_id=scope_id,
                period="month",
                kind="soft",
                limit_nanousd=limit_nanousd,
            )
        )
    await LedgerStore(running.engine).insert(
        [settle("r", team_id="team_a", key_id=key_id, at_us=now_us, cost_nanousd=900_000_000)]
    )
    found = await ada.get("/dashboard/budgets")
    assert found.status == 200
    assert found.text.index(f"{BUDGETS}/b_team") < found.text.index(f"{BUDGETS}/b_key")
    assert "90.0 %" in found.text
    assert "b_theirs" not in found.text
    rows = list(csv.DictReader(io.StringIO((await ada.get("/dashboard/budgets?format=csv&table=budgets")).text)))
    assert [(row["id"], row["state"], row["share"]) for row in rows] == [
        ("b_team", "80 % spent", "0.9000"),
        ("b_key", "open", "0.0900"),
    ]
    assert (await tess.get("/dashboard/budgets")).status == 403
    assert "90.0 % of $" in html.unescape((await ada.get("/dashboard/teams")).text)


async def test_what_runs_out_before_its_reset_is_told_everywhere_alike(running: Running, ada: Browser) -> None:
    """On the organisation's page and the team's, of the budget itself and by the API; what is not known is said to be."""
    now_us = wall_us()
    store = BudgetStore(running.engine)
    for budget_id, scope, scope_id, period, limit in (
        ("b_short", "team", "team_a", "prepaid", 40 * 10**9),
        ("b_long", "team", "team_a", "lifetime", 10**15),
        ("b_unknown", "key", await key_of(running), "year", 10**9),
    ):
        await store.put(
            Budget(
                budget_id=budget_id,
                organisation_id="default",
                scope=cast(Scope, scope),
                scope_id=scope_id,
                period=cast(Period, period),
                kind="hard",
                limit_nanousd=limit,
            )
        )
    days = [
        settle(f"r{day}", team_id="team_a", key_id="key_other", at_us=now_us - day * DAY_US, cost_nanousd=10**9)
        for day in range(1, 20)
    ]
    await LedgerStore(running.engine).insert(days)
    told = {each.budget.budget_id: budget_as_json(each) for each in await store.of_organisation("default")}
    assert [told[name]["lasts"] for name in ("b_short", "b_long", "b_unknown")] == [False, True, None]
    ends = told["b_short"]["runs_out_on"]
    for page in ("/dashboard/budgets", BUDGETS):
        file = await ada.get(f"{page}?format=csv&table=budgets")
        rows = {row["period"]: row["lasts"] for row in csv.DictReader(io.StringIO(file.text))}
        assert rows == {"prepaid": f"on {ends}", "lifetime": "not within 90 days", "year": "not known"}
    for page in (f"{BUDGETS}/b_short", "/dashboard/budgets", "/dashboard/teams/team_a"):
        assert ends in (await ada.get(page)).text


async def test_amounts_are_written_as_people_write_them(running: Running, ada: Browser) -> None:
    """With a dollar sign and commas between thousands; what may mean two things is asked for again."""
    for text, limit_nanousd in (
        ("$20", 20_000_000_000),
        ("1,000", 1_000_000_000_000),
        ("$12,345.50", 12_345_500_000_000),
    ):
        period = "day" if limit_nanousd < 10**12 else "week" if limit_nanousd == 10**12 else "month"
        sent = await ada.post(BUDGETS, {**FORM, "budget_of": "team", "limit_usd": text, "period": period})
        assert sent.status == 303, text
        limits = {each.budget.limit_nanousd for each in await BudgetStore(running.engine).of_organisation("default")}
        assert limit_nanousd in limits
    for wrong, told in (
        ("1,5", "write 1.50"),
        ("20,50", "write 20.50"),
        ("20$", "write it like 20.50"),
        ("1.000,50", "write 1000.50"),
    ):
        page = await ada.post(BUDGETS, {**FORM, "budget_of": "team", "limit_usd": wrong})
        assert page.status == 400, wrong
        assert told in page.text
        assert f'value="{wrong}"' in page.text


async def test_parts_of_a_teams_spending_are_bounded(running: Running, ada: Browser, tess: Browser) -> None:
    """Each end user, one, a model and a provider; the team's administrator sees them and sets none."""
    for choice, name in (
        ("end_user:*", ""),
        ("end_user:", "ada@example.com"),
        ("team_model:", "m"),
        ("team_provider:", "scripted"),
    ):
        form = {**FORM, "budget_of": choice, "budget_name": name}
        assert (await ada.post(BUDGETS, form)).location == BUDGETS, choice
        assert (await tess.post(BUDGETS, {**form, "kind": "soft"})).status == 403
    found = {budget.scope_id.partition("/")[2]: budget for budget in await kept(running)}
    digest = next(name for name in found if name.startswith("digest-"))
    assert {name: budget.scope for name, budget in found.items()} == {
        "*": "end_user",
        digest: "end_user",
        "m": "team_model",
        "scripted": "team_provider",
    }
    for browser in (ada, tess):
        page = (await browser.get(BUDGETS)).text
        assert all(each in page for each in ("Each end user", f"End user {digest}", "Model m", "Provider scripted"))
    assert "Budget of Each end user" in (await ada.get(f"{BUDGETS}/{found['*'].budget_id}")).text
    assert "each end user (Team A)" in (await ada.get("/dashboard/budgets")).text
    for choice, name, said in (
        ("end_user:", "", "This is needed."),
        ("team_model:", "nothing", "no model `nothing`"),
        ("team_provider:", "m", "no provider `m`; there are `scripted`"),
        ("model:", "m", "a part of what it spends"),
    ):
        page = (await ada.post(BUDGETS, {**FORM, "budget_of": choice, "budget_name": name})).text
        assert said in html.unescape(page)
    page = (await ada.post(f"{BUDGETS}/limits", {"limit_of": "team", "model": "n", "concurrency": "2"})).text
    assert "no model `n`" in html.unescape(page)


async def test_what_is_not_configured_any_more_is_told(running: Running, ada: Browser) -> None:
    """A budget or limit of a model that left the configuration bounds nobody: the pages say so, and it can be removed."""
    gone = Budget(
        budget_id="gone",
        organisation_id="default",
        scope="team_model",
        scope_id="team_a/gone",
        period="month",
        kind="hard",
        limit_nanousd=1,
    )
    await BudgetStore(running.engine).put(gone)
    await LimitStore(running.engine).put(Rule(place=Place("team", "team_a", "gone"), limits=Limits(concurrency=2)))
    for page in (BUDGETS, "/dashboard/budgets"):
        assert "not configured" in (await ada.get(page)).text.lower()
    assert "gone (not configured)" in (await ada.get(BUDGETS)).text
    assert (await ada.post(f"{BUDGETS}/limits/remove", {"limit_of": "team", "model": "gone"})).location == BUDGETS
    assert (await ada.post(f"{BUDGETS}/gone/remove")).location == BUDGETS
    assert "not configured" not in (await ada.get("/dashboard/budgets")).text.lower()


async def test_end_users_are_limited_on_the_page(running: Running, ada: Browser) -> None:
    """Each one and a single one; the row's link fills the form with it, and its button removes it."""
    await ada.post(f"{BUDGETS}/limits", {"limit_of": "end_user:*", "requests_per_minute": "60"})
    await ada.post(f"{BUDGETS}/limits", {"limit_of": "end_user:", "limit_name": "ada", "concurrency": "2"})
    rules = {each.place.scope_id: each.limits for each in await LimitStore(running.engine).all()}
    assert rules == {"team_a/*": Limits(requests_per_minute=60), "team_a/ada": Limits(concurrency=2)}
    page = (await ada.get(f"{BUDGETS}?limit_of=end_user:ada&model=")).text
    assert 'name="limit_name" value="ada"' in page or 'value="ada"' in page
    assert (await ada.post(f"{BUDGETS}/limits/remove", {"limit_of": "end_user:ada", "model": ""})).location == BUDGETS
    assert len(await LimitStore(running.engine).all()) == 1
    refused = await ada.post(f"{BUDGETS}/limits", {"limit_of": "team_model:", "limit_name": "m", "concurrency": "2"})
    assert refused.status == 400
