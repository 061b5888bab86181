"""A model is found in the classifier's table by the names that it has in a configuration, as strangers write them."""

from typing import Any, Final

import pytest
import yaml

from classifier.known_models import listed
from providers.catalog import Catalog, build_catalog
from providers.config import ProvidersSection
from providers.known_rows import row_of

FREE: Final = "{input: 0, output: 0}"

# As the documentation of LiteLLM, OpenRouter, Ollama, LM Studio and vLLM has it, read on 2026-11-29, each in this gateway's keys.
CONFIGURATIONS: Final = f"""
openai:
  - {{model_id: gpt-4o, provider: openai, deployments: [{{kind: openai, base_url: "https://api.openai.com/v1"}}]}}
  - {{model_id: gpt-4o-mini, provider: openai, deployments: [{{kind: openai, base_url: "https://api.openai.com/v1"}}]}}
litellm:
  - {{model_id: gpt-4o, provider: azure, deployments: [{{kind: litellm, upstream_model: azure/gpt-4o-eu}}]}}
  - {{model_id: small, provider: openai, deployments: [{{kind: litellm, upstream_model: openai/gpt-4o-mini}}]}}
  - {{model_id: my-claude, provider: aws,
     deployments: [{{kind: litellm, upstream_model: "bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0"}}]}}
  - {{model_id: llama, provider: together,
     deployments: [{{kind: litellm, upstream_model: together_ai/meta-llama/Meta-Llama-3.1-70B-Instruct-Turbo}}]}}
openrouter:
  - {{model_id: cheap, provider: openrouter,
     deployments: [{{kind: openai, base_url: "https://openrouter.ai/api/v1", upstream_model: "meta-llama/llama-3.1-8b-instruct:free"}}]}}
  - {{model_id: openai/gpt-4o, provider: openrouter,
     deployments: [{{kind: openai, base_url: "https://openrouter.ai/api/v1"}}]}}
  - {{model_id: through-litellm, provider: openrouter,
     deployments: [{{kind: litellm, upstream_model: openrouter/openai/gpt-4o-mini}}]}}
ollama:
  - {{model_id: local, provider: ollama, prices: {FREE},
     deployments: [{{kind: openai, base_url: "http://localhost:11434/v1", upstream_model: "llama3.1:8b"}}]}}
  - {{model_id: "llama3.1:70b", provider: ollama, prices: {FREE},
     deployments: [{{kind: openai, base_url: "http://localhost:11434/v1"}}]}}
lm-studio:
  - {{model_id: desk, provider: lm-studio, prices: {FREE},
     deployments: [{{kind: openai, base_url: "http://localhost:1234/v1", upstream_model: meta-llama-3.1-8b-instruct}}]}}
vllm:
  - {{model_id: ours, provider: self-hosted, prices: {FREE},
     deployments: [{{kind: vllm, base_url: "http://gpu:8000/v1", upstream_model: meta-llama/Meta-Llama-3.1-70B-Instruct}}]}}
  - {{model_id: quantised, provider: self-hosted, prices: {FREE},
     deployments: [{{kind: vllm, base_url: "http://gpu:8000/v1", upstream_model: hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4}}]}}
known-as:
  - {{model_id: house-model, provider: relay, known_as: openai/gpt-4o,
     deployments: [{{kind: openai, base_url: "https://relay.example/v1", upstream_model: m-17}}]}}
"""
EXPECTED: Final = {
    "openai": {"gpt-4o": "gpt-4o-2024-05-13", "gpt-4o-mini": "gpt-4o-mini-2024-07-18"},
    "litellm": {
        "gpt-4o": "gpt-4o-2024-05-13",
        "small": "gpt-4o-mini-2024-07-18",
        "my-claude": "claude-3-5-sonnet-20240620",
        "llama": "llama-3.1-70b-instruct",
    },
    "openrouter": {
        "cheap": "llama-3.1-8b-instruct",
        "openai/gpt-4o": "gpt-4o-2024-05-13",
        "through-litellm": "gpt-4o-mini-2024-07-18",
    },
    "ollama": {"local": "llama-3.1-8b-instruct", "llama3.1:70b": "llama-3.1-70b-instruct"},
    "lm-studio": {"desk": "llama-3.1-8b-instruct"},
    "vllm": {"ours": "llama-3.1-70b-instruct", "quantised": "llama-3.1-70b-instruct"},
    "known-as": {"house-model": "gpt-4o-2024-05-13"},
}


def catalog_of(*models: dict[str, Any], **more: Any) -> Catalog:
    return build_catalog(ProvidersSection.model_validate({"models": list(models)}), lambda _reference: "key", **more)


