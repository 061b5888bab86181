"""The table of what providers, models and engines take: it is sound, and a model of tomorrow is taken for one like today's newest."""

from datetime import date
from typing import Final, get_args

import pytest

from providers.parameters import DECISIVE, MINOR, NOTES, TEXT, lacking, most_output_tokens
from providers.quirks import BEGUN_ANSWER, Quirks, media_type, model_named, quirks_of, read_table
from providers.target import Deployment, DeploymentKind, Limits

OPENAI: Final = "https://api.openai.com/v1"
_LENGTHS: Final = {"max_tokens", "max_completion_tokens"}


def test_each_row_says_whom_it_is_about_and_where_it_is_from() -> None:
    """And no row has a name that is none: a misspelt one would have no effect."""
    table = read_table()
    kinds = set(get_args(DeploymentKind))
    for row in table.quirk:
        assert row.kinds or row.hosts, row
        assert row.kinds <= kinds, row.kinds - kinds
        assert row.families <= table.families.keys(), row.families
        assert row.source.startswith("https://"), row
        assert date(2026, 1, 1) < row.as_of <= date(2030, 1, 1), row
        assert (row.refuses | row.takes) <= DECISIVE | MINOR | NOTES | _LENGTHS, row.refuses | row.takes
        assert not (row.since and not row.families), row
        assert (row.completes or frozenset()) <= TEXT, row
        assert any(getattr(row, name) not in (None, frozenset()) for name in (*Quirks.__struct_fields__, "takes")), row


def test_within_a_family_newer_rows_follow_older_ones() -> None:
    """Rows apply in their order, so one for an older version must not undo what is said of a newer."""
    last: dict[object, tuple[int, ...]] = {}
    for row in read_table().quirk:
        if not row.since or row.words:
            continue
        since = tuple(map(int, row.since.split(".")))
        for family in row.families:
            key = family, row.kinds, row.hosts
            assert since >= last.get(key, ()), (key, since)
            last[key] = since


