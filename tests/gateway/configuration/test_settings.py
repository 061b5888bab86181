"""The configuration: what is refused and in which words, what the environment adds, and how secrets stay secret."""

import os
from decimal import Decimal
from pathlib import Path

import pytest
import yaml

from accounts.errors import UnusablePepper
from cost.config import CostSection
from cost.price_book.price_config import PricesConfig, price_items
from gateway.configuration.environment import Environment, read_environment, resolve_secret
from gateway.configuration.file import ConfigError
from gateway.configuration.gateway_config import GatewayConfig
from gateway.configuration.peppers import first_peppers, peppers
from gateway.configuration.reference import keys, written
from gateway.configuration.settings import load, reload, without_effect
from gateway.wiring.policy import build_policy
from providers.secret_references import secrets_in, settings_as_shown

ROOT = Path(__file__).parents[3]
PEPPER = "0123456789abcdef" * 2

GOOD = """\
providers:
  models:
    - model_id: gpt-4o
      provider: openai
      max_context_tokens: 128000
      prices: {input: 2.50, cached_input: 0.075, output: 10.00}
      deployments:
        - {kind: openai, base_url: "https://host/v1", api_key: "env:OPENAI_API_KEY"}
    - model_id: llama-3-70b
      provider: self-hosted
      max_context_tokens: 8192
      deployments:
        - {kind: vllm, base_url: "http://vllm:8000/v1"}
"""
SET = {"OPENAI_API_KEY": "sk-live-1234"}


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_key_that_means_nothing_any_more_is_accepted_and_told_of(tmp_path: Path, value: str) -> None:
    """A file that switched the second weigher on or off still loads, as if it had not; one warning has the line."""
    plain = load(_write(tmp_path, GOOD + "classifier: {enabled: false}\n"), Environment(), secrets_from=SET)
    path = _write(tmp_path, GOOD + f"classifier:\n  enabled: false\n  second_weigher: {value}\n")
    assert load(path, Environment(), secrets_from=SET) == plain
    (told,) = without_effect(path)
    line = GOOD.count("\n") + 3
    assert str(told).startswith(f"{path}:{line}: classifier.second_weigher: has no effect any more")


def test_only_what_means_nothing_any_more_is_told_of(tmp_path: Path) -> None:
    """Neither a section without such a key nor a file without the section, and a slip beside it is still a slip."""
    assert without_effect(_write(tmp_path, GOOD)) == []
    assert without_effect(_write(tmp_path, GOOD + "classifier: {enabled: false}\n")) == []
    with pytest.raises(ConfigError, match=r"classifier\.second_weigh: is not a known key"):
        load(_write(tmp_path, GOOD + "classifier: {second_weigh: true}\n"), Environment(), secrets_from=SET)
    assert "classifier.second_weigher" not in {key.path for key in keys()}


