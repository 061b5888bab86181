"""What a model's name alone tells of the parameters that it refuses."""

import pytest

from providers.parameters import lacking
from providers.target import Deployment


def _lacks(name: str) -> frozenset[str]:
    return lacking(
        [Deployment(deployment_id="a/main", target_id="a", kind="openai", base_url="https://x", upstream_model=name)]
    ).lacks


@pytest.mark.parametrize(
    "name", ["o3-mini", "gpt-5", "gpt-5-mini", "gpt-5.1-codex-max", "gpt-5.4-pro", "gpt-5.5", "gpt-5.6-sol"]
)
def test_what_reasons_unasked_takes_no_temperature(name: str) -> None:
    """Nor the old name of the longest answer."""
    assert {"temperature", "top_p", "max_tokens"} <= _lacks(name)


@pytest.mark.parametrize("name", ["gpt-5.1", "gpt-5.2-2025-12-11", "gpt-5.4-mini", "openai/gpt-5.4"])
def test_what_reasons_when_asked_takes_a_temperature(name: str) -> None:
    """And refuses the old name of the longest answer, which it has to be sent by its new one."""
    assert "max_tokens" in _lacks(name)
    assert "temperature" not in _lacks(name)


@pytest.mark.parametrize("name", ["gpt-4o", "gpt-4.1", "gpt-5-chat-latest", "gpt-5.2-chat-latest", "omni"])
def test_what_does_not_reason_takes_both(name: str) -> None:
    """A name that only begins alike tells nothing."""
    assert _lacks(name).isdisjoint({"temperature", "max_tokens"})
