"""What a sound file probably means otherwise, as `weighbridge config check` tells it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.configuration.doubts import other_variables
from tests.sqlite import newest_sqlite

MODELS = """
providers:
  models:
    - {provider: openai, model: gpt-5-mini}
    - {provider: gemini, model: gemini-2.5-flash}
    - {provider: ollama, model: llama3.2, max_context_tokens: 8000, capabilities: [], capability: 0.3}
"""


def check(tmp_path: Path, text: str, *options: str) -> Result:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return CliRunner().invoke(app, ["config", "check", str(path), *options])


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One provider's usual variable, and the other's under its second name."""
    monkeypatch.setenv("OPENAI_API_KEY", "made-up")
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", "made-up")
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path))


def test_a_gateway_without_a_pepper_would_not_start(tmp_path: Path) -> None:
    """It is told with the secrets that are missing; with a file for it, it is not."""
    assert (
        "needed to serve: GEMINI_API_KEY, WEIGHBRIDGE_PEPPER (or `accounts.pepper_file`)"
        in check(tmp_path, MODELS).stderr
    )
    assert "WEIGHBRIDGE_PEPPER" not in check(tmp_path, MODELS + "accounts: {pepper_file: pepper}\n").stderr
    assert check(tmp_path, MODELS, "--strict").exit_code == 1


def test_a_key_under_its_other_usual_name_is_found(tmp_path: Path) -> None:
    """Whoever has that set is told what to write."""
    told = check(tmp_path, MODELS).stderr
    assert "hint: GEMINI_API_KEY is not set, but GOOGLE_API_KEY is: write `api_key: env:GOOGLE_API_KEY`" in told
    assert list(other_variables(["OPENAI_API_KEY"], {})) == []


def test_budgets_and_limits_of_what_went_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They bound nobody, until they are removed; a database that is not there is neither made nor missed."""
    assert "bounds nobody" not in check(tmp_path, MODELS).stderr
    assert not (tmp_path / "weighbridge.sqlite").exists()
    newest_sqlite(tmp_path / "weighbridge.sqlite")
    run = CliRunner().invoke
    usual = ["--period", "day", "--limit", "1"]
    alone = run(app, ["budgets", "set", "model", "gpt-4o", *usual])
    assert (alone.exit_code, "WEIGHBRIDGE_CONFIG is not set" in alone.stderr) == (0, True)
    assert run(app, ["limits", "set", "model", "gpt-4o", "--concurrency", "1"]).exit_code == 0
    told = check(tmp_path, MODELS, "--strict")
    assert told.exit_code == 1
    assert (
        "bounds nobody: the configuration has no model `gpt-4o`; there are `gemini-2.5-flash`, `gpt-5-mini`"
        in told.stderr
    )
    assert "hint: the limit of model gpt-4o bounds nobody" in told.stderr
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", str(tmp_path / "c.yaml"))
    for scope, name, said in (
        ("model", "gpt-5-mni", "did you mean `gpt-5-mini`"),
        ("provider", "opneai", "did you mean `openai`"),
    ):
        refused = run(app, ["budgets", "set", scope, name, *usual])
        assert (refused.exit_code, said in refused.stderr) == (2, True)
    # One that there is goes on.
    assert run(app, ["budgets", "set", "model", "gpt-4o", "--period", "day", "--limit", "2"]).exit_code == 0
    assert run(app, ["budgets", "set", "provider", "openai", *usual]).exit_code == 0


def test_a_model_is_no_stand_in_for_itself(tmp_path: Path) -> None:
    """It would not be asked again."""
    told = check(tmp_path, MODELS + "policy: {fallbacks: {gpt-5-mini: [gpt-5-mini, llama3.2]}}\n").stderr
    assert "hint: policy.fallbacks.gpt-5-mini has `gpt-5-mini` itself" in told
    assert "itself" not in check(tmp_path, MODELS + "policy: {fallbacks: {gpt-5-mini: [llama3.2]}}\n").stderr


def test_a_gateway_does_not_call_itself(tmp_path: Path) -> None:
    """By the port that it listens on."""
    itself = "    - {kind: openai, model: m, provider: us, base_url: 'http://localhost:9009/v1', prices: {input: 1, output: 1}}\n"
    assert "is this gateway itself" in check(tmp_path, MODELS + itself + "server: {port: 9009}\n").stderr
    assert "is this gateway itself" not in check(tmp_path, MODELS + itself).stderr


def test_a_name_without_a_price_is_told_before_it_is_refused(tmp_path: Path) -> None:
    """Of a wildcard whose provider the table lists no prices of."""
    wildcard = "    - {model: 'openrouter/*', api_key: null}\n"
    assert (
        "hint: openrouter/*: litellm's table lists no prices of its provider"
        in check(tmp_path, MODELS + wildcard).stderr
    )
