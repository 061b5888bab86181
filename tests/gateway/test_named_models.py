"""Models that are named as the documentation names them, and nothing else: hard prompts go to the strong one, easy ones do not."""

import json
from pathlib import Path
from typing import Final

import pytest
import yaml

from gateway.commands.config import _hints, _notes
from gateway.commands.explain import DryRun
from gateway.configuration.environment import Environment
from gateway.configuration.file import ConfigError
from gateway.configuration.gateway_config import GatewayConfig
from gateway.configuration.settings import load
from gateway.wiring.catalog import catalog_of
from providers.wire import ChatRequest
from proxy.parse.chat_request import parse_chat
from proxy.parse.headers import RequestHeaders

HARD: Final = (
    "Prove that there are infinitely many primes congruent to 3 modulo 4.",
    "Prove the spectral theorem for compact self-adjoint operators on a Hilbert space.",
    "Prove that every finite group of odd order less than 60 is solvable, in full detail.",
)
EASY: Final = ("What is the capital of France?", "Hi there!", "Translate 'good morning' into German.")


def configured(folder: Path, *models: str, reference: str | None = None, **fields: object) -> GatewayConfig:
    """As in docs/configuration.md: a name, a provider and an address; prices are what a public table says."""
    entries = [
        {
            "model_id": name,
            "provider": "anthropic" if name.startswith("claude") else "openai" if name.startswith("gpt") else "acme",
            "deployments": [
                {"kind": "litellm", "upstream_model": f"anthropic/{name}"}
                if name.startswith("claude")
                else {"kind": "openai", "base_url": "https://api.openai.com/v1"}
            ],
            **UNKNOWN.get(name, {}),
            **fields,
        }
        for name in models
    ]
    written = {
        "providers": {"models": entries},
        **({} if reference is None else {"cost": {"reference_target": reference}}),
    }
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(written))
    return load(path, Environment(data_dir=folder), secrets_from=None)


UNKNOWN: Final = {
    "acme-large": {"prices": {"input": 10, "output": 10}, "max_context_tokens": 100_000, "capabilities": ["tools"]},
    "acme-small": {"prices": {"input": 1, "output": 1}, "max_context_tokens": 100_000, "capabilities": ["tools"]},
}


def asked(prompt: str) -> ChatRequest:
    body = {"model": "auto", "messages": [{"role": "user", "content": prompt}]}
    return parse_chat(json.dumps(body).encode(), RequestHeaders(tier="interactive"))


def chosen(config: GatewayConfig, prompts: tuple[str, ...]) -> list[str]:
    line = DryRun(config)
    return [line.explain(asked(prompt), "interactive").candidates[0]["target"] for prompt in prompts]


def test_two_models_by_their_names(tmp_path: Path) -> None:
    """gpt-4o and its small sibling: the proofs go to the one, trifles to the other, and both are known."""
    config = configured(tmp_path, "gpt-4o", "gpt-4o-mini", reference="gpt-4o")
    assert chosen(config, HARD) == ["gpt-4o"] * 3
    assert chosen(config, EASY) == ["gpt-4o-mini"] * 3
    assert not [hint for hint in _hints(config, catalog_of(config)) if "Not measured" in hint]


def test_models_of_today_by_their_names(tmp_path: Path) -> None:
    """The small ones never get what is hard, and the flagship is never too weak for it."""
    names = ("gpt-5", "gpt-5-nano", "gpt-4o-mini", "claude-sonnet-4-5")
    config = configured(tmp_path, *names, reference="gpt-5")
    assert set(chosen(config, HARD)) <= {"gpt-5", "claude-sonnet-4-5"}
    line = DryRun(config)
    for prompt in HARD:
        told = line.explain(asked(prompt), "interactive")
        assert "gpt-5" not in {each["target"] for each in told.rejected}
    assert any(hint.startswith("Known by published scores alone: gpt-5") for hint in _notes(config, catalog_of(config)))


@pytest.mark.parametrize(("reference", "expected"), [("acme-large", "acme-large"), (None, "acme-large")])
def test_two_unknown_models(tmp_path: Path, reference: str | None, expected: str) -> None:
    """What is hard goes to the baseline model, else to the dearest, and the check says what mends it."""
    config = configured(tmp_path, "acme-large", "acme-small", reference=reference)
    assert chosen(config, HARD) == [expected] * 3
    (hint,) = [hint for hint in _hints(config, catalog_of(config)) if "Not measured" in hint]
    assert "weighbridge classifier measure acme-large" in hint


@pytest.mark.parametrize("unknown", ["acme-large", "acme-small"])
@pytest.mark.parametrize("known", ["gpt-4o", "gpt-4o-mini"])
def test_one_known_and_one_unknown(tmp_path: Path, known: str, unknown: str) -> None:
    """Whatever the unknown one costs, it gets neither what is hard nor what is easy."""
    for reference in (known, None):
        config = configured(tmp_path, known, unknown, reference=reference)
        assert chosen(config, HARD + EASY) == [known] * 6


def test_an_ability_that_names_nothing_is_refused_with_the_nearest(tmp_path: Path) -> None:
    """By the check, the start and a reload alike, for all of them load the file."""
    for wrong, near in (("gpt-4o-mni", "gpt-4o-mini"), ("lama-3-70b-instruct", "llama-3-70b-instruct")):
        with pytest.raises(ConfigError, match=f"called `{wrong}`; did you mean .*`{near}`"):
            configured(tmp_path, "acme-large", ability=wrong)
    with pytest.raises(ConfigError, match="ability: no known model and no row is called `nonsense`"):
        configured(tmp_path, "acme-large", ability="nonsense")


def test_an_ability_may_be_a_model_a_row_or_none(tmp_path: Path) -> None:
    """A known model's name is enough, a row's own works as before, and `none` is for no row."""
    for said, row in (("gpt-4o-mini", "gpt-4o-mini-2024-07-18"), ("gpt-4-0314", "gpt-4-0314"), ("none", None)):
        config = configured(tmp_path, "gpt-4o", ability=said)
        assert catalog_of(config).abilities.get("gpt-4o") == row
