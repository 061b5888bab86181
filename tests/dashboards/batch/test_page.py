"""The pages of batches: what they show, to whom, and what can be done there."""

import asyncio
from pathlib import Path
from typing import Any

from cost.times import wall_us
from tests.api.webhooks.receiver import receiving
from tests.cost.ledger.in_files import put_in_files
from tests.processes import until
from tests.running_gateway import model, running_gateway
from tests.scenarios.conftest import scripted_upstream
from tests.scenarios.test_batch import FAST, client, ended, line, submit
from tests.signed_in import Browser, signed_in

LISTED: dict[str, Any] = {**FAST, "callback_networks": ["127.0.0.0/8"]}


async def shows(browser: Browser, path: str, text: str) -> str:
    """The page once it says this."""
    async with asyncio.timeout(60):
        while text not in (page := await browser.get(path)).text:
            assert page.status == 200, page.text[:500]
            await asyncio.sleep(0.05)
    return page.text


async def test_a_batch_is_followed_downloaded_and_its_callback_sent_again(tmp_path: Path) -> None:
    """By an administrator of the team; a member sees how far it is, and no prompts."""
    async with (
        scripted_upstream() as upstream,
        receiving() as receiver,
        running_gateway(tmp_path, [model("m", [upstream.deployment("ok")])], batch=LISTED) as running,
        client(running) as caller,
        signed_in(running, "admin@example.com", teams={"team_a": "admin"}) as admin,
        signed_in(running, "member@example.com", teams={"team_a": "member"}) as member,
        signed_in(running, "nobody@example.com") as nobody,
    ):
        asked = [line("good", "m"), line("unknown", "nobody"), line("<b>odd</b>", "nobody")]
        batch = await ended(caller, await submit(caller, asked, extra_body={"callback_url": receiver.url}))
        place = f"/dashboard/teams/team_a/batches/{batch.id}"
        for browser in (admin, member):
            assert batch.id in (await browser.get("/dashboard/batches")).text
        assert batch.id not in (await nobody.get("/dashboard/batches")).text
        page = await shows(admin, place, "Completed")
        assert "3 of 3" in page
        assert "model_not_found" in page
        assert "<b>odd</b>" not in page
        assert "&lt;b&gt;odd" in page
        # What refused its request was never anywhere.
        assert "m,,1," in await shows(admin, f"{place}?format=csv&table=served", "m,")
        await put_in_files(running.engine, wall_us())
        await shows(admin, place, "Not all are counted here: the entries of")
        output = await admin.get(f"{place}/files/output")
        assert output.text.count("\n") == 1
        assert (await admin.get(f"{place}/files/error")).text.count("\n") == 2
        assert (await admin.get(f"{place}/files/other")).status == 404
        assert (await member.get(place)).status == 200
        assert (await member.get(f"{place}/files/output")).status == 403
        assert (await nobody.get(place)).status == 404
        await until(lambda: len(receiver.received) == 1)
        assert (await admin.post(f"{place}/resend")).status == 303
        await until(lambda: len(receiver.received) == 2)
        # The same message, so that its receiver can tell.
        assert len(set(receiver.ids)) == 1


async def test_a_batch_is_cancelled_once(tmp_path: Path) -> None:
    """And its page refreshes itself while it runs."""
    async with (
        scripted_upstream() as upstream,
        running_gateway(
            tmp_path,
            [model("m", [upstream.deployment("slow-first-token-200ms+tokens-2")])],
            batch={**FAST, "at_once": 1},
        ) as running,
        client(running) as caller,
        signed_in(running, teams={"team_a": "admin"}) as admin,
    ):
        batch = await submit(caller, [line(f"c{number}", "m") for number in range(30)])
        await until(lambda: bool(upstream.arrived()))
        place = f"/dashboard/teams/team_a/batches/{batch.id}"
        running_page = await shows(admin, place, "In progress")
        assert 'hx-trigger="every 2s"' in running_page
        part = await admin.get(place, **{"hx-request": "true"})
        assert part.text.startswith('<div id="now"')
        assert (await admin.post(f"{place}/cancel")).status == 303
        page = await shows(admin, place, "Cancelled")
        assert 'hx-trigger="every 2s"' not in page
        again = await admin.post(f"{place}/cancel")
        assert again.status == 303


async def test_a_bad_file_is_told_by_line(tmp_path: Path) -> None:
    """With what to correct."""
    async with (
        scripted_upstream() as upstream,
        running_gateway(tmp_path, [model("m", [upstream.deployment("ok")])], batch=FAST) as running,
        client(running) as caller,
        signed_in(running, teams={"team_a": "member"}) as member,
    ):
        batch = await ended(caller, await submit(caller, [line("a", "m"), line("a", "m")]))
        page = await shows(member, f"/dashboard/teams/team_a/batches/{batch.id}", "What is wrong with the file")
        assert "duplicate_custom_id" in page
        assert "stands already on line 1" in page
