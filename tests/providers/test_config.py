"""The providers section: what it takes, and how it says what is wrong."""

from decimal import Decimal
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from cost.price_book.price_config import PricesConfig
from providers.config import BreakerConfig, ProvidersSection, RetryConfig, TimeoutsConfig

DIRECT: dict[str, Any] = {"kind": "openai", "base_url": "https://api.example.com/v1", "api_key": "env:KEY"}


def model(**changes: Any) -> dict[str, Any]:
    facts = {"model_id": "m", "provider": "p", "max_context_tokens": 8_000, "deployments": [DIRECT]}
    return facts | changes


def section(*models: dict[str, Any], **fields: Any) -> ProvidersSection:
    return ProvidersSection.model_validate({"models": list(models), **fields})


def test_a_whole_section_in_yaml() -> None:
    """The shape that operators write: prices as numbers or text, replicas as deployments."""
    text = """
    models:
      - model_id: meta-llama/llama-3-70b
        provider: self
        tier_eligibility: [batch]
        prices: {input: 0.1, output: "0.30", cached_input: 0.025, effective_from: 2026-06-01}
        max_context_tokens: 8192
        capabilities: [tools, json]
        capability: 0.6
        deployments:
          - {name: a, kind: vllm, base_url: "http://10.0.0.1:8000/v1"}
          - {name: b, kind: vllm, base_url: "http://10.0.0.2:8000/v1", weight: 2}
    breaker: {consecutive_failures: 3}
    """
    found = ProvidersSection.model_validate(yaml.safe_load(text))
    prices = found.models[0].prices
    assert isinstance(prices, PricesConfig)
    assert (prices.input, prices.output, prices.cached_input) == (Decimal("0.1"), Decimal("0.30"), Decimal("0.025"))
    assert prices.named_version() == "2026-06-01"
    assert [deployment.weight for deployment in found.models[0].deployments] == [1, 2]
    assert found.breaker.consecutive_failures == 3


def test_defaults_are_the_promised_ones() -> None:
    """Breaker in Envoy's spirit, a 20 % retry budget with a floor of three, both tiers eligible."""
    breaker, retry = BreakerConfig(), RetryConfig()
    assert (breaker.consecutive_failures, breaker.base_ejection_s, breaker.max_ejection_s) == (5, 30, 300)
    assert (breaker.max_ejected_share, retry.budget_share, retry.budget_floor) == (0.5, 0.2, 3)
    assert section(model()).models[0].tier_eligibility == {"interactive", "batch"}
    timeouts = TimeoutsConfig()
    assert timeouts.first_token_s("interactive") < timeouts.first_token_s("batch")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"surprise": 1}, "Extra inputs"),
        ({"max_context_tokens": 0}, "greater than or equal to 1"),
        ({"max_output_tokens": 9_000}, "max_output_tokens is above max_context_tokens"),
        ({"capability": 1.1}, "less than or equal to 1"),
        ({"ability": "two words"}, "match pattern"),
        ({"tier_eligibility": []}, "at least 1"),
        ({"tier_eligibility": ["nightly"]}, "'interactive' or 'batch'"),
        ({"deployments": [DIRECT, DIRECT]}, "two deployments are named main"),
        ({"deployments": [DIRECT | {"weight": 0}]}, "greater than 0"),
        ({"deployments": [DIRECT | {"base_url": ""}]}, "needs a base_url"),
        ({"deployments": [DIRECT | {"base_url": "ftp://host"}]}, "http"),
        ({"deployments": [DIRECT | {"base_url": "https://user:pass@host/v1"}]}, "without a user"),
        ({"deployments": [DIRECT | {"base_url": "https://host/v1?key=1"}]}, "query"),
        ({"deployments": [DIRECT | {"options": {"a": "b"}}]}, "options are litellm's"),
        ({"deployments": [{"kind": "litellm", "upstream_model": "claude"}]}, "bedrock/"),
        ({"deployments": [{"kind": "litellm"}]}, "bedrock/"),
        ({"deployments": [{"kind": "carrier-pigeon"}]}, "openai"),
        ({"prices": {"input": -1, "output": 1}}, "greater than or equal to 0"),
        ({"prices": {"input": float("nan"), "output": 1}}, "finite"),
        ({"prices": {"input": "0.0000000001", "output": 1}}, "nano"),
        ({"prices": {"input": True, "output": 1}}, "decimal"),
        ({"deployments": [DIRECT | {"allow_media_links": True}]}, "engines of one's own"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], says: str) -> None:
    """Each mistake is refused with words that help."""
    with pytest.raises(ValidationError) as raised:
        section(model(**changes))
    assert says.lower() in str(raised.value).lower()