def entry(model_id: str, upstream: str | None = None, **fields: Any) -> dict[str, Any]:
    deployment = {"kind": "openai", "base_url": "https://api.example.com/v1"}
    if upstream is not None:
        deployment["upstream_model"] = upstream
    return {"model_id": model_id, "provider": "example", "deployments": [deployment], **fields}


@pytest.mark.parametrize("who", EXPECTED)
def test_every_model_that_strangers_configure_finds_its_row(who: str) -> None:
    """Without a word of configuration beyond what is needed to call it."""
    found = catalog_of(*yaml.safe_load(CONFIGURATIONS)[who])
    assert found.abilities == EXPECTED[who]


def test_a_name_that_is_nobodys_gets_no_row() -> None:
    """Scripted targets of tests and demos, fine-tunes and houses' own names are not guessed at."""
    names = ("cheap", "dear", "bench-cheap", "acme-large", "my-gpt-4o-finetune", "llama-3-70b-sql", "auto-1")
    assert catalog_of(*(entry(name) for name in names)).abilities == {}


def test_what_the_operator_says_comes_first() -> None:
    """`ability`, then `known_as`, then each deployment's name there, then the name here; `none` is for no row."""
    said = entry("gpt-4o", "gpt-4o-mini", known_as="llama-3.1-70b-instruct", ability="claude-3-haiku")
    assert catalog_of(said).abilities == {"gpt-4o": "claude-3-haiku-20240307"}
    del said["ability"]
    assert catalog_of(said).abilities == {"gpt-4o": "llama-3.1-70b-instruct"}
    del said["known_as"]
    assert catalog_of(said).abilities == {"gpt-4o": "gpt-4o-mini-2024-07-18"}
    assert catalog_of(entry("gpt-4o")).abilities == {"gpt-4o": "gpt-4o-2024-05-13"}
    assert catalog_of(entry("gpt-4o", ability="none")).abilities == {}
    # A row's own name is one too.
    assert catalog_of(entry("ours", ability="gpt-4-0314")).abilities == {"ours": "gpt-4-0314"}


def test_an_empty_known_as_keeps_the_row() -> None:
    """It looks up no prices; what the model can do is still known."""
    assert catalog_of(entry("gpt-4o", known_as="")).abilities == {"gpt-4o": "gpt-4o-2024-05-13"}


def test_a_wildcards_name_finds_its_row() -> None:
    """By what the `*` stands for; the entry itself is no model."""
    catalog = catalog_of(entry("openai/*", "*"))
    assert catalog.abilities == {}
    found = catalog.named("openai/gpt-4o-mini")
    assert found is not None
    assert found.ability == "gpt-4o-mini-2024-07-18"
    unknown = catalog.named("openai/some-preview")
    assert unknown is not None
    assert unknown.ability is None


def test_a_pools_model_is_known_by_what_its_engines_call_it() -> None:
    """Its replicas come and go; the name that they have it by is the pool's."""
    own = {"model_id": "ours", "provider": "self-hosted", "prices": {"input": 0, "output": 0}}
    pools = {"ours": "h100"}
    assert catalog_of(own, pools=pools).abilities == {}
    served_as = {"ours": "meta-llama/Meta-Llama-3-70B-Instruct"}
    assert catalog_of(own, pools=pools, served_as=served_as).abilities == {"ours": "llama-3-70b-instruct"}


def test_what_answers_no_chats_has_no_row() -> None:
    """A row is of answers to prompts."""
    assert catalog_of(entry("gpt-4o", capabilities=["embeddings"])).abilities == {}


def test_a_reasoning_effort_has_rows_of_its_own() -> None:
    """The usual one is the provider's, a configured one stands before it, and a request's chooses among the others."""
    gpt = listed("gpt-5")
    assert gpt is not None
    (plain,) = ProvidersSection.model_validate({"models": [entry("gpt-5")]}).models
    found = row_of(plain)
    assert found is not None
    assert found.ability == gpt[0].row("medium")
    assert found.efforts["high"] == found.efforts["max"] == gpt[0].row("high")
    assert found.efforts["none"] == gpt[0].row("minimal")
    assert "medium" not in found.efforts
    through = {"kind": "litellm", "upstream_model": "openai/gpt-5", "options": {"reasoning_effort": "high"}}
    (strong,) = ProvidersSection.model_validate({"models": [{**entry("strong"), "deployments": [through]}]}).models
    found = row_of(strong)
    assert found is not None
    assert found.ability == gpt[0].row("high")
    assert found.efforts["medium"] == gpt[0].row("medium")
