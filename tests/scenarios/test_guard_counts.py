"""What the guard found, of several workers' requests and of a batch: pages say what was sent, to the last one."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, Final

import aiohttp

from gateway.database import make_engine
from proxy.settle.findings.store import FindingStore
from tests.processes import make_site, serving, until
from tests.running_gateway import model
from tests.scenarios.test_incidents import more_keys

_MAIL: Final = "jane.doe@example.com"
_CARD: Final = "4111 1111 1111 1111"
_RULES: Final[list[dict[str, Any]]] = [
    {"name": "cards", "kind": "pii", "entities": ["card"], "input": "block"},
    {"name": "mails", "kind": "pii", "entities": ["email"], "input": "mask"},
    {"name": "project", "kind": "words", "words": ["bluebird"], "input": "flag"},
]
_TEXTS: Final = (f"{_MAIL} and {_MAIL}", f"pay {_CARD} to {_MAIL}", "the bluebird", "hello")
_EACH: Final = 12
_EXPECTED: Final = {
    ("email", "mask"): (2 * _EACH, 3 * _EACH),
    ("card", "block"): (_EACH, _EACH),
    ("project", "flag"): (_EACH, _EACH),
}


async def test_counts_are_what_several_workers_were_sent(tmp_path: Path) -> None:
    """Each of two teams' requests once, refused ones too, whichever worker judged them; still so after a restart."""
    ours = {"kind": "scripted", "upstream_model": "ok"}
    site = await make_site(tmp_path, [model("large", [ours])], guard={"rules": _RULES})
    keys = {each: key for each, key in (await more_keys(site)).items() if each in {"team_a", "team_b"}}
    told: Counter[int] = Counter()
    room = asyncio.Semaphore(8)
    engine = make_engine(site.database_url)
    store = FindingStore(engine)

    async def ask(url: str, key: str, said: str) -> None:
        body = {"model": "large", "messages": [{"role": "user", "content": said}]}
        async with (
            room,
            aiohttp.ClientSession(url, headers={"authorization": f"Bearer {key}"}) as session,
            session.post("/v1/chat/completions", json=body) as reply,
        ):
            await reply.read()
            told[reply.status] += 1

    async def counted(team_id: str | None) -> dict[tuple[str, str], tuple[int, int]]:
        found = await store.read("default", team_id, 0, 2**62)
        sums: Counter[tuple[str, str, str]] = Counter()
        for each in found:
            sums[each.name, each.action, "requests"] += each.requests
            sums[each.name, each.action, "findings"] += each.findings
        names = {(name, action) for name, action, _ in sums}
        return {place: (sums[*place, "requests"], sums[*place, "findings"]) for place in names}

    async def all_counted() -> bool:
        return all([await counted(team_id) == _EXPECTED for team_id in keys])

    try:
        async with serving(site, "gateway", "--workers", "2") as server:
            await asyncio.gather(*(ask(server.url, key, said) for key in keys.values() for said in _TEXTS * _EACH))
            assert told == {200: 2 * 3 * _EACH, 400: 2 * _EACH}
            await until(all_counted)
            assert await server.stop() == 0
        assert await all_counted()
        async with serving(site, "again", "--workers", "2") as server:
            await ask(server.url, keys["team_b"], _MAIL)
            # Within the second in which it was asked: the last counts are told at the end.
            assert await server.stop() == 0
        assert await counted("team_a") == _EXPECTED
        assert (await counted("team_b"))["email", "mask"] == (2 * _EACH + 1, 3 * _EACH + 1)
    finally:
        await engine.dispose()
