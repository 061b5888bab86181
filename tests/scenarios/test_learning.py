"""A gateway learns: answers are compared behind the caller's back, verdicts become a tuning, and it is taken back."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from accounts.keys import Pepper
from accounts.pepper_file import pepper_id
from api.web.gateway import Gateway
from classifier.prediction import Prompt
from proxy.dispatch.attempt_result import CALLER_GONE
from proxy.learning.shadow import Shadow
from proxy.learning.tunings import AS_TRAINED, propose, roll_back
from tests.processes import Site, until
from tests.proxy.learning.test_shadow import label_of, reply
from tests.running_gateway import CHEAP_PRICES, PEPPER, Running, model, running_gateway
from tests.scenarios.conftest import Upstream

GIVEN, REFERENCE = "ok+tokens-5", "ok+tokens-2"
GIVEN_TEXT = " w0 w1 w2 w3 w4"


class Bench:
    """A judge on a socket that always prefers the caller's answer, and keeps what it was shown."""

    def __init__(self) -> None:
        self.url = ""
        self.shown: list[str] = []

    async def judge(self, request: web.Request) -> web.Response:
        asked = await request.json()
        material = asked["messages"][1]["content"]
        self.shown.append(json.dumps(asked["messages"]))
        return web.Response(body=reply(label_of(material, GIVEN_TEXT.strip())), content_type="application/json")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A judge for the test."""
    made, app = Bench(), web.Application()
    app.router.add_post("/v1/chat/completions", made.judge)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield made
    finally:
        await runner.cleanup()


class Town(msgspec.Struct, frozen=True):
    """A running gateway, and a caller at its door."""

    gateway: Running
    session: aiohttp.ClientSession

    @property
    def inside(self) -> Gateway:
        found: Gateway = self.gateway.parts
        return found

    @property
    def shadow(self) -> Shadow:
        assert self.gateway.live.line.shadow is not None
        found: Shadow = self.gateway.live.line.shadow
        return found

    async def ask(self, text: str = "hello", *, key: str | None = None, **fields: Any) -> tuple[str, Mapping[str, str]]:
        """The answer as the caller reads it, with its headers."""
        body = {"model": "auto", "messages": [{"role": "user", "content": text}], **fields}
        headers = {"authorization": f"Bearer {key or self.gateway.key}"}
        url = f"{self.gateway.base_url}/chat/completions"
        async with self.session.post(url, json=body, headers=headers) as got:
            said = await got.text()
            assert got.status == 200, said
            return said, got.headers

    async def get(self, path: str) -> str:
        headers = {"authorization": f"Bearer {self.gateway.key}"}
        async with self.session.get(self.gateway.url + path, headers=headers) as got:
            assert got.status == 200
            return await got.text()

    async def preview(self) -> Any:
        """What is expected to be kept; what it costs follows the bill, which grows with each request here."""
        offers = json.loads(await self.get("/v1/policy/preview?quality_floor=0.9"))["offers"]
        return [(offer["quality_kept"], offer["quality_kept_error"]) for offer in offers]

    async def speak_against(self, request_id: str) -> None:
        """Feedback: that answer was no good."""
        said = {"request_id": request_id, "passed": False}
        headers = {"authorization": f"Bearer {self.gateway.key}"}
        async with self.session.post(f"{self.gateway.base_url}/feedback", json=said, headers=headers) as got:
            assert got.status == 200, await got.text()

    async def verdicts(self) -> dict[tuple[str, str, str], tuple[int, float]]:
        counts = await self.inside.learning.counts("team_a")
        return {(each.target_id, each.source, each.signal): (each.verdicts, each.adequate) for each in counts}


@contextlib.asynccontextmanager
async def town(
    folder: Path, upstream: Upstream, bench: Bench, *, given: str = GIVEN, reference: str = REFERENCE, **more: Any
) -> AsyncIterator[Town]:
    """A cheap target and the reference, both measured by the packaged classifier, and a judge that `auto` never takes."""
    targets = [
        model("cheap", [upstream.deployment(given)], ability="llama-3-70b-instruct", prices=CHEAP_PRICES),
        model("dear", [upstream.deployment(reference)], ability="gpt-4o-2024-05-13"),
        model("judge", [{"name": "main", "kind": "openai", "base_url": bench.url, "upstream_model": "j"}]),
    ]
    sections: dict[str, Any] = {
        "cost": {"reference_target": "dear"},
        "policy": {"auto": ["cheap", "dear"], "quality_floor": 0.9},
        "classifier": {"shadow": {"judge_target": "judge", **more.pop("shadow", {})}},
        **more,
    }
    async with running_gateway(folder, targets, **sections) as gateway, aiohttp.ClientSession() as session:
        yield Town(gateway, session)


def spoken(said: str) -> str:
    """What an answer says, streamed or not."""
    if not said.startswith("data: "):
        return str(json.loads(said)["choices"][0]["message"]["content"])
    events = [event.removeprefix("data: ") for event in said.split("\n\n") if event]
    deltas = [choice["delta"] for event in events[:-1] for choice in json.loads(event)["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def arrived(upstream: Upstream) -> list[str]:
    """The scripts that were asked for, in order."""
    return [line.model for line in upstream.log if line.event == "arrived"]


async def test_a_share_is_compared_once_the_caller_is_served(tmp_path: Path, upstream: Upstream, bench: Bench) -> None:
    """The caller gets its answer as ever; then the reference and the judge are asked, booked, and the verdicts kept."""
    # Two requests a minute: were the comparisons admitted like a caller's, the second would find no place.
    async with town(tmp_path, upstream, bench, limits={"key": {"requests_per_minute": 2}}) as there:
        await there.gateway.accounts.update_team("team_a", shadow_share=1.0)
        for number, stream in enumerate((False, True), start=1):
            said, headers = await there.ask(f"Say hello {number} times.", stream=stream)
            assert (spoken(said), headers["x-weighbridge-target"]) == (GIVEN_TEXT, "cheap")
            await until(lambda done=number: there.shadow.counts["judged"] == done)  # type: ignore[misc]
        assert there.shadow.counts == {"sampled": 2, "judged": 2}
        assert arrived(upstream) == [GIVEN, REFERENCE] * 2
        assert len(bench.shown) == 2
        assert not any(name in shown for shown in bench.shown for name in ("cheap", "dear", "req_"))
        assert await there.verdicts() == {("cheap", "shadow", "judged"): (2, 1.0), ("dear", "shadow", "judged"): (2, 0)}
        rows = await there.gateway.rows("entry = 'settle'")
        assert [(row["alias"], row["target_id"], row["team_id"]) for row in rows] == [
            ("auto", "cheap", "team_a"),
            ("shadow", "dear", "team_a"),
            ("judge", "judge", "team_a"),
        ] * 2
        assert [row["baseline_nanousd"] is None for row in rows] == [False, True, True] * 2
        assert all(row["cost_nanousd"] for row in rows)
        assert rows[1]["request_id"] == f"{rows[0]['request_id']}-shadow"
        shown = await there.get("/metrics")
    assert 'weighbridge_shadow_total{result="judged"} 2.0' in shown
    assert 'weighbridge_verdicts_total{signal="judged",source="shadow"} 4.0' in shown
    assert 'weighbridge_requests_total{status="200",target="cheap",team="team_a",tier="interactive"} 2.0' in shown
    assert 'target="dear",team="team_a"' not in shown
    assert "weighbridge_in_flight_requests 0.0" in shown


async def test_a_reference_that_hangs_holds_up_nobody(tmp_path: Path, upstream: Upstream, bench: Bench) -> None:
    """Callers are served past it, the stop drops what waits and cuts what runs, and the cut call is booked."""
    async with town(tmp_path, upstream, bench, reference="hang", shadow={"max_concurrent": 1}) as there:
        await there.gateway.accounts.update_team("team_a", shadow_share=1.0)
        for number in range(3):
            said, _ = await there.ask(f"Say hello {number} times.")
            assert spoken(said) == GIVEN_TEXT
        await until(lambda: there.shadow.counts["sampled"] == 3 and "hang" in arrived(upstream))
        assert there.gateway.live.line.in_flight == 0
        assert sorted(arrived(upstream)) == ["hang", *[GIVEN] * 3]
        there.gateway.begin_drain()
        assert there.shadow.counts == {"sampled": 3, "draining": 2}
    async with there.gateway.engine.connect() as connection:
        found = await connection.exec_driver_sql("SELECT entry, status FROM ledger_entry WHERE alias = 'shadow'")
        rows = sorted(map(tuple, found.all()))
    await there.gateway.engine.dispose()
    assert rows == [("reserve", 0), ("settle", CALLER_GONE)]
    assert bench.shown == []


async def test_who_did_not_ask_for_it_is_never_compared(tmp_path: Path, upstream: Upstream, bench: Bench) -> None:
    """No share, learning off, a model named, the reference itself answering: each request is one call and no more."""
    async with town(tmp_path, upstream, bench) as there:
        accounts, secret = there.gateway.accounts, PEPPER.encode()
        for team_id, settings in (
            ("none", {}),
            ("silent", {"learning": "off"}),
            ("strict", {"shadow_share": 1.0}),
        ):
            allowed = ["dear"] if team_id == "strict" else None
            await accounts.create_team(team_id, allowed_models=allowed)
            if settings:
                await accounts.update_team(team_id, **settings)
            minted = await accounts.create_key(team_id, "tests", Pepper(id=pepper_id(secret), secret=secret))
            await there.ask(key=minted.plaintext)
        await accounts.update_team("team_a", shadow_share=1.0)
        await there.ask(model="cheap")
        await until(lambda: there.gateway.live.line.in_flight == 0)
        assert there.shadow.counts == {}
        await there.shadow.idle()
        assert len(upstream.arrived()) == 4
        assert {row["alias"] for row in await there.gateway.rows()} == {"auto", "cheap"}
        # One that is too long to be judged whole is counted, and the reference is not asked.
        easy = {"role": "user", "content": "What is 2 and 2?"}
        history = [{"role": "user", "content": "x" * 40_000}, {"role": "assistant", "content": "Thanks."}]
        said, _ = await there.ask(stream=True, model="auto", messages=[*history, easy])
        assert spoken(said) == GIVEN_TEXT
        await until(lambda: there.shadow.counts == {"sampled": 1, "not-comparable": 1})
        assert len(upstream.arrived()) == 5
    assert bench.shown == []


@pytest.mark.long
async def test_verdicts_become_a_tuning_that_is_taken_back(tmp_path: Path, upstream: Upstream, bench: Bench) -> None:
    """Feedback, a proposal, its acceptance by the command line, the running gateway's next decision, and back again."""
    probe = Prompt(text="Name a river in Europe.")
    async with town(tmp_path, upstream, bench) as there:
        classifier = there.gateway.live.classifier
        site = Site(tmp_path, f"sqlite:///{tmp_path}/weighbridge.sqlite", there.gateway.key, {})

        async def now() -> tuple[float, Any, str]:
            """What is thought of the cheap target, what a floor would bring, and who is asked."""
            _, headers = await there.ask(probe.text)
            adequate = classifier.classify(probe).outlooks["cheap"].adequate
            return adequate, await there.preview(), headers["x-weighbridge-target"]

        before = await now()
        assert before[2] == "cheap"
        for number in range(40):
            _, headers = await there.ask(f"Name {number} rivers in Europe and say where they end.")
            await there.speak_against(headers["x-request-id"])
        assert (await there.verdicts())[headers["x-weighbridge-target"], "feedback", "rating"][1] == 0
        proposal = await propose(there.gateway.engine, classifier, there.inside.rules().catalog)
        assert proposal.report.improves
        await there.gateway.refresh_tunings()
        assert await there.inside.learning.tunings() == []
        assert classifier.classify(probe).outlooks["cheap"].adequate == before[0]

        accepted = await site.run("classifier", "recalibrate", "--accept", "--json")
        assert accepted.returncode == 0, accepted.stderr
        assert json.loads(accepted.stdout)["accepted"] == 1
        await there.gateway.refresh_tunings()
        after = await now()
        assert after[0] < before[0] - 0.2
        assert after[1] != before[1]
        assert after[2] == "dear"

        assert await roll_back(there.inside.learning) == AS_TRAINED
        await there.gateway.refresh_tunings()
        assert await now() == before
