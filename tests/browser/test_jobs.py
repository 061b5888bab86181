"""What each kind of person comes for, from the sign-in on."""

import csv
import io
import re
import time
import uuid
from decimal import Decimal

import aiohttp
import pytest
from playwright.async_api import Browser, FilePayload, Page, expect

from tests.browser.site import PASSWORD, WEBHOOK_SECRET, Site, Visitor, visiting

pytestmark = pytest.mark.timeout(300)

_ADA = "ada@northwind.example"
_FINN = "finn@northwind.example"
_OLA = "ola@northwind.example"
_TESS = "tess@northwind.example"
_MILO = "milo@northwind.example"
_DINA = "dina@northwind.example"


async def _csv(page: Page, *, within: str = "main") -> list[dict[str, str]]:
    """The rows of the first table's CSV."""
    async with page.expect_download() as found:
        await page.locator(within).get_by_role("link", name="CSV").first.click()
    path = await (await found.value).path()
    return list(csv.DictReader(io.StringIO(path.read_text())))


async def _ask(site: Site, team_id: str, **headers: str) -> int:
    """A request of this team, with its own key."""
    body = {"model": "auto", "messages": [{"role": "user", "content": "Where is my parcel?"}]}
    sent = {"authorization": f"Bearer {site.keys[team_id]}", **headers}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{site.url}/v1/chat/completions", json=body, headers=sent) as reply,
    ):
        await reply.read()
        return reply.status


async def _until_shown(visitor: Visitor, path: str, selector: str) -> None:
    """Opens a page again and again until it shows this, for half a minute at most."""
    deadline = time.monotonic() + 30
    while await visitor.page.locator(selector).count() == 0:
        assert time.monotonic() < deadline, f"{path} never showed {selector}"
        await visitor.page.wait_for_timeout(500)
        await visitor.open(path)


async def test_a_team_admin_reads_how_the_team_stands(browser: Browser, site: Site) -> None:
    """Spend, forecast, savings and requests with their units; charts have a table twin; a request's decision in words."""
    async with visiting(browser, site, _TESS) as visitor:
        page = visitor.page
        await visitor.open("/dashboard/teams/support")
        await visitor.settled()
        text = await visitor.text()
        for wanted in ("Spent today", "Spent this month", "Requests in the last 30 days", "$"):
            assert wanted in text
        charts = await page.locator("figure").count()
        twins = await page.locator("figure details table, figure table").count()
        assert charts > 0
        assert twins >= charts
        await _legends_say_what_tables_say(page)
        await visitor.open("/dashboard/teams/support/requests")
        await page.locator("td a[href*='/requests/']").first.click()
        await page.wait_for_url(re.compile(r"/requests/req_"))
        await visitor.is_fine()
        assert "$" in await visitor.text()
        steps = await page.get_by_role("table", name="Time line").locator("tbody tr").all_inner_texts()
        assert "Arrived" in steps[0]
        assert any("First token to the caller" in each or "Answer to the caller" in each for each in steps)


async def _legends_say_what_tables_say(page: Page) -> None:
    """At rest a chart's legend has the last values, rounded as the last row of its table is."""
    figure = page.locator("figure:has(.u-legend)").first
    await expect(figure.locator(".u-legend .u-value").nth(1)).not_to_have_text("--")
    shown = [text.strip() for text in await figure.locator(".u-legend .u-series .u-value").all_inner_texts()][1:]
    cells = figure.locator("details.twin tbody tr").last.locator("td")
    written = [(text or "").strip() for text in await cells.all_text_contents()]
    assert sorted(shown) == sorted(written)