def _refusals(tmp_path: Path, text: str) -> list[str]:
    path = _write(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        load(path, Environment(), secrets_from=SET)
    return [str(problem).removeprefix(f"{path}:") for problem in refused.value.problems]


def _model(line: str) -> str:
    return (
        GOOD + f"    - model_id: m\n      provider: p\n      max_context_tokens: 10\n      max_output_tokens: 5\n{line}"
    )


DEPLOYMENT = '      deployments: [{kind: vllm, base_url: "http://h/v1"}]\n'

BAD = [
    # Unknown keys, at every depth.
    (
        GOOD + "server: {prot: 1}\n",
        "14: server.prot: is not a known key; did you mean `port`? Allowed here: host, port, ",
    ),
    (GOOD + "acounts: {}\n", "14: acounts: is not a known key; did you mean `accounts`? Allowed here: server, "),
    (GOOD + "models: []\n", "14: models: is not a section; did you mean `providers.models` or `limits.models`?"),
    (
        GOOD + "limits: {zzz: 1}\n",
        "14: limits.zzz: is not a known key. Allowed here: organisation, team, key, end_user, model",
    ),
    (
        GOOD + "limits: {requests_per_minute: 60}\n",
        "14: limits.requests_per_minute: is not a known key any more; write `limits.key.requests_per_minute`",
    ),
    (
        GOOD + "limits:\n  key: {tokens_per_minut: 60}\n",
        "15: limits.key.tokens_per_minut: is not a known key; did you mean `tokens_per_minute`?",
    ),
    (GOOD + "limits: {team: {requests_per_minute: 0}}\n", "14: limits.team.requests_per_minute: must be at least 1"),
    (
        GOOD + "limits: {team: {request_burst: 5}}\n",
        "14: limits.team: `request_burst` does nothing without `requests_per_minute`",
    ),
    (
        GOOD + "limits: {models: {gpt-4o: {token_burst: 5}}}\n",
        "14: limits: of the model `gpt-4o`: `token_burst` does nothing without `tokens_per_minute`",
    ),
    (
        GOOD + "limits: {models: {gtp-4o: {concurrency: 5}}}\n",
        "14: limits.models.gtp-4o: there is no model `gtp-4o`; did you mean `gpt-4o`?",
    ),
    (
        _model(DEPLOYMENT + "      tiers: [batch]\n"),
        "19: providers.models[2].tiers: is not a known key; did you mean `tier_eligibility`? Allowed here: model_id, ",
    ),
    # Types and bounds.
    (GOOD + "server: {workers: many}\n", "14: server.workers: must be a whole number"),
    (GOOD + "server: {workers: 1.5}\n", "14: server.workers: must be a whole number"),
    (GOOD + "server: {drain_s: soon}\n", "14: server.drain_s: must be a number"),
    (GOOD + "server: {drain_s: 0.5}\n", "14: server.drain_s: must be at least 1"),
    (GOOD + "server: {port: 70000}\n", "14: server.port: must be at most 65535"),
    (GOOD + "server: {host: ''}\n", "14: server.host: must not be empty"),
    (GOOD + "server: {host: [a]}\n", "14: server.host: must be text"),
    (GOOD + "server: 8080\n", "14: server: must be a mapping (`key: value`)"),
    (GOOD + "server:\n  port:\n", "15: server.port: must be a whole number, not empty"),
    (GOOD + "policy: {degrade: maybe}\n", "14: policy.degrade: must be true or false"),
    (GOOD + "policy: {auto: gpt-4o}\n", "14: policy.auto: must be a list"),
    (GOOD + "policy: {auto: []}\n", "14: policy.auto: must not be empty"),
    (
        GOOD + "policy:\n  aliases:\n    fast: {a: b}\n",
        "16: policy.aliases.fast.a: is not a known key. Allowed here: auto,",
    ),
    (GOOD + "policy:\n  aliases:\n    fast: 7\n", "16: policy.aliases.fast: must be text or a list"),
    (GOOD + "policy:\n  aliases:\n    fast:\n      - 7\n", "17: policy.aliases.fast[0]: must be text"),
    (GOOD + "telemetry: {otlp_endpoint: host}\n", "14: telemetry.otlp_endpoint: must begin with http:// or https://"),
    (
        _model(DEPLOYMENT + "      prices: {input: cheap, output: 1}\n"),
        "19: providers.models[2].prices.input: “cheap” is no number: write it like 20.50",
    ),
    (
        _model(DEPLOYMENT + "      prices: {inptu: 1, input: 1, output: 1}\n"),
        "19: providers.models[2].prices.inptu: is not a known key; did you mean `input`? Allowed here: input, output, ",
    ),
    (
        _model(DEPLOYMENT + "      prices:\n        - {input: 1, output: 1}\n        - {input: 2, output: 1}\n"),
        "19: providers.models[2].prices: the dates overlap: two prices have no effective_from",
    ),
    (
        _model(DEPLOYMENT + "      prices:\n        - {input: 1, output: 1}\n        - {input: 2, outptu: 1}\n"),
        "21: providers.models[2].prices[1].outptu: is not a known key; did you mean `output`?",
    ),
    (
        _model(DEPLOYMENT + "      prices: {source: litellm, name: gpt-4oo}\n"),
        "19: providers.models[2].prices.name: the table of litellm 1.",
    ),
    (
        _model(DEPLOYMENT + "      prices: [{source: litellm, name: sample_spec}]\n"),
        "19: providers.models[2].prices[0].name: the table of litellm 1.",
    ),
    (
        _model(DEPLOYMENT + "      prices: {source: litelm, name: gpt-4o}\n"),
        "19: providers.models[2].prices.source: must be litellm; `litelm` is not one of them; did you mean `litellm`?",
    ),
    # Choices.
    (
        _model(DEPLOYMENT + "      tier_eligibility: [interactiv]\n"),
        (
            "19: providers.models[2].tier_eligibility[0]: must be one of interactive, batch; `interactiv` is not one of "
            "them; did you mean `interactive`?"
        ),
    ),
    (
        _model('      deployments: [{kind: openia, base_url: "http://h/v1"}]\n'),
        "18: providers.models[2].deployments[0].kind: must be one of openai, azure, vllm, ",
    ),
    (
        _model(DEPLOYMENT + "      capabilities: [sk-live]\n"),
        "19: providers.models[2].capabilities[0]: must be one of ",
    ),
    # What is missing.
    ("server: {}\n", " providers: is required"),
    ("", " providers: is required"),
    ("providers: {models: []}\n", "1: providers.models: must not be empty"),
    (
        GOOD.replace("provider: openai", "providr: openai"),
        "3: providers.models[0].provider: is required; is it the one written `providr`?",
    ),
    # References.
    (
        GOOD + "policy: {auto: [gpt4o]}\n",
        "14: policy.auto[0]: there is no model `gpt4o`; did you mean `gpt-4o`? Models here: gpt-4o, llama-3-70b",
    ),
    (GOOD + "policy: {aliases: {fast: zzz}}\n", "14: policy.aliases.fast: there is no model `zzz`. Models here: "),
    (GOOD + "policy:\n  aliases:\n    fast: [gpt-4o, zzz]\n", "16: policy.aliases.fast[1]: there is no model `zzz`"),
    (GOOD + "policy: {fallbacks: {zzz: [gpt-4o]}}\n", "14: policy.fallbacks.zzz: there is no model `zzz`"),
    (GOOD + "policy: {fallbacks: {gpt-4o: [zzz]}}\n", "14: policy.fallbacks.gpt-4o[0]: there is no model `zzz`"),
    (GOOD + "cost: {reference_target: zzz}\n", "14: cost.reference_target: there is no model `zzz`"),
    (
        GOOD + "cost: {pools: [{name: h100, targets: [gpt-4], usd_per_gpu_hour: 2.95, "
        "seconds_per_million: {input: 38, output: 200}}]}\n",
        "14: cost.pools[0].targets[0]: there is no model `gpt-4`; did you mean `gpt-4o`? Models here: ",
    ),
    (
        GOOD + "selfhosted: {pools: [{name: h100, targets: [llama-3-70b], spot: true}]}\n",
        "9: providers.models[1].tier_eligibility: has to be [batch], because the pool `h100` that serves the model is a spot pool",
    ),
    (
        GOOD + "classifier: {shadow: {judge_target: gpt-4}}\n",
        "14: classifier.shadow.judge_target: there is no model `gpt-4`; did you mean `gpt-4o`? Models here: ",
    ),
    (GOOD + "policy: {aliases: {gpt-4o: llama-3-70b}}\n", "14: policy.aliases.gpt-4o: `gpt-4o` is a model's own name"),
    (
        "model_list:\n  - model_name: gpt-4o\n",
        "1: model_list: this is a configuration of LiteLLM's proxy: `weighbridge import litellm ",
    ),
    (
        GOOD.replace("https://host/v1", "https://host/v1/chat/completions"),
        "8: providers.models[0].deployments[0]: base_url is what /chat/completions is added to: write https://host/v1",
    ),
    (
        GOOD.replace("kind: openai", "kind: antropic"),
        (
            "8: providers.models[0].deployments[0].kind: must be one of openai, azure, vllm, sglang, tgi, tensorrt-llm, llama.cpp, "
            "ollama, lmstudio, litellm, scripted; `antropic` is not one of them; did you mean `anthropic`?"
        ),
    ),
    (
        _model("      deployments: [{provider: opnrouter}]"),
        "18: providers.models[2].deployments[0]: no provider is called `opnrouter`; did you mean `openrouter`?",
    ),
    (
        GOOD + "    - {model: some-model}\n",
        "14: providers.models[2]: nothing says whose 'some-model' is: write `provider:` beside it",
    ),
    (
        GOOD + "    - {provider: groq, model: m, api_ky: env:K}\n",
        "14: providers.models[2].api_ky: is not a known key; did you mean `api_key`?",
    ),
    *(
        (
            GOOD + f"    - {{provider: groq, model: m, {was}: 1}}\n",
            f"14: providers.models[2].{was}: is not a known key; did you mean `{now}",
        )
        for was, now in (("rpm", "requests_per_minute"), ("api_base", "base_url"), ("timeout", "timeouts: {total_s"))
    ),
    (
        GOOD.replace(
            "https://host/v1", "https://r.openai.azure.com/openai/deployments/d/chat/completions?api-version=2024-10-21"
        ),
        (
            "8: providers.models[0].deployments[0]: base_url is a whole request to Azure: write `kind: azure`, "
            '`base_url: https://r.openai.azure.com`, the deployment\'s name d as model, and `api_version: "2024-10-21"`'
        ),
    ),
    (
        GOOD + "    - {provider: azure, model: m}\n",
        "14: providers.models[2]: kind azure needs a base_url",
    ),
    (
        GOOD + "    - {provider: openai, model: auto}\n",
        "14: providers.models[2].model: `auto` is reserved",
    ),
    (GOOD + "policy: {aliases: {auto: gpt-4o}}\n", "14: policy.aliases.auto: `auto` is reserved"),
    (GOOD.replace("model_id: llama-3-70b", "model_id: auto"), "9: providers.models[1].model_id: `auto` is reserved"),
    (
        GOOD.replace("model_id: llama-3-70b", "model_id: gpt-4o"),
        "1: providers: two models are called gpt-4o; a model_id is unique",
    ),
    # Secrets.
    (
        GOOD.replace("env:OPENAI_API_KEY", "sk-live-1234"),
        "8: providers.models[0].deployments[0].api_key: a secret is never written into the configuration",
    ),
    (
        GOOD.replace("OPENAI_API_KEY", "NOT_THERE"),
        "8: providers.models[0].deployments[0].api_key: refers to NOT_THERE, which is not set",
    ),
    (
        GOOD + "accounts: {peppers: [{id: p1, secret: hunter2}]}\n",
        "14: accounts.peppers[0].secret: must refer to an environment variable, such as env:NAME",
    ),
    (GOOD + "server: {drain_s: 3, leave_s: 3}\n", "14: server: `leave_s` is a part of `drain_s` and has to be shorter"),
    # Form.
    (GOOD + "server: {}\nserver: {}\n", "15: server: stands here twice; the first is on line 14"),
    (GOOD + "server: !!map {}\n", "14: the tag "),
    (GOOD + "server: {\n", "15: is not valid YAML: "),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[message[:60] for _, message in BAD])
def test_a_bad_configuration_is_refused_in_plain_words(tmp_path: Path, text: str, message: str) -> None:
    """Line, key, what is allowed and what was meant; one mistake makes one line, or two when it hides a required key."""
    refusals = _refusals(tmp_path, text)
    assert any(refusal.startswith(message) for refusal in refusals), refusals
    assert len(refusals) <= 2
    said = "\n".join(refusals)
    for never in ("sk-live", "hunter2", "pydantic", "Input should", "type=", "validation error"):
        assert never not in said


def test_all_problems_are_told_at_once_in_the_order_of_the_lines(tmp_path: Path) -> None:
    """Form, types, unknown keys and references do not hide one another."""
    text = "server: {port: x}\nserver: {}\n" + GOOD + "policy: {auto: [zzz]}\nlimits: {a: 1}\n"
    lines = [int(refusal.partition(":")[0]) for refusal in _refusals(tmp_path, text)]
    assert lines == [1, 2, 16, 17]


_SHARED = """\
providers:
  models:
    - {model_id: m-a, provider: own, max_context_tokens: 8192}
    - {model_id: m-b, provider: own, max_context_tokens: 8192}
selfhosted:
  pools: [{name: a, targets: [m-a]}, {name: b, targets: [m-b]}]
  shared_gpus: [{name: box, pools: [a, b]}]
"""
_PAID = "{usd_per_gpu_hour: %s, seconds_per_million: {input: 5, output: 20}, name: %s, targets: [m-%s], replicas: %d}"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("queues: {a: {targets: [m-a]}}", "7: selfhosted.shared_gpus[0].pools: the pool `b` needs a queue of its own"),
        ("queues: {q: {targets: [m-a, m-b]}}", "`queues: {a: {targets: [m-a]}}`"),
        (f"cost: {{pools: [{_PAID % (3, 'a', 'a', 1)}, {_PAID % (4, 'b', 'b', 0)}]}}", "they are the same GPUs"),
        (f"cost: {{pools: [{_PAID % (3, 'a', 'a', 1)}]}}", "they are the same GPUs"),
        (f"cost: {{pools: [{_PAID % (3, 'a', 'a', 1)}, {_PAID % (3, 'b', 'b', 1)}]}}", "set `replicas: 0`"),
    ],
)
def test_pools_that_share_gpus_need_queues_and_one_price(tmp_path: Path, more: str, told: str) -> None:
    """Whoever asks for the model that sleeps waits in a queue, and the GPUs' hours are paid for once."""
    queues = "" if more.startswith("queues") else "queues: {a: {targets: [m-a]}, b: {targets: [m-b]}}\n"
    refusals = _refusals(tmp_path, f"{_SHARED}{queues}{more}\n")
    assert any(told in each for each in refusals), refusals