def test_model_ids_are_unique() -> None:
    """Two models of one name would make a booking ambiguous."""
    with pytest.raises(ValidationError, match="two models are called m"):
        section(model(), model())


@pytest.mark.parametrize("reference", ["env:OPENAI_API_KEY", "os.environ/OPENAI_API_KEY", "file:/run/secrets/openai"])
def test_references_to_secrets(reference: str) -> None:
    """Three spellings say where a secret is found."""
    assert section(model(deployments=[DIRECT | {"api_key": reference}])).models[0].deployments[0].api_key == reference


@pytest.mark.parametrize(
    "deployment",
    [
        DIRECT | {"api_key": "sk-live-VERYSECRET"},
        DIRECT | {"api_key": "env:"},
        DIRECT | {"api_key": "env:sk-live-VERYSECRET"},
        {"kind": "litellm", "upstream_model": "bedrock/m", "options": {"aws_secret_access_key": "VERYSECRET"}},
    ],
)
def test_a_literal_secret_is_refused_and_not_repeated(deployment: dict[str, Any]) -> None:
    """The message says what to write instead, and the secret stays out of it."""
    with pytest.raises(ValidationError) as raised:
        section(model(deployments=[deployment]))
    assert "env:NAME" in str(raised.value)
    assert "VERYSECRET" not in str(raised.value)


HEADERS: list[tuple[dict[str, str], str]] = [
    ({"Authorization": "env:OTHER"}, "says who calls, as `api_key` does"),
    ({"X-API-Key": "env:OTHER"}, "says who calls, as `api_key` does"),
    ({"cf-aig-authorization": "Bearer abc"}, "looks like a secret"),
    ({"X-Title": "Bearer abc"}, "looks like a secret"),
    ({"X-Trace": "sk-live-0123"}, "looks like a secret"),
    ({"Content-Length": "3"}, "is set by the gateway itself"),
    ({"Host": "h"}, "is set by the gateway itself"),
    ({"Transfer-Encoding": "chunked"}, "is set by the gateway itself"),
    ({"X-Weighbridge-Team": "t"}, "is set by the gateway itself"),
    ({"X-Title": "a", "x-title": "b"}, "stands there twice"),
    ({"X-Title": "a\r\nb"}, "should match pattern"),
    ({"X Title": "a"}, "should match pattern"),
    ({"X-Title": ""}, "at least 1 character"),
    ({"X-Title": "ü"}, "should match pattern"),
]


@pytest.mark.parametrize(("headers", "told"), HEADERS)
def test_headers_of_a_deployment_break_nothing_and_hide_no_secret(headers: dict[str, str], told: str) -> None:
    """Neither the key nor the form of a request can be changed by one, and secrets are references."""
    with pytest.raises(ValidationError, match=told):
        section(model(deployments=[DIRECT | {"headers": headers}]))


def test_headers_that_a_deployment_may_have() -> None:
    """Notes, secrets by reference, and who calls where there is no key."""
    notes = {
        "HTTP-Referer": "https://example.com",
        "X-Title": "My app",
        "cf-aig-authorization": "env:CF",
        "user-agent": "us",
    }
    assert section(model(deployments=[DIRECT | {"headers": notes}])).models[0].deployments[0].headers == notes
    basic = {key: value for key, value in DIRECT.items() if key != "api_key"} | {
        "headers": {"Authorization": "env:BASIC"}
    }
    assert section(model(deployments=[basic])).models[0].deployments[0].api_key is None


def test_timeouts_and_rates_of_a_deployment_have_bounds() -> None:
    """None is zero, negative or endless."""
    for wrong in (
        {"timeouts": {"first_token_s": 0}},
        {"timeouts": {"total_s": ".inf"}},
        {"timeouts": {"idel_s": 3}},
        {"requests_per_minute": 0},
        {"tokens_per_minute": -1},
    ):
        with pytest.raises(ValidationError):
            section(model(deployments=[DIRECT | wrong]))
