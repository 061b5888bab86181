"""Names of models, as their providers, hosts and engines write them."""

from pathlib import Path

import pytest

from classifier.known_models import EFFORTS, efforts_of, known_model, known_models, listed, nearest_names


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("gpt-4o", "gpt-4o"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("openai/gpt-4o-mini", "gpt-4o-mini"),
        ("azure/eu/gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
        ("gpt-35-turbo", "gpt-3.5-turbo"),
        ("openrouter/deepseek/deepseek-chat-v3-0324:free", "deepseek-v3-0324"),
        ("openrouter/anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("anthropic/claude-3.5-sonnet:beta", "claude-3-5-sonnet"),
        ("claude-3-5-sonnet-latest", "claude-3-5-sonnet"),
        ("claude-3-5-sonnet-20240620", "claude-3-5-sonnet-20240620"),
        ("eu.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("bedrock/us-gov-west-1/anthropic.claude-3-haiku-20240307-v1:0", "claude-3-haiku"),
        (
            "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-haiku-4-5-20251001-v1:0",
            "claude-haiku-4-5",
        ),
        ("us.meta.llama3-3-70b-instruct-v1:0", "llama-3.3-70b-instruct"),
        ("amazon.nova-pro-v1:0", "nova-pro"),
        ("us.deepseek.r1-v1:0", "deepseek-r1"),
        ("mistral.mistral-7b-instruct-v0:2", "mistral-7b-instruct-v0.2"),
        ("openai.gpt-oss-120b-1:0", "gpt-oss-120b"),
        ("claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
        ("vertex_ai/meta/llama-3.1-405b-instruct-maas", "llama-3.1-405b-instruct"),
        ("vertex_ai/claude-opus-4-7@default", "claude-opus-4-7"),
        ("models/gemini-2.5-flash", "gemini-2.5-flash"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b-instruct"),
        ("meta-llama/Llama-3.3-70B-Instruct-Turbo", "llama-3.3-70b-instruct"),
        ("meta-llama/Llama-3.3-70B-Instruct-Turbo-Free", "llama-3.3-70b-instruct"),
        ("hf.co/bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M", "llama-3.1-8b-instruct"),
        ("hf.co/unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL", "qwen3-8b"),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16", "llama-3.3-70b-instruct"),
        ("unsloth/Llama-3.3-70B-Instruct-bnb-4bit", "llama-3.3-70b-instruct"),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b"),
        ("Qwen/Qwen3-32B-AWQ", "qwen3-32b"),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", "qwen2.5-72b-instruct"),
        ("accounts/fireworks/models/llama-v3p3-70b-instruct", "llama-3.3-70b-instruct"),
        ("groq/llama-3.1-8b-instant", "llama-3.1-8b-instruct"),
        ("cerebras/llama3.1-8b", "llama-3.1-8b-instruct"),
        ("llama3.3:70b", "llama-3.3-70b-instruct"),
        ("llama3.3:70b-instruct-q4_K_M", "llama-3.3-70b-instruct"),
        ("ollama/llama3.2", "llama-3.2-3b-instruct"),
        ("llama3.2", "llama-3.2-3b-instruct"),
        ("gemma3:27b-it-qat", "gemma-3-27b-it"),
        ("databricks/databricks-meta-llama-3-3-70b-instruct", "llama-3.3-70b-instruct"),
    ],
)
def test_a_name_finds_its_model_wherever_it_runs(name: str, model: str) -> None:
    """Hosts, vendors, regions, dates, versions, quantisations and tags are no part of a model's name."""
    found = listed(name)

    assert found is not None
    assert found[0].name == model


@pytest.mark.parametrize(
    "name",
    [
        # Somebody else's weights, by the name that Ollama has for what lies at Hugging Face.
        "hf.co/acme/Qwen3-8B-GGUF:Q4_K_M",
        # Other models that begin alike.
        "gpt-4o-audio-preview",
        "gpt-4o-realtime-preview-2025-06-03",
        "gpt-4o-transcribe",
        "gpt-4o-mini-tts",
        "gpt-4o-search-preview",
        "text-embedding-3-large",
        "gemini-2.5-flash-image",
        "claude-opus-5-5",
        "gpt-6-sol",
        # Somebody has taught them something else, and nobody measured what became of them.
        "ft:gpt-4o-mini:org::id",
        "azure/ft:gpt-4o-mini-2024-07-18",
        "llama-3.3-70b-abliterated",
        "someone/Llama-3.3-70B-Instruct",
        "accounts/acme/models/llama-v3p3-70b-instruct",
        "arn:aws:bedrock:us-east-1:123456789012:custom-model/anthropic.claude-3-haiku-20240307-v1:0/abc",
        # Before they were taught to follow instructions.
        "meta-llama/Llama-3.1-70B",
        "Qwen/Qwen2.5-72B",
        "mistralai/Mistral-7B-v0.3",
        "deepseek-ai/DeepSeek-V3-Base",
        "llama-3.3-70b-base",
        # In Ollama the name alone means a small distillation.
        "ollama/deepseek-r1",
        "",
        "my-model",
        "gpt-4o" * 100,
    ],
)
def test_no_name_finds_a_model_that_it_does_not_mean(name: str) -> None:
    """A wrong row is worse than none: what is added to a name makes another model of it."""
    assert listed(name) is None
    assert known_model([name]) is None


def test_a_model_with_outcomes_has_the_row_fitted_to_them() -> None:
    """The shipped manifest's row of the model's own outcomes goes before one made of published scores."""
    found = known_model(["strange", "gpt-4o-mini"])

    assert found is not None
    assert (found.name, found.row, found.effort, found.basis) == (
        "gpt-4o-mini",
        "gpt-4o-mini-2024-07-18",
        "",
        "outcomes",
    )


@pytest.mark.parametrize(
    ("name", "effort", "at"),
    [
        ("gpt-5", "", "medium"),
        ("gpt-5", "high", "high"),
        ("gpt-5", "none", "minimal"),
        ("gpt-5", "xhigh", "high"),
        ("gpt-5.1", "", "none"),
        ("qwen3-32b", "low", "high"),
        ("qwen3-32b", "minimal", "none"),
        ("gpt-4o", "high", ""),
        ("gpt-5", "nonsense", "medium"),
    ],
)
def test_an_effort_is_one_that_the_model_has(name: str, effort: str, at: str) -> None:
    """An effort that the model does not have becomes the next one on the same side of thinking or not."""
    found = listed(name)

    assert found is not None
    assert found[0].at(effort) == at


def test_a_name_can_fix_the_effort() -> None:
    """Some hosts sell a model's efforts under names of their own."""
    found = listed("xai/grok-4-fast-non-reasoning"), listed("gpt-5@high"), listed("gpt-4o@high")

    assert [each and (each[0].name, each[1]) for each in found] == [("grok-4-fast", "none"), ("gpt-5", "high"), None]


def test_the_list_is_consistent() -> None:
    """No name means two models; defaults are own efforts, which rise; each has a day."""
    seen: dict[str, str] = {}
    for model in known_models():
        for name in (model.name, *model.aliases):
            found = listed(name)
            assert found is not None, name
            assert found[0].name == model.name, name
            assert seen.setdefault(name, model.name) == model.name
        assert (model.default in model.efforts) == bool(model.efforts)
        ranks = [EFFORTS.index(effort) for effort in model.efforts]
        assert ranks == sorted(set(ranks))
        assert len(model.released.split("-")) == 3


def test_a_misspelt_name_is_told_its_neighbours() -> None:
    """The likest names first, and none for what is like nothing."""
    assert nearest_names("gpt-5-mni")[0] == "gpt-5-mini"
    assert nearest_names("anthropic/claude-sonet-4.5")[0] == "claude-sonnet-4-5"
    assert nearest_names("nonsense") == ()
    assert efforts_of("gpt-5-mni") == ()
    assert efforts_of("o3") == ("low", "medium", "high")


MOST_USED = Path(__file__).with_name("most_used_models.txt").read_text().split()
"""By the names that their providers, OpenRouter, Azure, Bedrock, Vertex, Groq, Together, Fireworks and Ollama have for them."""


@pytest.mark.parametrize("name", MOST_USED)
def test_the_most_used_models_have_a_row(name: str) -> None:
    """Nobody has to configure a word for a model that people use, at any effort that it takes."""
    for effort in ("", *efforts_of(name)):
        found = known_model([name], effort)
        assert found is not None, effort


def test_a_hundred_models_are_looked_for() -> None:
    """The list above is of a hundred different models at least."""
    assert len({found[0].name for name in MOST_USED if (found := listed(name))}) >= 100