def test_prices_stay_exact(tmp_path: Path) -> None:
    """A price reaches the catalog digit for digit."""
    config = load(_write(tmp_path, GOOD), Environment(), secrets_from=SET)
    prices = config.providers.models[0].prices
    assert isinstance(prices, PricesConfig)
    assert prices.cached_input == Decimal("0.075")


def test_an_empty_section_is_no_section(tmp_path: Path) -> None:
    """A section whose keys are all commented out keeps its defaults."""
    config = load(_write(tmp_path, GOOD + "policy:\n  # auto: []\n"), Environment(), secrets_from=SET)
    assert config.policy.auto is None


def test_aliases_become_tuples(tmp_path: Path) -> None:
    """One target and a list of targets read the same to planning."""
    text = GOOD + "policy: {aliases: {a: gpt-4o, b: [llama-3-70b, gpt-4o]}, auto: [gpt-4o]}\n"
    config = load(_write(tmp_path, text), Environment(), secrets_from=SET)
    policy = build_policy(config.policy, config.cost)
    assert policy.aliases == {"a": ("gpt-4o",), "b": ("llama-3-70b", "gpt-4o")}
    assert policy.auto_targets == ("gpt-4o",)


def test_planning_learns_the_floor_and_the_reference(tmp_path: Path) -> None:
    """The floor is a share above 0; the reference is the one that savings are counted against."""
    config = load(_write(tmp_path, GOOD + "policy: {quality_floor: 0.9}\n"), Environment(), secrets_from=SET)
    policy = build_policy(config.policy, CostSection(reference_target="gpt-4o"))
    assert (policy.quality_floor, policy.reference) == (0.9, "gpt-4o")
    with pytest.raises(ConfigError, match=r"policy\.quality_floor"):
        load(_write(tmp_path, GOOD + "policy: {quality_floor: 0}\n"), Environment(), secrets_from=SET)