@pytest.mark.parametrize(
    ("today", "tomorrow", "kind", "address"),
    [
        ("gpt-6.1", "gpt-6.9", "openai", OPENAI),
        ("gpt-6.1", "gpt-17", "openai", OPENAI),
        ("gpt-6.1", "gpt-9.3-mini-2031-05-05", "azure", "https://x.openai.azure.com/openai/v1"),
        ("o4-mini", "o9", "openai", OPENAI),
        ("anthropic/claude-opus-5-5", "anthropic/claude-opus-12-3", "litellm", ""),
        ("anthropic/claude-sonnet-5-5", "anthropic/claude-novel-7", "litellm", ""),
        ("bedrock/us.anthropic.claude-opus-5-5", "bedrock/us.anthropic.claude-opus-8-v1:0", "litellm", ""),
        ("gemini-3.8-flash", "gemini-7-flash", "openai", "https://generativelanguage.googleapis.com/v1beta/openai"),
        ("grok-4.7", "grok-9", "openai", "https://api.x.ai/v1"),
        ("kimi-k2.5", "kimi-k4", "openai", "https://api.moonshot.ai/v1"),
        ("Qwen/Qwen3-32B", "Qwen/Qwen9-32B", "vllm", "http://gpu:8000/v1"),
        ("zai-org/GLM-4.6", "zai-org/GLM-8.2", "sglang", "http://gpu:8000/v1"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-ai/DeepSeek-V11", "vllm", "http://gpu:8000/v1"),
    ],
)
def test_a_version_of_tomorrow_inherits_the_newest_row(today: str, tomorrow: str, kind: str, address: str) -> None:
    newest = quirks_of(kind, address, today)
    assert newest != Quirks()
    assert quirks_of(kind, address, tomorrow) == newest


@pytest.mark.parametrize(
    ("name", "family", "version"),
    [
        ("gpt-4o-2024-08-06", "gpt", (4, 0)),
        ("ft:gpt-4.1-mini-2025-04-14:acme", "gpt", (4, 1)),
        ("openai/gpt-5.4", "gpt", (5, 4)),
        ("gpt-35-turbo", "gpt-3.5", None),
        ("openai/gpt-oss-120b", "gpt-oss", None),
        ("o3-mini", "o", (3, 0)),
        ("ft:o4-mini-2025-04-16:acme", "o", (4, 0)),
        ("openbmb/MiniCPM-o-2_6", "", None),
        ("omni-moderation", "", None),
        ("claude-3-5-sonnet-20241022", "claude", (3, 5)),
        ("claude-opus-4-20250514", "claude", (4, 0)),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude", (4, 5)),
        ("claude-mythos-preview", "claude", None),
        ("models/gemini-2.5-flash-lite", "gemini", (2, 5)),
        ("gemini-flash-latest", "gemini", None),
        ("meta-llama/Llama-3.1-70B-Instruct", "llama", (3, 1)),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama", (3, 0)),
        ("meta.llama3-3-70b-instruct-v1:0", "llama", (3, 3)),
        ("Llama-4-Scout-17B-16E", "llama", (4, 0)),
        ("accounts/fireworks/models/llama-v3p1-405b-instruct", "llama", (3, 1)),
        ("Qwen/Qwen3-32B", "qwen", (3, 0)),
        ("qwen3:8b", "qwen", (3, 0)),
        ("qwen3.5-397b-a17b", "qwen", (3, 5)),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r", (1, 0)),
        ("deepseek-v4-flash", "deepseek", (4, 0)),
        ("accounts/fireworks/models/deepseek-v3p2", "deepseek", (3, 2)),
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi", (2, 0)),
        ("zai-org/GLM-4.6", "glm", (4, 6)),
        ("glm-4-32b-0414-128k", "glm", (4, 0)),
        ("mistral-medium-3-5", "mistral", (3, 5)),
        ("mistral-small-2603", "mistral", None),
        ("grok-4-0709", "grok", (4, 0)),
        ("us.amazon.nova-2-lite-v1:0", "nova", (2, 0)),
        ("command-a-03-2025", "command", None),
        ("commander", "", None),
    ],
)
def test_names_of_todays_families_are_read(name: str, family: str, version: tuple[int, int] | None) -> None:
    """Dates, sizes and revisions are no versions."""
    found = model_named(name)
    assert (found.family, found.version) == (family, version)


def _target_of(kind: DeploymentKind, model: str, address: str = OPENAI) -> tuple[frozenset[str], Limits]:
    one = Deployment(deployment_id="a/b", target_id="a", kind=kind, base_url=address, upstream_model=model)
    found = lacking([one])
    return found.lacks, found.limits


@pytest.mark.parametrize("model", ["o3", "o4-mini", "gpt-5", "gpt-5-mini", "gpt-5.2", "gpt-6-sol", "gpt-8"])
def test_models_that_reason_take_no_stop_sequence(model: str) -> None:
    assert "stop" in _target_of("openai", model)[0]


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4.1-mini", "o3-mini", "o1", "gpt-5-chat-latest"])
def test_others_of_openai_take_four(model: str) -> None:
    lacks, limits = _target_of("openai", model)
    assert "stop" not in lacks
    assert limits.stops == 4


def test_an_engine_that_refuses_what_it_does_not_name_is_not_sent_it() -> None:
    """TensorRT-LLM forbids every other field; it completes texts from tokens, and echoes them."""
    lacks, _ = _target_of("tensorrt-llm", "Qwen/Qwen3-8B")
    assert {"store", "metadata", "service_tier", "prompt_cache_key", "verbosity", "prediction"} <= lacks
    assert lacks.isdisjoint({"stream_options", "seed", "logit_bias", "user", "an echo", "tokens as a prompt"})
    assert "a suffix" in lacks


@pytest.mark.parametrize(
    ("address", "model", "lacks", "stops"),
    [
        ("https://api.together.xyz/v1", "moonshotai/Kimi-K2.6", {"logprobs", "max_completion_tokens"}, None),
        ("https://api.fireworks.ai/inference/v1", "accounts/fireworks/models/kimi-k3", {"store", "verbosity"}, 4),
        ("https://api.perplexity.ai", "sonar-pro", {"seed", "logit_bias", "max_completion_tokens"}, None),
        ("https://integrate.api.nvidia.com/v1", "google/gemma-2-9b-it", {"prompt_cache_key", "presence_penalty"}, None),
        ("https://api.cohere.ai/compatibility/v1", "command-a-03-2025", {"store", "service_tier", "n"}, 5),
        ("https://api.z.ai/api/paas/v4", "glm-5.1", {"n", "logprobs", "max_completion_tokens"}, 1),
        ("https://api.x.ai/v1", "grok-3", {"audio", "logit_bias", "prediction"}, None),
        ("https://api.mistral.ai/v1", "mistral-large-latest", {"audio", "modalities", "store"}, None),
    ],
)
def test_hosts_of_many_models_have_limits_of_their_own(
    address: str, model: str, lacks: set[str], stops: int | None
) -> None:
    found, limits = _target_of("openai", model, address)
    assert lacks <= found
    assert limits.stops == stops
    assert found.isdisjoint({"temperature", "stop", "max_tokens", "stream_options"})


def test_mistral_tells_probabilities_and_takes_predictions() -> None:
    """Its published types have had them since 2026."""
    lacks, _ = _target_of("openai", "mistral-large-latest", "https://api.mistral.ai/v1")
    assert lacks.isdisjoint({"logprobs", "top_logprobs", "n", "prediction", "prompt_cache_key", "service_tier"})


def test_openais_models_on_bedrock_reason_as_everywhere() -> None:
    assert {"temperature", "top_p"} <= quirks_of("litellm", "", "bedrock/us.openai.gpt-5.4").refuses
    assert "temperature" not in quirks_of("litellm", "", "bedrock/openai.gpt-oss-120b-1:0").refuses


def test_the_one_gpt_5_that_never_reasons_takes_no_effort() -> None:
    for name, takes in (("gpt-5-chat-latest", False), ("gpt-5.2-chat-latest", True), ("gpt-5-mini", True)):
        assert ("reasoning_effort" not in quirks_of("openai", OPENAI, name).refuses) is takes
    assert quirks_of("openai", OPENAI, "gpt-5-chat-latest").most_output_tokens == 16_384


def test_the_longest_answer_is_one_field_where_two_are_refused() -> None:
    """Fireworks takes either name, and not both."""
    one = quirks_of("openai", "https://api.fireworks.ai/inference/v1", "accounts/fireworks/models/kimi-k3")
    assert ("max_completion_tokens", "max_tokens") in one.excludes


def test_a_nova_takes_a_temperature_unless_it_reasons() -> None:
    for name in ("bedrock/us.amazon.nova-2-lite-v1:0", "bedrock/global.amazon.nova-3-pro-v1:0"):
        nova = quirks_of("litellm", "", name)
        assert {"temperature", "top_p"} <= nova.refuses_thinking - nova.refuses
        assert nova.most_output_tokens == 64_000
    older = quirks_of("litellm", "", "bedrock/eu.amazon.nova-pro-v1:0")
    assert not older.refuses_thinking
    assert older.most_output_tokens == 10_000


def test_pictures_beyond_what_a_model_takes_are_counted_by_its_family() -> None:
    assert (
        _target_of("openai", "meta/llama-4-scout-17b-16e-instruct", "https://integrate.api.nvidia.com/v1")[1].images
        == 5
    )
    assert _target_of("litellm", "cohere_chat/command-a-vision-07-2025")[1].images == 20


def test_what_translates_for_many_providers_is_sent_as_asked() -> None:
    """OpenRouter fits parameters to the model itself."""
    assert "stop" not in _target_of("openai", "openai/gpt-5.4", "https://openrouter.ai/api/v1")[0]


@pytest.mark.parametrize(
    ("effort", "takes"), [("", True), ("none", True), ("high", False)], ids=["unsaid", "none", "high"]
)
def test_a_temperature_goes_to_what_does_not_reason_at_the_moment(effort: str, *, takes: bool) -> None:
    """GPT-5.1 to 5.4 reason only when asked."""
    quirks = quirks_of("openai", OPENAI, "gpt-5.2")
    refused = quirks.refuses | (quirks.refuses_thinking if effort not in ("", "none") else frozenset())
    assert ("temperature" not in refused) is takes


def test_newer_claudes_refuse_an_answer_that_is_begun() -> None:
    assert BEGUN_ANSWER not in quirks_of("litellm", "", "anthropic/claude-haiku-4-5").refuses
    for name in ("anthropic/claude-opus-4-6", "anthropic/claude-sonnet-9", "bedrock/us.anthropic.claude-opus-4-7"):
        assert BEGUN_ANSWER in quirks_of("litellm", "", name).refuses


def test_a_port_or_a_domain_tells_the_host() -> None:
    assert "n" in quirks_of("openai", "http://box:11434/v1", "qwen3:8b").refuses
    assert "logprobs" in quirks_of("openai", "https://api.groq.com/openai/v1", "llama-4-scout").refuses
    assert quirks_of("openai", "https://api.groq.com.evil.example/v1", "x") == Quirks()
    assert quirks_of("openai", "http://[", "x") == Quirks()


def test_media_types_have_the_names_that_providers_know() -> None:
    assert [media_type(each) for each in ("image/jpg", "IMAGE/JPG", "image/png")] == [
        "image/jpeg",
        "image/jpeg",
        "image/png",
    ]


def test_the_longest_answer_of_a_model_that_no_table_has_is_its_familys() -> None:
    """Known only where each of a target's deployments tells it."""

    def one(kind: DeploymentKind, model: str, address: str = "") -> Deployment:
        return Deployment(deployment_id="a/b", target_id="a", kind=kind, base_url=address, upstream_model=model)

    claude, gpt = one("litellm", "anthropic/claude-opus-9"), one("openai", "gpt-9", OPENAI)
    assert most_output_tokens([claude]) == most_output_tokens([claude, gpt]) == 128_000
    assert most_output_tokens([claude, one("openai", "gpt-9", "https://elsewhere.example/v1")]) is None
    assert most_output_tokens([]) is None


@pytest.mark.parametrize(
    ("kind", "address", "name", "least", "kept_s", "marked"),
    [
        ("openai", OPENAI, "gpt-5-mini", 1_024, 600, False),
        ("openai", OPENAI, "gpt-5.5", 1_024, 86_400, False),
        ("azure", "https://x.openai.azure.com/openai/v1", "gpt-4o", 1_024, 600, False),
        ("litellm", "", "anthropic/claude-sonnet-4-5", 1_024, 300, True),
        ("litellm", "", "anthropic/claude-3-5-haiku-20241022", 2_048, 300, True),
        ("litellm", "", "bedrock/us.anthropic.claude-haiku-4-5-20251001-v1:0", 4_096, 300, True),
        ("litellm", "", "anthropic/claude-opus-4-1-20250805", 1_024, 300, True),
        ("litellm", "", "anthropic/claude-opus-4-5-20251101", 4_096, 300, True),
        ("litellm", "", "anthropic/claude-opus-5-5", 512, 300, True),
        ("openai", "https://openrouter.ai/api/v1", "anthropic/claude-sonnet-4.5", 1_024, 300, True),
        ("openai", "https://generativelanguage.googleapis.com/v1beta/openai", "gemini-2.5-flash", 2_048, None, False),
        ("openai", "https://generativelanguage.googleapis.com/v1beta/openai", "gemini-3.8-flash", 4_096, None, False),
        ("openai", "https://api.groq.com/openai/v1", "gpt-oss-120b", None, 7_200, False),
        ("openai", "https://elsewhere.example/v1", "gpt-5-mini", None, None, False),
    ],
)
def test_prompt_caches_have_their_providers_bounds(
    kind: str, address: str, name: str, least: int | None, kept_s: int | None, *, marked: bool
) -> None:
    """What nobody says is not known."""
    found = quirks_of(kind, address, name)
    assert (found.cache_least_tokens, found.cache_kept_s, found.cache_marked) == (least, kept_s, marked)
