"""A real gateway on a real socket, in the test's own loop, with a database and a journal of its own."""

import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.store import AccountStore
from api.web.gateway import Gateway
from api.web.patience import be_more_patient
from api.webhooks.callbacks import CallbackDesk
from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from gateway.database import make_engine
from gateway.process.control_plane import ControlPlane
from gateway.process.data_plane import DataPlane
from gateway.process.public_server import open_server
from gateway.process.runtime_folder import runtime_folder
from gateway.process_pipeline import ProcessPipeline
from gateway.wiring.metrics import all_metrics
from proxy.batch.batch_parts import BatchTier
from proxy.http.server import HttpServer
from tests.sqlite import newest_sqlite

PEPPER = "a pepper for tests only, 32 bytes and more"
CHEAP_PRICES = {"input": "0.4", "output": "0.4", "cached_input": "0.4", "version": "test"}
TRAINED: Final[Mapping[str, Any]] = {}
"""As `classifier` of a gateway: prompts are weighed by the model that is shipped, as everywhere but in these tests."""
DEAR_PRICES = {"input": "2.5", "output": "10", "cached_input": "1.25", "version": "test"}


class Running(msgspec.Struct, frozen=True):
    """A gateway that answers, both planes of it. `key` belongs to `team_a`."""

    url: str
    key: str
    data: DataPlane
    control: ControlPlane
    parts: Gateway
    """What the pages have."""
    engine: AsyncEngine
    accounts: AccountStore
    config_path: Path
    server: HttpServer

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def live(self) -> ProcessPipeline:
        """The line that answers callers."""
        return self.data.live

    @property
    def batch(self) -> BatchTier:
        """The batch tier, which it has unless it is turned off."""
        assert self.parts.jobs.batch is not None
        return self.parts.jobs.batch

    @property
    def callbacks(self) -> CallbackDesk:
        assert self.parts.jobs.callbacks is not None
        return self.parts.jobs.callbacks

    async def rows(self, where: str = "1 = 1") -> list[dict[str, Any]]:
        """Ledger rows, oldest first, once everything journaled so far has reached the database."""
        await self.parts.finance.drain.drain_now()
        async with self.engine.connect() as connection:
            found = await connection.execute(text(f"SELECT * FROM ledger_entry WHERE {where} ORDER BY at_us, attempt"))  # noqa: S608
            return [dict(row) for row in found.mappings()]

    def reload(self) -> None:
        """What SIGHUP does."""
        self.data.reload()
        self.control.reload()

    def begin_drain(self) -> None:
        """What the first SIGTERM does to the worker."""
        self.data.begin_drain()

    def cut_off(self) -> None:
        """The end of the drain."""
        self.data.cut_off()

    async def refresh_tunings(self) -> None:
        """Adopts the tuning in use at once."""
        await self.control.live.tunings.refresh()
        await self.live.tunings.refresh()


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
    # A busy machine is no database that does not answer.
    journal["budgets"] = {"patience_s": 20, **journal.get("budgets", {})}
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
        "telemetry": {"metrics_local": True, **sections.pop("telemetry", {})},
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
    be_more_patient(5)
    metrics = all_metrics()
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(runtime_folder())
        control = ControlPlane(config, environment, config_path, folder, metrics)
        data = DataPlane(config, environment, config_path, folder, metrics)
        parts = await stack.enter_async_context(control.serving())
        # asyncio sets TCP_NODELAY only on sockets that name their protocol, and waits for acknowledgements without it.
        listener = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP))
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        server = await stack.enter_async_context(open_server(data, config, listener))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield Running(url, key, data, control, parts, engine, AccountStore(engine), config_path, server)
