"""The three first lines: the address that a browser can open, and the command that is due."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.keys import Pepper
from accounts.people.people import PeopleStore
from accounts.store import AccountStore
from gateway.configuration.gateway_config import GatewayConfig
from gateway.process.first_words import first_missing, first_words
from tests.running_gateway import model


def _config(sections: dict[str, Any]) -> GatewayConfig:
    deployment = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}
    return GatewayConfig.model_validate({"providers": {"models": [model("only", [deployment])]}, **sections})


@pytest.mark.parametrize(
    ("section", "url", "api", "dashboard"),
    [
        ({}, "http://0.0.0.0:8080", "http://127.0.0.1:8080/v1", "http://127.0.0.1:8080/dashboard"),
        ({}, "https://[::]:443", "https://[::1]:443/v1", "https://[::1]:443/dashboard"),
        (
            {"public_url": "https://wb.example.com/"},
            "http://10.0.0.3:8080",
            "http://10.0.0.3:8080/v1",
            "https://wb.example.com/dashboard",
        ),
    ],
)
def test_the_addresses_can_be_opened(section: dict[str, Any], url: str, api: str, dashboard: str) -> None:
    """An address that only a server can listen on is never shown, and the configured public one is."""
    config = _config({"sign_in": section})
    lines = first_words(config, url, "nothing", None).splitlines()
    assert [line.split()[1] for line in lines[:2]] == [api, dashboard]
    assert len(lines) == 3


def test_the_command_names_its_configuration() -> None:
    """It can be pasted as it is, also where the file's name has a space."""
    told = first_words(_config({}), "http://127.0.0.1:1", "person", Path("/etc/my gateway.yaml"))
    assert "--role admin --config '/etc/my gateway.yaml'   (" in told


async def test_what_is_missing_first_comes_next(engine: AsyncEngine) -> None:
    """Somebody to sign in, then a team, then a key, then nothing."""
    accounts = AccountStore(engine)
    found = [await first_missing(engine)]
    await PeopleStore(engine).create("default", "ada@example.com", "Ada", role="admin")
    found.append(await first_missing(engine))
    await accounts.create_team("team_a")
    found.append(await first_missing(engine))
    await accounts.create_key("team_a", "first", Pepper(id="p", secret=b"a" * 32))
    found.append(await first_missing(engine))
    assert found == ["person", "team", "key", "nothing"]
