"""Keys that a process has never seen, all at once: a class begins, a service with a key for each customer is started anew."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import aiohttp
from pydantic import SecretStr

from accounts.store import AccountStore
from cost.budgets.budget import Budget
from cost.budgets.store import BudgetStore
from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from gateway.database import make_engine
from tests.processes import Site, make_site, oracle, serving
from tests.running_gateway import PEPPER, model

_KEYS = 500
_QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


async def fresh_keys(site: Site) -> list[str]:
    """Create the keys, each with a hard budget of its own."""
    environment = Environment(data_dir=site.folder, pepper=SecretStr(PEPPER))
    pepper = peppers(load(site.config_path, environment, secrets_from=None), environment)[0]
    engine = make_engine(site.database_url)
    try:
        accounts, budgets = AccountStore(engine), BudgetStore(engine)
        made = [await accounts.create_key("team_a", f"key {number}", pepper) for number in range(_KEYS)]
        for each in made:
            await budgets.put(
                Budget(
                    budget_id=f"of_{each.key_id}",
                    organisation_id="default",
                    scope="key",
                    scope_id=each.key_id,
                    period="month",
                    kind="hard",
                    limit_nanousd=10**12,
                )
            )
    finally:
        await engine.dispose()
    return [each.plaintext for each in made]


async def test_keys_that_were_never_seen_are_all_answered(tmp_path: Path, database_url: str) -> None:
    """Five hundred at once, in the first moment of a gateway's life: each waits a moment, and none is refused."""
    said: Counter[str] = Counter()
    with oracle(tmp_path) as upstream:
        site = await make_site(tmp_path, [model("only", [upstream.deployment("ok")])], database_url=database_url)
        keys = await fresh_keys(site)
        connector = aiohttp.TCPConnector(limit=0)
        async with serving(site) as server, aiohttp.ClientSession(server.url, connector=connector) as session:

            async def ask(key: str) -> None:
                body = {"model": "only", "messages": _QUESTION, "max_tokens": 20}
                headers = {"authorization": f"Bearer {key}"}
                async with session.post("/v1/chat/completions", json=body, headers=headers) as reply:
                    told = json.loads(await reply.text())
                    said[told.get("error", {}).get("code", "") if reply.status != 200 else "answered"] += 1

            await asyncio.gather(*map(ask, keys))
    assert said == {"answered": _KEYS}
