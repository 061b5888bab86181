"""Providers by name: a name and a model are enough, and nothing else is guessed."""

import contextlib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.configuration.environment import Environment
from gateway.configuration.settings import load
from providers.catalog import Catalog, build_catalog, secret_reader
from providers.config import DeploymentConfig, ModelConfig, ProvidersSection
from providers.known_providers import Provider, known_providers, nearest_provider, provider_named
from providers.model_facts import facts_of
from providers.providers_page import page, snippet

PROVIDERS: Final = known_providers()
ROOT: Final = Path(__file__).parents[2]


def entry(written: str) -> ModelConfig:
    return ModelConfig.model_validate(yaml.safe_load(written))


def only(written: str) -> DeploymentConfig:
    (deployment,) = entry(written).deployments
    return deployment


def catalog(*written: str, **secrets: str) -> Catalog:
    models = [yaml.safe_load(each) for each in written]
    return build_catalog(ProvidersSection.model_validate({"models": models}), secret_reader(secrets))


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda each: each.name)
def test_a_providers_snippet_is_a_configuration(tmp_path: Path, provider: Provider) -> None:
    """As the page has it, with its variable set: it loads, has a price, and its key is the variable's."""
    path = tmp_path / "c.yaml"
    path.write_text(f"accounts: {{pepper_file: {tmp_path}/pepper}}\nproviders:\n  models:\n    - {snippet(provider)}\n")
    secrets = {provider.keys[0]: "a-secret"} if provider.keys else {}
    config = load(path, Environment(), secrets_from=secrets)
    made = build_catalog(config.providers, secret_reader(secrets))
    (target,) = made
    (deployment,) = target.deployments
    assert target.price is not None
    assert target.own is provider.is_own
    assert deployment.kind == provider.kind
    assert deployment.api_key == ("a-secret" if provider.keys else None)
    assert deployment.upstream_model == (f"{provider.litellm}/" if provider.litellm else "") + provider.model
    assert not provider.base_url or deployment.base_url == provider.base_url
    if provider.is_own:
        assert target.price.input_nanousd == target.price.output_nanousd == 0


def test_the_page_is_the_tables() -> None:
    """`python -m providers.providers_page > docs/providers.md` writes it."""
    assert (ROOT / "docs" / "providers.md").read_text() == page()


def test_no_name_is_two_providers() -> None:
    """Names and aliases, written in any way; each row has its source and date, and a key or none by its kind."""
    names = [name.replace("_", "-").lower() for each in PROVIDERS for name in (each.name, *each.aliases)]
    assert len(names) == len(set(names))
    for each in PROVIDERS:
        assert each.source.startswith("https://"), each.name
        assert not (each.is_own and each.keys), each.name
        assert each.is_own is (each.port is not None), each.name
        assert provider_named(each.name.upper().replace("-", "_")) is each
        assert all(maker and provider_named(maker) is not None for maker in each.makers)


