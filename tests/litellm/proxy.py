"""LiteLLM's proxy as a child process, and the tables that its own migrations make."""

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import asyncpg
import httpx
import yaml

from tests.postgres import Postgres
from tests.vllm.engines import free_port

MASTER: Final = "sk-master-1234567890"
SALT: Final = "sk-salt-1234"
_ENGINE: Final = Path(__file__).with_name("query-engine.mjs")
_START_S: Final = 900.0
_STOP_S: Final = 20.0
_POLL_S: Final = 0.5
_CONFIG: Final[dict[str, Any]] = {
    "model_list": [
        {
            "model_name": "of-the-file",
            "litellm_params": {"model": "openai/of-the-file", "api_key": "sk-fake", "mock_response": "hello"},
            "model_info": {"mode": "chat", "input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06},
        }
    ],
    "litellm_settings": {"telemetry": False, "drop_params": True, "num_retries": 0},
    "router_settings": {"disable_cooldowns": True},
    "general_settings": {
        "master_key": "os.environ/LITELLM_MASTER_KEY",
        "store_model_in_db": True,
        # What was spent is written every second or two.
        "proxy_batch_write_at": 1,
    },
}


def make_tables(postgres: Postgres, place: Path) -> str:
    """The address of a database with the tables of LiteLLM's migrations, in their order; that of one that runs already, at WB_LITELLM_URL."""
    if found := os.environ.get("WB_LITELLM_DATABASE"):
        return found
    (folder,) = place.glob("lib/python3*/site-packages/litellm_proxy_extras/migrations")

    async def make() -> str:
        url = await postgres.empty_database()
        connection = await asyncpg.connect(url)
        try:
            for each in sorted(folder.glob("*/migration.sql")):
                await connection.execute(each.read_text())
        finally:
            await connection.close()
        return url

    return asyncio.run(make())


class LitellmProxy:
    """The proxy, and calls of its routes with its master key."""

    def __init__(self, place: Path, database: str, folder: Path) -> None:
        self.place = place
        self.database = database
        self.config = folder / "config.yaml"
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = os.environ.get("WB_LITELLM_URL") or f"http://127.0.0.1:{free_port()}"

    def start(self) -> None:
        """Returns once it answers."""
        self.config.write_text(yaml.safe_dump(_CONFIG))
        if self._answers():
            return
        words = [str(self.place / "bin" / "litellm"), "--config", str(self.config), "--host", "127.0.0.1"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*words, "--port", self.url.rpartition(":")[2]],
                env=self._environment(),
                cwd=self.config.parent,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("LiteLLM did not start:\n" + self.log()[-4_000:])
            time.sleep(_POLL_S)

    def log(self) -> str:
        """All that it has written."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """Ends it with its engine, which is in its group."""
        if self._process is None:
            return
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_STOP_S)
        self._process = None

    def client(self, key: str = MASTER) -> httpx.AsyncClient:
        """A client of its routes."""
        return httpx.AsyncClient(base_url=self.url, headers={"Authorization": f"Bearer {key}"}, timeout=120)

    async def call(self, method: str, path: str, **rest: Any) -> Any:
        """What a route answers; a refusal is an error of the test."""
        async with self.client() as client:
            reply = await client.request(method, path, **rest)
        assert reply.is_success, reply.text
        return reply.json()

    async def model(self, upstream: str, params: dict[str, Any], info: dict[str, Any] | None = None) -> str:
        """Add a model that is called at an address of ours; returns its name, which no other test has."""
        name = f"m-{uuid4().hex[:8]}"
        params = {"api_base": f"{upstream}/v1", "api_key": "sk-upstream-0123456789", **params}
        await self.call(
            "POST", "/model/new", json={"model_name": name, "litellm_params": params, "model_info": info or {}}
        )
        return name

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WEIGHBRIDGE_", "OPENAI_"))}
        return {
            **kept,
            "PATH": f"{self.place / 'bin'}:{kept['PATH']}",
            "DATABASE_URL": self.database,
            "LITELLM_MASTER_KEY": MASTER,
            "LITELLM_SALT_KEY": SALT,
            # Its migrations have run; the engine that would run them is not there.
            "DISABLE_SCHEMA_UPDATE": "true",
            "PRISMA_QUERY_ENGINE_BINARY": str(_ENGINE),
            # Nothing is fetched.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "DISABLE_ADMIN_UI": "True",
        }

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health/liveliness", timeout=5).is_success
        except httpx.HTTPError:
            return False
