"""A real gateway on a real socket, in the test's own loop, with a database and a journal of its own."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.store import AccountStore
from dashboards.web.patience import be_more_patient
from gateway.app import create_app
from gateway.asgi import AsgiBridge
from gateway.configuration.settings import Environment, GatewayConfig, load, peppers
from gateway.database import make_engine
from gateway.wiring.http import connection_limits
from proxy.http.server import HttpServer
from tests.sqlite import newest_sqlite

PEPPER = "a pepper for tests only, 32 bytes and more"
CHEAP_PRICES = {"input": "0.4", "output": "0.4", "cached_input": "0.4", "version": "test"}
_LAST_REQUESTS: Final = 200
"""How often it is looked, a hundredth of a second apart, whether the last requests have ended."""
TRAINED: Final[Mapping[str, Any]] = {}
"""As `classifier` of a gateway: prompts are weighed by the model that is shipped, as everywhere but in these tests."""
DEAR_PRICES = {"input": "2.5", "output": "10", "cached_input": "1.25", "version": "test"}


class Running(msgspec.Struct, frozen=True):
    """A gateway that answers. `key` belongs to `team_a`."""

    url: str
    key: str
    app: FastAPI
    engine: AsyncEngine
    accounts: AccountStore
    config_path: Path

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    async def rows(self, where: str = "1 = 1") -> list[dict[str, Any]]:
        """Ledger rows, oldest first, once everything journaled so far has reached the database."""
        assert await self.app.state.drain.drain_now()
        async with self.engine.connect() as connection:
            found = await connection.execute(text(f"SELECT * FROM ledger_entry WHERE {where} ORDER BY at_us, attempt"))  # noqa: S608
            return [dict(row) for row in found.mappings()]


def model(model_id: str, deployments: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """A catalog entry that can do everything."""
    return {
        "model_id": model_id,
        "provider": "scripted",
        "prices": DEAR_PRICES,
        "max_context_tokens": 32_000,
        "capabilities": ["vision", "tools", "json"],
        "capability": 1.0,
        "deployments": deployments,
        **fields,
    }


@contextlib.asynccontextmanager
async def running_gateway(folder: Path, models: list[dict[str, Any]], **sections: Any) -> AsyncIterator[Running]:
    """Starts a gateway with these models and sections of configuration, and stops it in order.

    It weighs prompts by the plain rule unless it has a `classifier`: opening the trained model takes longer than the rest
    of a start, and few tests are about what it says.
    """
    config_path = folder / "gateway.yaml"
    journal = {"journal_dir": str(folder / "journal"), "drain_interval_s": 0.02, **sections.pop("cost", {})}
    providers = {"models": models, **sections.pop("providers", {})}
    # A busy machine is no broken key store.
    accounts_section = {"lookup_timeout_s": 10, **sections.pop("accounts", {})}
    # Nor does a busy machine answer late: a thousand at once may take it longer than the tier's ten seconds.
    deadlines = {"interactive": {"answer_s": 60}, **sections.pop("deadlines", {})}
    written = {
        "providers": providers,
        "cost": journal,
        "accounts": accounts_section,
        "deadlines": deadlines,
        "classifier": {"enabled": False},
        **sections,
    }
    config_path.write_text(yaml.safe_dump(written))
    environment = Environment(data_dir=folder, pepper=SecretStr(PEPPER))
    config = load(config_path, environment)
    engine = make_engine(newest_sqlite(folder / "weighbridge.sqlite"))
    accounts = AccountStore(engine)
    await accounts.create_team("team_a", name="Team A")
    minted = await accounts.create_key("team_a", "tests", peppers(config, environment)[0])
    try:
        async with gateway_at(config_path, environment, engine, minted.plaintext) as running:
            yield running
    finally:
        await engine.dispose()


@contextlib.asynccontextmanager
async def gateway_at(
    config_path: Path, environment: Environment, engine: AsyncEngine, key: str
) -> AsyncIterator[Running]:
    """Starts a gateway over a database that is there already, and stops it in order."""
    config = load(config_path, environment)
    app = create_app(config, environment, config_path)
    async with _served(app, config) as url:
        yield Running(url, key, app, engine, AccountStore(engine), config_path)


@contextlib.asynccontextmanager
async def _served(app: FastAPI, config: GatewayConfig) -> AsyncIterator[str]:
    # asyncio sets TCP_NODELAY only on sockets that name their protocol, and waits for acknowledgements without it.
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        port = listener.getsockname()[1]
        # A busy machine is no database that does not answer.
        be_more_patient(5)
        bridge = AsgiBridge(app)
        async with bridge.alive():
            server = HttpServer(app.state.hot_routes(), app.state.elsewhere(bridge), connection_limits(config.server))
            app.state.adopt_server(server)
            await server.listen(listener)
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                app.state.begin_drain()
                server.close_doors()
                for _ in range(_LAST_REQUESTS):
                    if not server.tasks:
                        break
                    await asyncio.sleep(0.01)
                await server.aclose()