def test_no_file_is_an_error_that_helps() -> None:
    """Without a file the message says how to name one."""
    with pytest.raises(ConfigError, match="pass --config FILE or set WEIGHBRIDGE_CONFIG"):
        load(None, Environment())


def test_the_environment_is_laid_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WEIGHBRIDGE_HOST, _PORT and _WORKERS win over the server section, _CONFIG names the file."""
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", str(_write(tmp_path, GOOD + "server: {port: 1, drain_s: 7}\n")))
    monkeypatch.setenv("WEIGHBRIDGE_HOST", "0.0.0.0")  # noqa: S104 - a value, nothing listens
    monkeypatch.setenv("WEIGHBRIDGE_PORT", "0")
    monkeypatch.setenv("WEIGHBRIDGE_WORKERS", "3")
    server = load(None, read_environment(), secrets_from=SET).server
    assert (server.host, server.port, server.workers, server.drain_s) == ("0.0.0.0", 0, 3, 7)  # noqa: S104


def test_a_secret_that_is_no_address_of_redis_is_refused(tmp_path: Path) -> None:
    """At the start, and without being shown."""
    path = tmp_path / "address"
    path.write_text("http://:hunter2@file")
    (told,) = _refusals(tmp_path, GOOD + f"redis:\n  url: file:{path}\n")
    assert "redis.url: leads to an address that is wrong: it must be an address such as redis://HOST" in told
    assert "hunter2" not in told


def test_secrets_are_shown_as_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown says whether a secret is there, and never what it is; addresses lose their user."""
    monkeypatch.setenv("A", "hunter2")
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    values = {"a": "env:A", "b": "os.environ/B", "c": "redis://u:hunter2@host/0", "d": ["env:A"], "e": f"file:{secret}"}
    told = settings_as_shown(values, os.environ)
    assert told == {
        "a": "env:A (set)",
        "b": "env:B (NOT SET)",
        "c": "redis://***@host/0",
        "d": ["env:A (set)"],
        "e": f"file:{secret} (set)",
    }
    assert [(each.key, each.name, each.is_set) for each in secrets_in({"x": ["env:A", "env:B"]}, os.environ)] == [
        (("x", 0), "A", True),
        (("x", 1), "B", False),
    ]
    assert resolve_secret("os.environ/A") == resolve_secret(f"file:{secret}") == "hunter2"