@pytest.mark.parametrize(
    ("written", "kind", "base_url", "upstream"),
    [
        # As LiteLLM's users write it.
        (
            "{model: groq/llama-3.3-70b-versatile, api_key: os.environ/GROQ_API_KEY}",
            "openai",
            "https://api.groq.com/openai/v1",
            "llama-3.3-70b-versatile",
        ),
        (
            "{model: openrouter/qwen/qwen3-235b-a22b}",
            "openai",
            "https://openrouter.ai/api/v1",
            "qwen/qwen3-235b-a22b",
        ),
        ("{model: openrouter/openrouter/auto}", "openai", "https://openrouter.ai/api/v1", "openrouter/auto"),
        ("{model: together_ai/moonshotai/Kimi-K2}", "openai", "https://api.together.xyz/v1", "moonshotai/Kimi-K2"),
        ("{model: hosted_vllm/Qwen/Qwen3-8B, base_url: 'http://gpu:8000/v1'}", "vllm", "http://gpu:8000/v1", "Qwen/Qwen3-8B"),
        ("{model: ollama_chat/llama3.2}", "ollama", "http://localhost:11434/v1", "llama3.2"),
        ("{provider: openrouter, model: openrouter/qwen/qwen3-max}", "openai", "https://openrouter.ai/api/v1", "qwen/qwen3-max"),
        ("{provider: openrouter, model: 'openrouter/*'}", "openai", "https://openrouter.ai/api/v1", "*"),
        ("{provider: deepseek, model: deepseek/deepseek-chat}", "openai", "https://api.deepseek.com", "deepseek-chat"),
        # Names that begin so at their provider.
        ("{provider: openrouter, model: openrouter/auto}", "openai", "https://openrouter.ai/api/v1", "openrouter/auto"),
        ("{model: groq/compound-mini}", "openai", "https://api.groq.com/openai/v1", "groq/compound-mini"),
        ("{provider: nvidia, model: nvidia/nemotron}", "openai", "https://integrate.api.nvidia.com/v1", "nvidia/nemotron"),
        ("{model: nvidia_nim/meta/llama}", "openai", "https://integrate.api.nvidia.com/v1", "meta/llama"),
        # Engines, with and without the path.
        ("{provider: ollama, model: 'qwen3:8b'}", "ollama", "http://localhost:11434/v1", "qwen3:8b"),
        ("{provider: ollama, model: m, base_url: 'http://localhost:11434'}", "ollama", "http://localhost:11434/v1", "m"),
        ("{provider: ollama, model: m, base_url: 'http://localhost:11434/'}", "ollama", "http://localhost:11434/v1", "m"),
        ("{provider: ollama, model: m, base_url: 'http://pc:11434/v1'}", "ollama", "http://pc:11434/v1", "m"),
        ("{provider: LM Studio, model: m}".replace(" Studio", "_Studio"), "lmstudio", "http://localhost:1234/v1", "m"),
        # By habit.
        ("{kind: ollama, model: m}", "ollama", "http://localhost:11434/v1", "m"),
        ("{kind: anthropic, model: claude-x}", "litellm", "https://api.anthropic.com", "anthropic/claude-x"),
        ("{kind: groq, model: m}", "openai", "https://api.groq.com/openai/v1", "m"),
        ("{kind: openai, provider: acme, model: m, base_url: 'https://llm.acme.example/v1'}", "openai", "https://llm.acme.example/v1", "m"),
        ("{provider: hf, model: 'openai/gpt-oss-120b:cerebras'}", "openai", "https://router.huggingface.co/v1", "openai/gpt-oss-120b:cerebras"),
        ("{provider: github, model: openai/gpt-4.1}", "openai", "https://models.github.ai/inference", "openai/gpt-4.1"),
        ("{provider: nim, model: meta/llama}", "openai", "https://integrate.api.nvidia.com/v1", "meta/llama"),
        # Azure's v1 API where only the resource is written; the older one as it is.
        (
            "{provider: azure, model: my-dep, base_url: 'https://r.openai.azure.com'}",
            "azure",
            "https://r.openai.azure.com/openai/v1",
            "my-dep",
        ),
        (
            "{provider: azure, model: my-dep, base_url: 'https://r.openai.azure.com', api_version: '2024-10-21'}",
            "azure",
            "https://r.openai.azure.com",
            "my-dep",
        ),
        # litellm's names, once.
        (
            "{provider: bedrock, model: 'arn:aws:bedrock:eu-west-1:123456789012:application-inference-profile/abc'}",
            "litellm",
            "",
            "bedrock/arn:aws:bedrock:eu-west-1:123456789012:application-inference-profile/abc",
        ),
        ("{model: bedrock/anthropic.claude-x}", "litellm", "", "bedrock/anthropic.claude-x"),
        ("{provider: vertex_ai, model: vertex_ai/gemini-x}", "litellm", "", "vertex_ai/gemini-x"),
        ("{provider: google, model: gemini-x}", "openai", "https://generativelanguage.googleapis.com/v1beta/openai", "gemini-x"),
    ],
)  # fmt: skip
def test_what_strangers_write_is_what_they_mean(written: str, kind: str, base_url: str, upstream: str) -> None:
    """The kind, the address and the model's name there."""
    found = only(written)
    assert (found.kind, found.base_url, found.upstream_model) == (kind, base_url, upstream)


def test_what_callers_send_is_what_was_written() -> None:
    """`model` as it stands, unless `model_id` says otherwise; finance sees the provider."""
    assert entry("{model: groq/m}").model_id == "groq/m"
    assert entry("{provider: groq, model: m, model_id: fast}").model_id == "fast"
    assert entry("{model: groq/m}").provider == "groq"
    assert entry("{kind: vllm, model: m, base_url: 'http://gpu:8000/v1'}").provider == "vllm"
    assert entry("{kind: openai, model: m, base_url: 'https://api.x.ai/v1'}").provider == "xai"
    assert entry("{model: together_ai/m}").provider == "together"
    assert entry("{model_id: m, deployments: [{provider: groq}, {provider: cerebras, name: b}]}").provider == "groq"