async def test_a_team_admin_finds_the_dearest_request_and_what_decided(browser: Browser, site: Site) -> None:
    """By cost, with another column, in the viewer's zone; its page has the models with what they were compared by; its id
    leads back to it; on a phone the rows are cards.
    """
    assert await _ask(site, "support") == 200
    async with visiting(browser, site, _TESS) as visitor:
        page = visitor.page
        await visitor.open("/dashboard/teams/support/requests")
        assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z]", await page.locator("td time").first.inner_text())
        await visitor.press(page.get_by_role("link", name="Cost"))
        costs = [
            float((await each.get_attribute("title") or "")[1:])
            for each in await page.locator("td .figure-text[title]").all()
        ]
        assert len(costs) > 20
        assert costs == sorted(costs, reverse=True)
        await page.get_by_text("Columns", exact=True).click()
        await visitor.press(page.locator(".columns a[href$='%2Ctokens']"))
        await visitor.is_fine()
        await page.get_by_text("Filters", exact=True).click()
        await page.get_by_label("Cost above, $").fill("$1,000")
        await visitor.press(page.get_by_role("button", name="Filter"))
        assert "No request fits this." in await visitor.text()
        await visitor.press(page.get_by_role("link", name="Clear"))
        await visitor.press(page.locator("a.id").first)
        await visitor.is_fine()
        found = await visitor.text()
        assert "What the models were compared by" in found
        assert "Chosen" in found
        request_id = page.url.rpartition("/")[2]
        await visitor.open("/dashboard/teams/support/requests")
        await page.get_by_label("Search", exact=True).fill(request_id)
        await visitor.press(page.get_by_role("button", name="Search", exact=True))
        assert page.url.endswith(request_id)
    async with visiting(browser, site, _TESS, phone=True) as visitor:
        await visitor.open("/dashboard/teams/support/requests")
        assert await visitor.page.locator("td").first.evaluate("each => getComputedStyle(each).display") == "grid"
        await visitor.is_fine()


async def test_a_team_admin_invites_somebody_who_signs_in(browser: Browser, site: Site) -> None:
    """Into the team and nothing else: the link of the page leads to a password, and from there to the team."""
    email = f"nia-{uuid.uuid4().hex[:6]}@northwind.example"
    async with visiting(browser, site, _TESS) as visitor:
        page = visitor.page
        await visitor.open("/dashboard/teams/support/members")
        await page.get_by_label("Their e-mail address").fill(email)
        await page.get_by_label("Name", exact=True).fill("Nia Berg")
        await visitor.press(page.get_by_role("button", name="Invite", exact=True))
        link = await page.locator("#new-link").inner_text()
        await visitor.is_fine()
        await visitor.press(page.get_by_role("link", name="I have sent it"))
        assert email in await visitor.text()
    async with visiting(browser, site) as visitor:
        page = visitor.page
        await page.goto(link)
        for box in await page.locator("input[type=password]").all():
            await box.fill("a bridge over four scales")
        await visitor.press(page.locator("main button[type=submit]"))
        await visitor.open("/dashboard")
        assert "/dashboard/teams/support" in page.url
        await visitor.open("/dashboard/people", status=403)


async def test_a_developer_tries_a_prompt_and_compares_two_models(browser: Browser, site: Site) -> None:
    """The decision for each quality without a call, then two answers side by side with what they cost, booked to a key."""
    async with visiting(browser, site, _TESS) as visitor:
        page = visitor.page
        await visitor.open("/dashboard/teams/support/playground")
        await page.get_by_label("Prompt", exact=True).fill("Where is my parcel?")
        await page.get_by_role("button", name="Show the decision").click()
        await expect(page.locator("#decisions tbody tr").first).to_be_visible()
        assert 1 <= await page.locator("#decisions tbody tr").count() <= 6
        await visitor.is_fine()
        assert "The team's minimum is" in await visitor.text()
        assert await page.get_by_label("Prompt", exact=True).input_value() == "Where is my parcel?"
        await page.get_by_label("Ask", exact=True).select_option("llama-3-70b")
        await page.get_by_label("Compare with").select_option("gpt-4o")
        await page.get_by_role("button", name="Call and compare").click()
        await expect(page.locator("#answers .card")).to_have_count(2)
        await visitor.is_fine()
        text = await page.locator("#answers").inner_text()
        assert text.count("Cost") == 2
        assert "nobody" not in text
        link = await page.get_by_role("link", name="The request and its decision").first.get_attribute("href")
        assert link is not None
        deadline = time.monotonic() + 30
        while (await page.request.get(f"{site.url}{link}")).status == 404:
            assert time.monotonic() < deadline, f"{link} never came into the books"
            await page.wait_for_timeout(500)
    async with visiting(browser, site, _MILO) as visitor:
        await visitor.open("/dashboard/teams/support/playground")
        assert await visitor.page.get_by_role("button", name="Call and compare").count() == 0


async def test_a_developer_finds_a_model_and_how_to_call_it(browser: Browser, site: Site) -> None:
    """With price, context and ability; what is to be pasted has this gateway's address and the model's name."""
    async with visiting(browser, site, _MILO) as visitor:
        page = visitor.page
        await visitor.open("/dashboard/teams/support/models")
        await visitor.is_fine()
        await visitor.press(page.get_by_role("link", name="llama-3-70b", exact=True))
        await visitor.is_fine()
        pasted = "".join(await page.locator("main pre").all_inner_texts())
        assert f"{site.url}/v1" in pasted
        assert "llama-3-70b" in pasted