def test_the_pepper_comes_from_the_first_place_that_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """accounts.peppers, then WEIGHBRIDGE_PEPPER, then a file that the configuration names; else there is no start."""
    monkeypatch.setenv("OLD", "b" * 32)
    file = tmp_path / "made" / "pepper"

    def configured(accounts: str) -> GatewayConfig:
        return load(_write(tmp_path, GOOD + accounts), Environment(), secrets_from={**os.environ, **SET})

    with_file = configured(f"accounts: {{pepper_file: {file}}}\n")
    with_peppers = configured("accounts: {peppers: [{id: p1, secret: 'env:OLD'}]}\n")
    with pytest.raises(ConfigError, match="no pepper: set WEIGHBRIDGE_PEPPER"):
        peppers(configured(""), read_environment())
    with pytest.raises(ConfigError, match="is not there, and the database has 2 keys made under the pepper a, b"):
        first_peppers(with_file, read_environment(), {"a": 1, "b": 1})
    with pytest.raises(ConfigError, match="pepper is not there"):
        peppers(with_file, read_environment())
    made = first_peppers(with_file, read_environment(), {})
    assert peppers(with_file, read_environment()) == first_peppers(with_file, read_environment(), {"a": 1}) == made
    assert file.stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("WEIGHBRIDGE_PEPPER", file.read_text().strip())
    assert peppers(configured(""), read_environment()) == made
    assert peppers(None, read_environment()) == made
    assert [pepper.id for pepper in peppers(with_peppers, read_environment())] == ["p1"]
    monkeypatch.setenv("OLD", "short")
    with pytest.raises(UnusablePepper):
        peppers(with_peppers, read_environment())


