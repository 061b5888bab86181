"""The page of measurements: ordering one, following it, putting it in use and going back."""

import asyncio
from pathlib import Path

import pytest

from gateway.wiring import measuring
from tests.examinee import examinee, like
from tests.running_gateway import TRAINED, Running, model, running_gateway
from tests.signed_in import Browser, signed_in

PLACE = "/dashboard/operations/measurements"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "POLL_S", 0.02)


async def until(browser: Browser, path: str, text: str) -> str:
    """The page once it says this."""
    while text not in (page := await browser.get(path)).text:
        assert page.status == 200
        await asyncio.sleep(0.05)
    return page.text


async def test_an_operator_measures_and_puts_it_in_use(tmp_path: Path) -> None:
    """From the form to the tuning in use, and back."""
    async with (
        examinee(like("llama-3.1-70b-instruct")) as student,
        running_gateway(
            tmp_path, [model("fresh", [{"kind": "vllm", "base_url": student.url}])], classifier=TRAINED
        ) as running,
        signed_in(running, role="operator") as browser,
    ):
        assert (
            "Not measured, so chosen by declared capability alone: fresh"
            in (await browser.get("/dashboard/operations/classifier")).text
        )
        assert "fresh (not measured)" in (await browser.get(PLACE)).text
        wrong = await browser.post(PLACE, {"target": "stale", "questions": "60", "budget": "1"})
        assert wrong.status == 422
        poor = await browser.post(PLACE, {"target": "fresh", "questions": "60", "budget": "x"})
        assert poor.status == 422
        assert "is no number" in poor.text
        ordered = await browser.post(PLACE, {"target": "fresh", "questions": "60", "budget": "1"})
        assert ordered.status == 303
        page = await until(browser, ordered.location, "Put it in use")
        assert "Finished" in page
        assert "Beside known models" in page
        assert "→ fresh" in page
        assert "60 of 60" in page
        accepted = await browser.post(f"{ordered.location}/accept")
        assert accepted.location == ordered.location
        assert "Accepted" in (await browser.get(ordered.location)).text
        await adopted(running)
        classifier = (await browser.get("/dashboard/operations/classifier")).text
        assert "Not measured, so chosen" not in classifier
        assert "fresh measured:" in classifier
        assert "fresh (not measured)" not in (await browser.get(PLACE)).text
        back = await browser.post("/dashboard/operations/classifier/rollback")
        assert back.location == "/dashboard/operations/classifier"
        await adopted(running)
        assert "Not measured, so chosen" in (await browser.get("/dashboard/operations/classifier")).text
        assert (await browser.get(f"{PLACE}/mea_none")).status == 404


async def adopted(running: Running) -> None:
    await running.refresh_tunings()


async def test_a_stopped_one_goes_on(tmp_path: Path) -> None:
    """Stopped by hand, and gone on with a larger budget."""
    async with (
        examinee(like("gpt-4o-2024-05-13")) as student,
        running_gateway(
            tmp_path, [model("fresh", [{"kind": "vllm", "base_url": student.url}])], classifier=TRAINED
        ) as running,
        signed_in(running, role="operator") as browser,
    ):
        student.hangs_after = 5
        ordered = await browser.post(PLACE, {"target": "fresh", "questions": "45", "budget": "0.5"})
        await student.hangs.wait()
        await browser.post(f"{ordered.location}/stop")
        assert "stopped by" in await until(browser, ordered.location, "Go on")
        student.goes_on.set()
        await browser.post(f"{ordered.location}/go-on", {"budget": "2"})
        page = await until(browser, ordered.location, "45 of 45")
        assert "of at most" in page
        assert len({each.question_id for each in student.asked}) == 45


async def test_who_only_reads_orders_nothing(tmp_path: Path) -> None:
    """Finance sees what was found and no form."""
    async with (
        running_gateway(tmp_path, [model("fresh", [{"kind": "scripted", "upstream_model": "ok"}])]) as running,
        signed_in(running, role="finance") as browser,
    ):
        page = await browser.get(PLACE)
        assert page.status == 200
        assert "Nothing was measured yet" in page.text
        assert "Measure a target" not in page.text
        assert (await browser.post(PLACE, {"target": "fresh"})).status == 403
