"""The configuration in force as people see it: every key, its meaning, and never a secret."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from api.operations.masked import MASK, address, arguments, environment_lines, lines, masked, written
from gateway.configuration.environment import Environment
from gateway.configuration.gateway_config import GatewayConfig
from gateway.configuration.settings import load

SHIPPED = Path(__file__).parents[3] / "config" / "gateway.yaml"
CANARY = "Zq7canary9Xw2secret4Vb8value6Mn3abcdefgh1234"


def shipped() -> GatewayConfig:
    return load(SHIPPED, Environment(), secrets_from=None)


def test_every_key_is_there() -> None:
    """Each section has its lines, with what the reference says of them, and tells what was set by somebody."""
    found = lines(shipped(), {})
    assert {line.section for line in found} == set(GatewayConfig.model_fields)
    port = next(line for line in found if line.path == "server.port")
    assert port.meaning.startswith("The port")
    keys = [line for line in found if line.path.endswith(".api_key") and line.value != "not set"]
    assert keys
    assert all(line.is_secret and "NOT SET" in line.value for line in keys)
    set_now = lines(shipped(), dict.fromkeys((line.value.split()[0].removeprefix("env:") for line in keys), CANARY))
    assert not any(CANARY in line.value for line in set_now)
    assert any(line.is_secret and line.value.endswith("(set)") for line in set_now)


@pytest.mark.parametrize(
    "patch",
    [
        {
            "webhooks": {
                "destinations": (
                    {"name": "a", "url": f"https://hooks.example.com/services/T0/{CANARY}", "secret": "env:S"},
                )
            }
        },
        {
            "webhooks": {
                "destinations": ({"name": "a", "url": f"https://example.com/?sig={CANARY}", "secret": "env:S"},)
            }
        },
        {"telemetry": {"otlp_endpoint": f"https://user:{CANARY}@example.com/v1"}},
        {"telemetry": {"otlp_endpoint": f"https://example.com/v1?api-key={CANARY}"}},
    ],
)
def test_a_secret_in_a_strange_place_is_masked(patch: dict[str, Any]) -> None:
    """Users, passwords, queries and the paths of chat services' hooks are not shown, but where it leads is."""
    config = GatewayConfig.model_validate({**shipped().model_dump(), **patch})
    found = lines(config, {})
    assert not any(CANARY in line.value for line in found)
    assert any("example.com" in line.value and MASK in line.value and line.is_secret for line in found)


@pytest.mark.parametrize("name", ["api_key", "aws_secret", "password", "metrics_token", "pepper", "x-api-key"])
def test_a_key_that_names_a_secret_shows_nothing(name: str) -> None:
    """Whatever its value looks like, unless it says where the secret is found."""
    assert masked("short", name) == MASK
    assert masked("env:NAME", name) == "env:NAME"


@pytest.mark.parametrize(
    "command",
    [
        ("vllm", "--api-key", CANARY),
        ("vllm", f"--api-key={CANARY}", "--port", "1"),
        ("sh", "-c", f"HF_TOKEN={CANARY} vllm serve m --max-model-len 4096"),
        ("sh", "-c", f"vllm serve m --trust-remote-code --api-key {CANARY}"),
        ("vllm", f"hf_{CANARY}xxxxxxxxxxxx"),
        ("vllm", "--pull", f"see https://me:{CANARY}@example.com/m"),
    ],
)
def test_a_command_shows_no_secret_among_its_arguments(command: tuple[str, ...]) -> None:
    """An engine's own key is given on its command line most often; everything else of it is shown."""
    shown = ", ".join(arguments(command))
    assert CANARY not in shown
    assert MASK in shown
    assert command[0] in shown


def test_other_arguments_are_shown() -> None:
    """Limits on tokens, and where a secret is found."""
    plain = ["--max-num-batched-tokens", "8192", "--tokenizer=mistral", "--api-key", "env:NAME", "--swap-space", "4"]
    assert arguments(plain) == plain
    assert masked("the key word of a sentence", "meaning") == "the key word of a sentence"
    assert arguments(["--use-key", "--port", "1"]) == ["--use-key", "--port", "1"]


def test_of_a_hooks_address_only_the_host_is_shown() -> None:
    """Whatever its path looks like: the path is the right to post there."""
    destination = {"name": "a", "url": "https://hooks.example.com/services/abc/short", "secret": "env:S"}
    config = GatewayConfig.model_validate({**shipped().model_dump(), "webhooks": {"destinations": (destination,)}})
    line = next(each for each in lines(config, {}) if each.path == "webhooks.destinations[0].url")
    assert line.value == f"https://hooks.example.com/{MASK}"
    assert line.is_secret


def test_what_only_sounds_like_a_secret_is_shown() -> None:
    """Limits on tokens, and names, are no secrets."""
    assert masked("4096", "tokens_in_flight") == "4096"
    assert masked("gpt-4o-mini-2024-07-18", "model_id") == "gpt-4o-mini-2024-07-18"
    assert masked("https://api.openai.com/v1", "base_url") == "https://api.openai.com/v1"


@given(st.text(st.characters(codec="ascii", exclude_characters="@/?#[]\\"), min_size=8, max_size=20))
def test_no_password_of_an_address_is_shown(password: str) -> None:
    """Whatever characters it has."""
    shown = address(f"postgresql://me:{password}Q@db.example.com:5432/books?sslmode=require")
    assert f"{password}Q" not in shown
    assert shown == MASK or "db.example.com" in shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:pass@One:5432,two:5433/books", f"postgresql://{MASK}@one:5432,two:5433/books"),
        ("postgresql://me:p,a@one,[::1]:5433,/books", f"postgresql://{MASK}@one,[::1]:5433,/books"),
        ("postgresql://me:pass@/books?host=/run/db", f"postgresql://{MASK}@/books?host={MASK}"),
        ("postgresql://me:pass@one:5432,two:pass/books", MASK),
        ("postgresql://me:pass/books", MASK),
        ("postgresql://me:12345pass,two/books", MASK),
        ("sqlite:////data/x.sqlite", "sqlite:////data/x.sqlite"),
    ],
)
def test_all_hosts_of_an_address_are_shown(url: str, shown: str) -> None:
    """And what may be a password is not, wherever it stands."""
    assert address(url) == shown


def test_the_environment_shows_no_secret() -> None:
    """The database's place without its password; of the pepper only that it is set."""
    environment = Environment(
        pepper=SecretStr(CANARY), database_url=SecretStr(f"postgresql://me:{CANARY}@db.example.com/books")
    )
    found = {line.path: line.value for line in environment_lines(environment)}
    assert CANARY not in str(found)
    assert found["WEIGHBRIDGE_PEPPER"] == "set"
    assert found["WEIGHBRIDGE_DATABASE_URL"] == f"postgresql://{MASK}@db.example.com/books"
    assert found["WEIGHBRIDGE_HOST"] == "not set"


def test_keys_are_written_as_in_the_reference() -> None:
    """Sections by dots, places in lists by brackets."""
    assert written(("providers", "models", 0, "model_id")) == "providers.models[0].model_id"