def test_a_reload_keeps_the_old_configuration_when_the_new_one_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad file changes nothing; a good one says which changed keys need a restart."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    path = _write(tmp_path, GOOD)
    current = load(path, Environment())
    _write(tmp_path, GOOD + "limits: {zzz: 1}\n")
    refused = reload(current, path, Environment())
    assert refused.config is current
    assert refused.refused is not None
    path.unlink()
    assert reload(current, path, Environment()).config is current
    _write(
        tmp_path,
        GOOD + "limits: {key: {requests_per_minute: 5}}\nserver: {port: 9}\ncost: {reference_target: gpt-4o}\n",
    )
    changed = reload(current, path, Environment())
    assert changed.refused is None
    assert changed.config.limits.key.requests_per_minute == 5
    assert changed.needs_restart == ("server.port",)


def test_what_needs_a_restart_stays_and_is_told_until_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside keys that change at once: each reload names every key that the file has otherwise than the process."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    path = _write(tmp_path, GOOD)
    started = load(path, Environment())
    _write(
        tmp_path,
        GOOD + "server: {drain_s: 5, max_in_flight: 7}\ncost: {budgets: {poll_s: 3}, unpriced: book}\n"
        "sign_in: {idle_s: 99, trusted_proxies: [10.0.0.0/8]}\nresponses: {keep_days: 3}\nbatch: {folder: elsewhere}\n",
    )
    told = ("server.drain_s", "sign_in.idle_s", "cost.budgets.poll_s", "batch.folder")
    first = reload(started, path, Environment())
    config = first.config
    assert first.needs_restart == told
    assert (config.server.max_in_flight, config.cost.unpriced, config.responses.keep_days) == (7, "book", 3)
    assert str(config.sign_in.trusted_proxies[0]) == "10.0.0.0/8"
    assert (config.server.drain_s, config.sign_in.idle_s) == (started.server.drain_s, started.sign_in.idle_s)
    assert (config.cost.budgets, config.batch) == (started.cost.budgets, started.batch)
    assert reload(config, path, Environment()).needs_restart == told
    _write(tmp_path, GOOD)
    back = reload(config, path, Environment())
    assert (back.config, back.needs_restart) == (started, ())


