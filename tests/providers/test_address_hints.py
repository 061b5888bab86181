"""Addresses as people write them: what cannot be called is refused with what to write, and what was probably meant otherwise is said."""

from typing import Any

import pytest
from pydantic import ValidationError

from providers.address_hints import address_hints
from providers.config import ProvidersSection


def _section(url: str) -> ProvidersSection:
    deployment: dict[str, Any] = {"kind": "openai", "base_url": url}
    return ProvidersSection.model_validate(
        {"models": [{"model_id": "m", "provider": "openai", "deployments": [deployment]}]}
    )


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://api.openai.com/v1 ", "blanks at its beginning or end"),
        (" https://api.openai.com/v1", "blanks at its beginning or end"),
        ("api.openai.com/v1", "write http:// or https:// before it"),
        ("localhost:11434/v1", "write http:// or https:// before it"),
        ("https://{resource}.openai.azure.com/openai/v1", "placeholder"),
        ("https://<resource>.openai.azure.com/openai/v1", "placeholder"),
        ("https://your-resource.openai.azure.com/openai/v1", "placeholder"),
        ("https://YOUR_RESOURCE.openai.azure.com/openai/v1", "placeholder"),
        ("${OPENAI_BASE_URL}", "placeholder"),
        ("https://$HOST/v1", "placeholder"),
        ("https://api.openai.com/v1/chat/completions", "write https://api.openai.com/v1"),
        ("https://api.openai.com/v1/chat/completions/", "write https://api.openai.com/v1"),
        ("http://localhost:80000/v1", "a port that there is not"),
        ("http://localhost:0/v1", "a port that there is not"),
        ("http://localhost:port/v1", "a port that there is not"),
    ],
)
def test_what_cannot_be_called_is_refused(url: str, told: str) -> None:
    """Each form with what to write."""
    with pytest.raises(ValidationError) as refused:
        _section(url)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://api.openai.com:443/v1", "write https://"),
        ("https://engine.internal:80/v1", "write http://"),
        ("https://localhost/v1", "speak http:// at a port of their own"),
        ("https://127.0.0.1/v1", "speak http:// at a port of their own"),
        ("http://0.0.0.0:8000/v1", "not to call"),
        ("http://[::]:8000/v1", "not to call"),
    ],
)
def test_what_was_probably_meant_otherwise_is_said(url: str, told: str) -> None:
    """With the model and the address."""
    (hint,) = address_hints(_section(url))
    assert hint.startswith(f"m: base_url {url} ")
    assert told in hint


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/v1",
        "http://localhost:11434/v1",
        "https://localhost:8443/v1",
        "http://10.0.0.7:8000/v1",
        "http://[::1]:8000/v1",
        "https://my.company.com/v1",
        "https://myresource.openai.azure.com/openai/v1",
        "https://yourdata.example.com/v1",
        "http://host.docker.internal:1234/v1",
    ],
)
def test_what_is_usual_gets_no_word(url: str) -> None:
    """Addresses that work."""
    assert list(address_hints(_section(url))) == []