def test_deployments_take_their_models_provider() -> None:
    """Unless they say a kind or a provider of their own."""
    made = entry(
        "{model_id: m, provider: groq, deployments: [{name: a}, {name: b, provider: together, upstream_model: org/m}, "
        "{name: c, kind: vllm, base_url: 'http://gpu:8000/v1'}]}"
    )
    assert [each.base_url for each in made.deployments] == [
        "https://api.groq.com/openai/v1",
        "https://api.together.xyz/v1",
        "http://gpu:8000/v1",
    ]
    assert [each.api_key for each in made.deployments] == ["env:GROQ_API_KEY", "env:TOGETHER_API_KEY", None]


@pytest.mark.parametrize(
    "written",
    [
        "{provider: openai, model: m, base_url: 'https://proxy.example.com/v1'}",
        "{provider: openai, model: m, base_url: 'https://api.openai.com.example.com/v1'}",
        "{provider: azure, model: m, base_url: 'https://openai.azure.com.example.com'}",
        "{provider: groq, model: m, api_key: null}",
        "{provider: ollama, model: m}",
    ],
)
def test_a_key_goes_to_no_other_address_by_itself(written: str) -> None:
    """Only to its provider's own hosts, and never where the file says that there is none."""
    assert only(written).api_key is None


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("{provider: opnrouter, model: m}", "did you mean `openrouter`"),
        ("{provider: acme, model: m}", "no provider is called `acme`"),
        ("{model: acme/m}", "nothing says whose 'acme/m' is"),
        ("{model: m}", "write `provider:` beside it"),
        ("{provider: groq, model: ''}", "must be the model's name"),
        ("{provider: groq, model: m, deployments: []}", "among `deployments` it is `upstream_model`"),
        ("{provider: groq, model: m, upstream_model: n}", "write one of them"),
        ("{provider: azure, model: m}", "needs a base_url"),
        ("{kind: openai, model: m, provider: acme}", "or a `provider` that has one"),
    ],
)
def test_what_is_not_known_is_told_with_what_to_write(written: str, told: str) -> None:
    """An unknown name with its nearest, a missing address, two ways to say one thing."""
    with pytest.raises(ValidationError, match=told):
        entry(written)


def test_the_nearest_name() -> None:
    """Of a name or of an alias; nothing for what is like none."""
    assert nearest_provider("antropic") == "anthropic"
    assert nearest_provider("hugingface") == "huggingface"
    assert nearest_provider("qqqq") is None


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("{provider: openrouter, model: anthropic/claude-sonnet-4.5}", "claude-sonnet-4-5"),
        ("{provider: openrouter, model: openai/gpt-5-mini}", "gpt-5-mini"),
        ("{model_id: x, provider: acme, known_as: openai/gpt-4o, deployments: [{kind: openai, base_url: 'https://h/v1'}]}", "gpt-4o"),
        ("{model_id: x, provider: acme, known_as: google/gemini-2.5-flash, deployments: [{kind: openai, base_url: 'https://h/v1'}]}", "gemini/gemini-2.5-flash"),
        ("{provider: azure, model: d, base_url: 'https://r.openai.azure.com', known_as: azure/gpt-4o}", "azure/gpt-4o"),
        ("{provider: google, model: gemini-2.5-flash}", "gemini/gemini-2.5-flash"),
        ("{provider: cohere, model: command-a-03-2025}", "command-a-03-2025"),
    ],
)  # fmt: skip
def test_facts_and_price_are_found_by_the_names_that_people_write(written: str, name: str) -> None:
    """A maker's own price where a host passes it on, litellm's prefixes, aliases."""
    facts = facts_of(entry(written)).facts
    assert facts is not None
    assert facts.name == name
    assert facts.price is not None


def test_a_host_of_open_weights_has_no_makers_price() -> None:
    """Whoever hosts them has a price of its own; it is unknown, not the maker's."""
    made = catalog("{provider: openrouter, model: qwen/qwen3-max, api_key: null}")
    assert made.targets["qwen/qwen3-max"].price is None


@pytest.mark.parametrize("kind", ["vllm", "sglang", "tgi", "llama.cpp", "tensorrt-llm", "ollama", "lmstudio"])
def test_tokens_of_an_own_engine_cost_nothing_unless_said_otherwise(kind: str) -> None:
    """It is never refused as unpriced; what it is known as tells what it can do, and not what others take for it."""
    where = f"deployments: [{{kind: {kind}, base_url: 'http://gpu:9/v1'}}]"
    made = catalog(
        f"{{model_id: free, provider: us, {where}}}",
        f"{{model_id: paid, provider: us, prices: {{input: 1, output: 2}}, {where}}}",
        f"{{model_id: 'any/*', provider: us, {where}}}",
        f"{{model_id: known, provider: us, known_as: openai/gpt-4o, {where}}}",
    )
    assert (made.targets["known"].price, made.targets["known"].max_context_tokens) == (
        made.targets["free"].price,
        128_000,
    )
    free, paid, named = made.targets["free"].price, made.targets["paid"].price, made.named("any/thing")
    assert free is not None
    assert (free.input_nanousd, free.output_nanousd, free.version) == (0, 0, "own engine")
    assert paid is not None
    assert paid.output_nanousd == 2_000_000_000
    assert named is not None
    assert named.price == free