@pytest.mark.parametrize("name", ["minimal.yaml", "gateway.yaml", "pool.yaml"])
def test_the_examples_load(name: str) -> None:
    """The shipped files are right, and need only their secrets."""
    path = ROOT / "config" / name
    config = load(path, Environment(), secrets_from=None)
    wanted = {secret.name: "x" * 32 for secret in secrets_in(config, {})} | {"REDIS_ADDRESS": "redis://localhost"}
    assert load(path, Environment(), secrets_from=wanted) == config
    assert yaml.safe_load(yaml.safe_dump(settings_as_shown(config, {})))["providers"]["models"]


def test_the_complete_example_has_what_was_asked_for() -> None:
    """OpenAI, Google, Anthropic, Bedrock and Vertex through litellm, Together, a pool of Llama with an adapter, TGI and TensorRT-LLM;
    how good they are is known by their names alone.
    """
    config = load(ROOT / "config" / "gateway.yaml", Environment(), secrets_from=None)
    models = {model.model_id: model for model in config.providers.models}
    assert {"gpt-5.1", "gpt-5-mini", "gemini-2.5-flash", "claude-sonnet-4-5", "claude-haiku-4-5"} <= models.keys()
    (pool,) = config.selfhosted.pools
    assert pool.served == ("llama-3.3-70b", "llama-3.3-70b-sql")
    assert not any(models[name].deployments for name in pool.served)
    assert config.queues["h100"].tokens_in_flight == 0
    assert not any(model.ability or model.capability for model in models.values())
    assert set(config.policy.auto or ()) <= models.keys()
    kinds = {deployment.kind for model in models.values() for deployment in model.deployments}
    assert kinds == {"openai", "litellm", "vllm", "tgi", "tensorrt-llm"}
    assert {model.provider for model in models.values()} >= {"bedrock", "vertex", "together"}
    prices = [price for model in models.values() for price in price_items(model.prices)]
    assert len(prices) >= len(models)
    assert all(isinstance(price, PricesConfig) and price.effective_from for price in prices)


def test_every_key_is_documented() -> None:
    """docs/configuration.md holds exactly the tables that the types give, and no key is without its meaning."""
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == written(page), "run `python -m gateway.configuration.reference`"
    assert [key.path for key in keys() if not key.meaning] == []