async def test_a_team_admin_is_told_when_it_gets_dear(browser: Browser, site: Site) -> None:
    """An alert with a threshold of its own stands beside what is measured now, and goes when it is removed."""
    name = f"dear {uuid.uuid4().hex[:6]}"
    async with visiting(browser, site, _TESS) as visitor:
        page = visitor.page
        await visitor.open("/dashboard/teams/support/alerts")
        await page.get_by_label("Name", exact=True).fill(name)
        await page.get_by_label("Threshold", exact=True).fill("$1,000")
        await visitor.press(page.get_by_role("button", name="Set the alert"))
        await visitor.is_fine()
        row = page.locator("tr", has_text=name)
        assert "$1,000.00" in await row.inner_text()
        await visitor.press(row.get_by_role("button", name="Remove"))
        assert name in await visitor.text()
        assert await page.locator("tr", has_text=name).count() == 0


async def test_an_administrator_sees_every_budget(browser: Browser, site: Site) -> None:
    """The most used first, by name, each with a way to it; a team over its budget is marked in the list of teams."""
    async with visiting(browser, site, _ADA) as visitor:
        page = visitor.page
        await visitor.open("/dashboard/budgets")
        await visitor.is_fine()
        assert await page.locator("td .badge").count() > 1
        await visitor.press(page.locator("td a[href*='/budgets/']").first)
        await visitor.is_fine()
        await visitor.open("/dashboard/teams")
        assert re.search(r"% of \$[0-9.,]+ (a|an|for) ", await visitor.text())


