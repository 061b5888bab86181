"""`weighbridge providers compare`: our table beside litellm's."""

import json

from typer.testing import CliRunner

from gateway.cli import app


def test_differences_are_a_table_and_what_is_new_is_named() -> None:
    """Aligned, and with what to do about it."""
    result = CliRunner().invoke(app, ["providers", "compare", "xai"])
    assert result.exit_code == 0, result.output
    heading, *lines = result.stdout.splitlines()
    assert heading.split() == ["provider", "what", "ours", "litellm's", "models", "such", "as"]
    told = [line for line in lines if line.startswith("xai ")]
    assert told
    assert {line.index("sent as asked") for line in told if "sent as asked" in line} == {heading.index("ours")}
    assert "compared" in result.stdout
    assert "needs the provider's own word" in result.stdout


def test_a_program_reads_all_of_it() -> None:
    result = CliRunner().invoke(app, ["providers", "compare", "anthropic", "--json"])
    told = json.loads(result.stdout)
    assert told["compared"] > 10
    assert told["differences"] == []
    assert told["parameters_compared"] is True
    assert all(name.startswith("anthropic/claude-") for name in told["inherited"])


def test_a_provider_that_nobody_knows_is_said_to_be_none() -> None:
    result = CliRunner().invoke(app, ["providers", "compare", "nobody"])
    assert result.exit_code == 1
    assert "anthropic, bedrock" in result.stderr