def test_a_model_of_a_pool_costs_nothing_a_token_and_a_mixed_one_is_unknown() -> None:
    """What its hours cost is in `cost.pools`; where one address is a provider's, nobody knows."""
    mixed = "{model_id: m, provider: us, deployments: [{kind: vllm, base_url: 'http://gpu:9/v1'}, {name: b, kind: openai, base_url: 'https://h/v1'}]}"
    made = catalog("{model_id: pooled, provider: self-hosted}", mixed)
    pooled = made.targets["pooled"].price
    assert pooled is not None
    assert pooled.input_nanousd == 0
    assert made.targets["m"].price is None


@pytest.mark.parametrize(
    ("written", "sent", "upstream", "known_as"),
    [
        ("{model_id: 'gpt-*', provider: openai, deployments: [{}]}", "gpt-5-mini", "gpt-5-mini", "gpt-5-mini"),
        ("{model_id: 'openai/*', provider: openai, deployments: [{}]}", "openai/gpt-5-mini", "gpt-5-mini", "gpt-5-mini"),
        ("{model_id: '*', provider: openai, deployments: [{}]}", "gpt-5-mini", "gpt-5-mini", "gpt-5-mini"),
        ("{model_id: 'claude-*', provider: anthropic, deployments: [{}]}", "claude-sonnet-4-5", "anthropic/claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("{model_id: 'anthropic/*', provider: anthropic, deployments: [{}]}", "anthropic/claude-sonnet-4-5", "anthropic/claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("{model: 'openrouter/*'}", "openrouter/anthropic/claude-sonnet-4.5", "anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("{model_id: 'fw-*', provider: fireworks, deployments: [{upstream_model: 'accounts/fireworks/models/*'}]}", "fw-kimi-k3", "accounts/fireworks/models/kimi-k3", "fireworks_ai/accounts/fireworks/models/kimi-k3"),
    ],
)  # fmt: skip
def test_a_wildcard_sends_the_name_that_its_provider_has(written: str, sent: str, upstream: str, known_as: str) -> None:
    """Behind a slash what the `*` stands for, else all of the name; with its price, and its context."""
    secrets = {key: "k" for each in PROVIDERS for key in each.keys}
    made = catalog(written, **secrets)
    target = made.named(sent)
    assert target is not None
    assert [each.upstream_model for each in target.deployments] == [upstream]
    assert target.price is not None
    assert known_as.endswith(upstream.rpartition("/")[2].replace(".", "-"))
    assert "max_context_tokens" not in target.assumed


def test_the_names_below_a_wildcard_are_those_that_callers_send() -> None:
    """Of `gpt-*` those that begin so, once."""
    (found,) = catalog("{model_id: 'gpt-*', provider: openai, api_key: null, model: 'gpt-*'}").wildcards.entries
    assert "gpt-5-mini" in found.names
    assert all(name.startswith("gpt-") and not name.startswith("gpt-gpt") for name in found.names)


def written_twice() -> Any:
    return {"provider": "groq", "model": "m"}


def test_what_was_read_is_not_changed() -> None:
    """Errors are told by the plain values."""
    plain = written_twice()
    ModelConfig.model_validate(plain)
    assert plain == written_twice()


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "*", "/", "groq", "groq/x", "vllm", "https://h/v1", "http://[", "x:y"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["provider", "kind", "model", "base_url"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
KEYS = (
    "provider",
    "model",
    "model_id",
    "kind",
    "base_url",
    "api_key",
    "upstream_model",
    "deployments",
    "headers",
    "timeouts",
)


@settings(max_examples=200)
@example(written={"model": "m", "provider": "groq", "kind": ["vllm"]})
@example(written={"model_id": "m", "deployments": [{"kind": {"a": 1}, "provider": "groq"}]})
@given(written=st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=6))
def test_whatever_is_written_is_taken_or_refused_in_words(written: dict[str, Any]) -> None:
    """No value of another type breaks the reading of an entry."""
    with contextlib.suppress(ValidationError):
        ModelConfig.model_validate(written)
