"""Who floods takes one look: refusals are on the operators' pages, the API, metrics and the team's page, and stay."""

import asyncio
import html
from pathlib import Path

import aiohttp

from gateway.database import make_engine
from proxy.settle.refusals.counting import SHOWN
from proxy.settle.refusals.refused_requests import RefusedQuery, RefusedRequestStore
from proxy.settle.refusals.store import RefusalStore
from tests.api.finance import SCRIPTED
from tests.running_gateway import Running, model, running_gateway
from tests.signed_in import signed_in

LIMITS = {"team": {"requests_per_minute": 3}}


async def flood(running: Running, times: int) -> list[int]:
    body = {"model": "only", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"authorization": f"Bearer {running.key}"}
    async with aiohttp.ClientSession() as session:
        statuses = []
        for _ in range(times):
            async with session.post(f"{running.base_url}/chat/completions", json=body, headers=headers) as reply:
                statuses.append(reply.status)
    return statuses


async def kept(running: Running, least: int) -> int:
    """Waits for the control plane's round."""
    async with asyncio.timeout(30):
        while True:
            found = await RefusalStore(running.engine).read(0)
            if sum(each.refusals for each in found) >= least:
                return sum(each.refusals for each in found)
            await asyncio.sleep(0.05)


async def test_who_floods_is_on_every_surface(tmp_path: Path) -> None:
    """By team, key, model and reason; and every refusal that callers saw is counted once."""
    async with running_gateway(tmp_path, [model("only", SCRIPTED)], limits=LIMITS) as running:
        refused = (await flood(running, 130)).count(429)
        assert refused >= 100
        assert await kept(running, refused) == refused
        async with signed_in(running, "op@default.test", role="operator") as operator:
            page = (await operator.get("/dashboard/operations")).text
            queues = (await operator.get("/dashboard/operations/queues")).text
        assert f"{refused} requests were refused in ten minutes" in page
        for told in (page, queues):
            assert "rate limit exceeded" in told
            assert "team_a" in told
        async with signed_in(running, "lead@default.test", teams={"team_a": "admin"}) as lead:
            team = (await lead.get("/dashboard/teams/team_a")).text
            file = (await lead.get("/dashboard/teams/team_a?format=csv&table=refusals")).text
            listed = (await lead.get("/dashboard/teams/team_a/requests")).text
            only = (await lead.get("/dashboard/teams/team_a/requests?status=429&outcome=refused&format=csv")).text
            (request_id, *_) = only.splitlines()[1].split(",")
            opened = (await lead.get(f"/dashboard/teams/team_a/requests/{request_id}")).text
            sought = await lead.get(f"/dashboard/teams/team_a/requests?id={request_id}")
        assert "Refused (429)" in listed
        assert "Answered" in listed
        assert SHOWN <= only.count("Rate limit exceeded") <= 3 * SHOWN
        assert "Rate limit reached for requests per minute of team `team_a`: Limit 3" in html.unescape(opened)
        assert "retry-after" in opened
        assert sought.location == f"/dashboard/teams/team_a/requests/{request_id}"
        assert f"{refused} requests in the last 24 hours" in team
        assert f"tests,only,rate limit exceeded,429,{refused}" in file
        async with aiohttp.ClientSession() as session, session.get(f"{running.url}/metrics") as reply:
            lines = (await reply.text()).splitlines()
        (line,) = [each for each in lines if each.startswith('weighbridge_refusals_total{code="rate_limit_exceeded"')]
        assert 'team="team_a"' in line
        assert line.endswith(f" {refused}.0")


async def test_counts_survive_the_control_plane_and_the_worker(tmp_path: Path) -> None:
    """What was refused before a restart is there after it; and a worker's last counts are told when it ends."""
    async with running_gateway(tmp_path, [model("only", SCRIPTED)], limits=LIMITS) as running:
        refused = (await flood(running, 10)).count(429)
        engine_path = running.engine.url
    engine = make_engine(engine_path.render_as_string(hide_password=False))
    try:
        found = await RefusalStore(engine).read(0)
        rows = await RefusedRequestStore(engine).read(RefusedQuery(organisation_id="default", team_id="team_a"))
    finally:
        await engine.dispose()
    assert sum(each.refusals for each in found) == refused
    assert len({each.request_id for each in rows}) == refused
