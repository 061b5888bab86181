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
        ("https://llm.example.com", "write https://llm.example.com/v1"),
        ("http://gpu:8000/", "write http://gpu:8000/v1"),
        ("https://openrouter.ai/v1", "write https://openrouter.ai/api/v1"),
        ("https://api.groq.com/v1", "write https://api.groq.com/openai/v1"),
        (
            "https://generativelanguage.googleapis.com/v1beta",
            "write https://generativelanguage.googleapis.com/v1beta/openai",
        ),
        ("http://localhost:11434/v1", "the port of Ollama: with `kind: ollama`"),
        ("http://host.docker.internal:1234/v1", "the port of LM Studio: with `kind: lmstudio`"),
        ("http://localhost:8080/v1", "is this gateway itself"),
        ("http://127.0.0.1:8080/v1", "is this gateway itself"),
    ],
)
def test_what_was_probably_meant_otherwise_is_said(url: str, told: str) -> None:
    """With the model and the address."""
    (hint,) = address_hints(_section(url), own_port=8080)
    assert hint.startswith(f"m: base_url {url} ")
    assert told in hint


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/v1",
        "http://localhost:8000/v1",
        "http://vllm:8000/v1",
        "https://api.perplexity.ai",
        "https://api.deepseek.com/beta",
        "https://localhost:8443/v1",
        "http://10.0.0.7:8000/v1",
        "http://[::1]:8000/v1",
        "https://my.company.com/v1",
        "https://myresource.openai.azure.com/openai/v1",
        "https://yourdata.example.com/v1",
        "http://engine.internal:9000/v1",
    ],
)
def test_what_is_usual_gets_no_word(url: str) -> None:
    """Addresses that work."""
    assert list(address_hints(_section(url))) == []


def _with(**deployment: Any) -> list[str]:
    section = ProvidersSection.model_validate(
        {"models": [{"model_id": "m", "provider": "us", "deployments": [{"kind": "openai", **deployment}]}]}
    )
    return list(address_hints(section))


@pytest.mark.parametrize("host", ["llm.example.com", "8.8.8.8:8000"])
def test_a_key_is_not_sent_through_the_internet_in_the_open(host: str) -> None:
    """With http:// and a key to a host that is not within one's own network."""
    (hint,) = _with(base_url=f"http://{host}/v1", api_key="env:KEY")
    assert "unencrypted; write https://" in hint
    assert _with(base_url=f"http://{host}/v1") == []


@pytest.mark.parametrize(
    "host",
    [
        "vllm",
        "10.0.0.7:8000",
        "192.168.1.5",
        "[fd00::1]:8000",
        "llm.svc.cluster.local",
        "gpu.internal",
        "llm.default.svc",
        "gpu.lan",
    ],
)
def test_a_key_within_ones_own_network_gets_no_word(host: str) -> None:
    """There are few that have TLS there."""
    assert _with(base_url=f"http://{host}/v1", api_key="env:KEY") == []


def test_azure_and_ollama_have_paths_of_their_own() -> None:
    """Azure's v1 API, or a version; Ollama's own API is not OpenAI's."""
    (hint,) = _with(kind="azure", base_url="https://r.openai.azure.com", api_key="env:K")
    assert "write https://r.openai.azure.com/openai/v1, or the `api_version`" in hint
    assert _with(kind="azure", base_url="https://r.openai.azure.com", api_version="2024-10-21") == []
    (hint,) = _with(kind="ollama", base_url="http://localhost:11434/api")
    assert "write http://localhost:11434/v1" in hint
    assert _with(kind="litellm", upstream_model="anthropic/m", base_url="https://api.anthropic.com") == []