async def test_a_team_admin_hands_out_a_key(browser: Browser, site: Site) -> None:
    """It is shown once with what to paste, works, is rotated with an overlap, and is refused once it is revoked."""
    name = f"walk {uuid.uuid4().hex[:6]}"
    async with visiting(browser, site, _TESS) as visitor:
        page = visitor.page
        await visitor.open("/dashboard/teams/support/keys/new")
        await page.get_by_label("Name", exact=True).fill(name)
        await visitor.press(page.get_by_role("button", name="Create the key"))
        shown = await visitor.text()
        found = re.search(r"\bwb-[A-Za-z0-9_-]{20,}", shown)
        assert found is not None, shown[:1_000]
        key = found[0]
        assert "curl" in shown
        assert "OpenAI" in shown
        await visitor.is_fine()
        headers = {"authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession() as session, session.get(f"{site.url}/v1/models", headers=headers) as answer:
            assert answer.status == 200
        await visitor.open("/dashboard/teams/support/keys")
        assert key not in await page.content()
        await page.get_by_role("link", name=name).click()
        await page.wait_for_url(re.compile(r"/keys/key_"))
        assert key not in await page.content()
        await visitor.press(page.get_by_role("button", name=re.compile("Rotate|Replace|new one", re.IGNORECASE)).first)
        rotated = re.search(r"\bwb-[A-Za-z0-9_-]{20,}", await visitor.text())
        assert rotated is not None
        assert rotated[0] != key
        await visitor.is_fine()


async def test_a_team_admin_changes_the_policy(browser: Browser, site: Site) -> None:
    """The slider tells quality and saving, the change is shown first, wants a reason, and stands in the audit log."""
    reason = f"Measured by hand, {uuid.uuid4().hex[:6]}."
    async with visiting(browser, site, _DINA) as visitor:
        page = visitor.page
        await visitor.open("/dashboard/teams/developers/policy")
        await visitor.settled()
        slider = page.locator("input[type=range]")
        before = await page.locator("main").inner_text()
        await slider.focus()
        await page.keyboard.press("Home")
        await expect(page.locator("main")).not_to_have_text(before)
        assert "%" in await visitor.text()
        url = page.url
        await page.get_by_role("button", name="Show what would change").click()
        await expect(page.get_by_role("heading", name="Review before you apply")).to_be_visible()
        # It was no visit: going back leads to the page before, and to nothing that has to be sent again.
        assert page.url == url
        await visitor.is_fine()
        await page.get_by_label("Why").fill(reason)
        await visitor.press(page.get_by_role("button", name=re.compile("Apply|Change", re.IGNORECASE)).first)
        await visitor.is_fine()
    async with visiting(browser, site, _ADA) as visitor:
        await visitor.open("/dashboard/audit")
        assert reason in await visitor.text()


async def test_what_was_typed_is_there_again_after_signing_in_anew(browser: Browser, site: Site) -> None:
    """A session that ended loses nobody's form; nothing is sent by itself."""
    async with visiting(browser, site, _DINA) as visitor:
        page = visitor.page
        await visitor.open("/dashboard/teams/developers/alerts")
        await page.get_by_label("Name", exact=True).fill("Nearly lost")
        await page.get_by_label("Threshold", exact=True).fill("10")
        await visitor.context.clear_cookies()
        await visitor.press(page.get_by_role("button", name="Set the alert"))
        assert "You are signed out" in await visitor.text()
        # Browsers tell of the refused form in the console, as they should.
        visitor.wrong.clear()
        await visitor.press(page.get_by_role("link", name="Sign in and go on"))
        await page.get_by_label("E-mail").fill(_DINA)
        await page.get_by_label("Password").fill(PASSWORD)
        await visitor.press(page.get_by_role("button", name="Sign in", exact=True))
        await expect(page.get_by_label("Name", exact=True)).to_have_value("Nearly lost")
        assert "nothing was changed yet" in await visitor.text()
        await visitor.open("/dashboard/teams/developers/alerts")
        await expect(page.get_by_label("Name", exact=True)).to_have_value("")


async def test_a_member_reads_and_changes_nothing(browser: Browser, site: Site) -> None:
    """There is no form to change anything with, and the pages of others are not there."""
    async with visiting(browser, site, _MILO) as visitor:
        for path in ("", "/requests", "/policy", "/keys", "/budgets", "/members"):
            await visitor.open(f"/dashboard/teams/support{path}")
            forms = await visitor.page.locator("main form[method=post]").count()
            assert forms == 0, path
        await visitor.open("/dashboard/teams/legal", status=404)
        await visitor.open("/dashboard/teams/fjord-lab", status=404)
        await visitor.open("/dashboard/finance", status=403)
        await visitor.open("/dashboard/operations", status=403)
        await visitor.open("/dashboard/people", status=403)


async def test_finance_checks_the_claim_and_closes_the_month(browser: Browser, site: Site) -> None:
    """The verdict with its interval; a checklist; showback whose rows are the bill; and no way to change anything."""
    async with visiting(browser, site, _FINN) as visitor:
        page = visitor.page
        await visitor.open("/dashboard/finance")
        text = await visitor.text()
        assert re.search(r"\b(Met|Not met|Not enough data)\b", text)
        # The interval, or that there are too few requests for one.
        assert "95 %" in text or "fewer than 30 requests in an arm" in text
        assert "Utilisation" in text or "utilisation" in text
        rows = await _csv(page)
        assert len(rows) == 3
        await visitor.open("/dashboard/finance/showback")
        text = await visitor.text()
        bill = re.search(r"The bill\s+\$([\d,]+\.\d\d)", text)
        assert bill is not None
        rows = await _csv(page, within="section:has(table), main")
        assert any("Idle" in value or "idle" in value for row in rows for value in row.values())
        cost = next(name for name in rows[0] if re.search("total|cost|bill", name, re.IGNORECASE))
        summed = sum((Decimal(re.sub(r"[^\d.-]", "", row[cost]) or 0) for row in rows), Decimal(0))
        assert abs(summed - Decimal(bill[1].replace(",", ""))) < Decimal("0.02"), (cost, rows[:3])
        await visitor.open("/dashboard/finance/month")
        assert "open" in await visitor.text()
        await visitor.open("/dashboard/finance/prices")
        assert "contract-2026" in await visitor.text()
        await visitor.open("/dashboard/teams/support/policy")
        assert await page.locator("main form[method=post]").count() == 0


async def test_finance_compares_a_table_that_openai_downloads(browser: Browser, site: Site) -> None:
    """What differs stands first, and nothing is posted."""
    # Which models a day's made-up requests went to is a matter of chance; within a week it was this one, too.
    days_s = [int(time.time()) // 86_400 * 86_400 - before * 86_400 for before in range(2, 9)]
    headings = "start_time,end_time,amount_value,amount_currency,line_item,project_id"
    lines = [
        f'{day_s},{day_s + 86_400},{usd},usd,"{model}, input",'
        for day_s in days_s
        for model, usd in (("gpt-4o-mini", 1), ("gpt-4o", 900))
    ]
    export: FilePayload = {"name": "cost.csv", "mimeType": "text/csv", "buffer": "\n".join([headings, *lines]).encode()}
    async with visiting(browser, site, _FINN) as visitor:
        page = visitor.page
        await visitor.open("/dashboard/finance/reconciliation")
        await page.get_by_label("Files").set_input_files(export)
        await page.get_by_role("button", name="Compare").click()
        rows = page.locator("#compared tbody tr")
        await expect(rows.first).to_contain_text("$900.000000")
        await expect(rows.filter(has_text="differs").first).to_contain_text("$900.000000")
        assert "Nothing was booked." in await page.locator("#compared").inner_text()
        await visitor.is_fine()


async def test_finance_takes_exports_along(browser: Browser, site: Site) -> None:
    """Usage as CSV, FOCUS and OpenAI's shape come with the session alone."""
    async with visiting(browser, site, _FINN) as visitor:
        page = visitor.page
        await visitor.open("/dashboard/finance/exports")
        async with page.expect_download() as found:
            await page.get_by_role("button", name="Download").first.click()
        text = (await (await found.value).path()).read_text()
        assert text.count("\n") > 2
        async with page.expect_download() as found:
            await page.get_by_role("link", name="By day").first.click()
        assert "BilledCost" in (await (await found.value).path()).read_text().splitlines()[0]


async def test_an_operator_sees_what_is_open_and_drains_a_replica(browser: Browser, site: Site) -> None:
    """Incidents come first; a drain is a button, said again on the page, and taken back."""
    async with visiting(browser, site, _OLA) as visitor:
        page = visitor.page
        await visitor.open("/dashboard/operations")
        assert "Incidents" in await visitor.text()
        await visitor.open("/dashboard/operations/pools/l40s")
        await expect(page.get_by_text("replica-2").first).to_be_visible()
        for chart in ("Work expected and come", "Replicas ordered and ready"):
            await expect(page.get_by_text(chart).first).to_be_visible()
        for now, then in (("drain", "undrain"), ("undrain", "drain")):
            await visitor.press(page.locator(f"form[action$='/replicas/replica-2/{now}']").get_by_role("button"))
            await visitor.is_fine()
            # Every process follows within seconds; the page follows by itself, or when it is opened again.
            await _until_shown(
                visitor, "/dashboard/operations/pools/l40s", f"form[action$='/replicas/replica-2/{then}']"
            )
        await visitor.open("/dashboard/operations/config")
        await visitor.press(page.get_by_role("link", name="webhooks"))
        content = await page.content()
        assert WEBHOOK_SECRET.removeprefix("whsec_") not in content
        assert "SAMPLE_WEBHOOK_SECRET" in content


async def test_an_operator_watches_decisions_live(browser: Browser, site: Site) -> None:
    """An attempt stands on the page shortly after it ended, without loading it again."""
    async with visiting(browser, site, _OLA) as visitor:
        await visitor.open("/dashboard/operations/decisions")
        rows = visitor.page.locator("table tbody tr")
        first = await rows.first.inner_text()
        assert await _ask(site, "support") == 200
        await expect(rows.first).not_to_have_text(first, timeout=30_000)
        await expect(rows.first).to_contain_text("support")
        await visitor.is_fine()


async def test_an_administrator_invites_and_sends_away(browser: Browser, site: Site) -> None:
    """The link is shown once; it sets a password; who is disabled is out at the next click."""
    email = f"nils-{uuid.uuid4().hex[:6]}@northwind.example"
    async with visiting(browser, site, _ADA) as ada:
        page = ada.page
        await ada.open("/dashboard/people")
        await page.get_by_label("E-mail address").fill(email)
        await page.get_by_label("Name", exact=True).fill("Nils Berg")
        await page.get_by_label("First team").select_option("support")
        await ada.press(page.get_by_role("button", name="Invite"))
        found = re.search(r"/dashboard/welcome/[A-Za-z0-9_-]+", await page.content())
        assert found is not None
        await ada.is_fine()
        async with visiting(browser, site) as nils:
            await nils.open(found[0])
            await nils.is_fine()
            for field in await nils.page.locator("input[type=password]").all():
                await field.fill(PASSWORD)
            await nils.page.locator("main form button[type=submit]").click()
            await nils.page.wait_for_url(lambda url: "/welcome/" not in url)
            if "/sign-in" in nils.page.url:
                await nils.sign_in(email)
            await nils.open("/dashboard/teams/support")
            await nils.open(found[0], status=404)
            await ada.open("/dashboard/people")
            await ada.press(page.get_by_role("link", name="Nils Berg"))
            await ada.is_fine()
            await ada.press(page.get_by_role("button", name="Disable").first)
            await nils.open("/dashboard/teams/support")
            assert "/sign-in" in nils.page.url
