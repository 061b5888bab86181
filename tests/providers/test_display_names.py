"""Names on invoices."""

import pytest

from dashboards.finance.comparison import upstream_models
from providers.config import ModelConfig
from providers.display_names import display_names


@pytest.mark.parametrize(
    ("upstream", "printed"),
    [
        ("claude-sonnet-4-5-20250929", "Claude Sonnet 4.5"),
        ("claude-sonnet-4-5", "Claude Sonnet 4.5"),
        ("anthropic/claude-3-5-haiku-latest", "Claude Haiku 3.5"),
        ("claude-opus-4-20250514", "Claude Opus 4"),
        ("claude-3-5-sonnet-20241022", "Claude Sonnet 3.5 (New)"),
        ("claude-sonnet-4-6", "Claude Sonnet 4.6"),
    ],
)
def test_a_model_is_found_by_the_name_on_the_invoice(upstream: str, printed: str) -> None:
    """Whatever the snapshot, and however it is called here."""
    config = ModelConfig.model_validate(
        {
            "model_id": "sonnet",
            "provider": "anthropic",
            "max_context_tokens": 8_000,
            "deployments": [{"kind": "anthropic", "upstream_model": upstream, "api_key": "env:KEY"}],
        }
    )
    assert printed in upstream_models([config], frozenset({"anthropic"}))["sonnet"]


def test_an_unknown_model_has_none() -> None:
    """And is found by its own name, as before."""
    assert display_names("gpt-4o") == ()
