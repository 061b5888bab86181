"""Thirty configurations of LiteLLM, each with what people have in theirs: imported, loaded, and every line of it told."""

import os
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec
import pytest
import yaml

from gateway.configuration.environment import Environment
from gateway.configuration.file import Value
from gateway.configuration.settings import load
from gateway.from_litellm.checked import sound
from gateway.from_litellm.configuration import as_yaml, translate
from gateway.from_litellm.secrets import Secrets
from gateway.from_litellm.source import Source, Variables, read_source
from gateway.from_litellm.tables import Theirs, documents_of, json_in
from gateway.from_litellm.told import Account, Told

FOLDER: Final = Path(__file__).parent / "configs"
FILES: Final = sorted(FOLDER.glob("*.yaml"))
_LITERALS: Final = re.compile(
    r"sk-[A-Za-z0-9-]{16,}|gsk_[A-Za-z0-9]{16,}|hunter2hunter2|r3dis-s3cret-passw0rd|s3cret-s3cret|abcdefgh12345678|X{16}"
)


class Imported(msgspec.Struct, frozen=True):
    """What came of a file."""

    written: dict[str, Any]
    told: list[Told]
    secrets: Secrets
    source: Source

    def model(self, model_id: str) -> dict[str, Any]:
        """A model by its name."""
        found: list[dict[str, Any]] = [
            each for each in self.written["providers"]["models"] if each["model_id"] == model_id
        ]
        assert len(found) == 1, [each["model_id"] for each in self.written["providers"]["models"]]
        return found[0]

    def became(self, place: str) -> list[str]:
        """What became of a place, as `outcome: words`."""
        return [f"{each.outcome}: {each.words}" for each in self.told if each.place == place]


def imported(path: Path, environment: dict[str, str] | None = None) -> Imported:
    """Import one file; its configuration is one that loads."""
    account, variables = Account(), Variables(environment or {})
    source = read_source(path, account, variables)
    secrets = Secrets(account, variables)
    translated = translate(source, account, secrets, variables)
    written = sound(translated.written, Environment(), account)
    return Imported(written, account.in_order(), secrets, source)


def of(number: int, environment: dict[str, str] | None = None) -> Imported:
    """Import the file of a number."""
    return imported(next(each for each in FILES if each.name.startswith(f"{number:02}_")), environment)


def _leaves(value: Value, place: str = "") -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{place}.{key}" if place else key)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{place}[{index}]")
    else:
        yield place


def _covers(told: str, leaf: str) -> bool:
    return told == leaf or leaf.startswith((f"{told}.", f"{told}[")) or told.startswith((f"{leaf}.", f"{leaf}["))


def test_there_are_thirty() -> None:
    """As many as the shapes that were looked at, and two."""
    assert len(FILES) == 30


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_loads_and_each_line_is_told(path: Path, tmp_path: Path) -> None:
    """What is written loads as it is, every value of LiteLLM's was told, and nothing had to be taken out again."""
    found = imported(path)
    file = tmp_path / "weighbridge.yaml"
    file.write_text(as_yaml(found.written))
    load(file, Environment(), secrets_from=None)
    places = [each.place for each in found.told]
    left_out = {
        place.partition("]")[0] for place in places if any("left out" in words for words in found.became(place))
    }
    for document in found.source.documents:
        for leaf in _leaves(document.values):
            is_told = any(_covers(place, leaf) for place in places) or leaf.partition("]")[0] in left_out
            assert is_told, leaf
    assert [each for each in found.told if not each.file] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_secret_is_written_or_told(path: Path) -> None:
    """A literal secret of the file is neither in what is written nor in what is told; it waits under the variable's name."""
    found = imported(path)
    literals = set(_LITERALS.findall(path.read_text()))
    said = as_yaml(found.written) + "\n".join(f"{each.place} {each.words}" for each in found.told)
    assert [literal for literal in literals if literal in said] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_twice_is_the_same(path: Path) -> None:
    """The same file gives the same configuration and the same words."""
    assert as_yaml(imported(path).written) == as_yaml(imported(path).written)


def test_addresses_of_desktop_engines_get_their_path() -> None:
    """LiteLLM's address of an Ollama has no path, ours has; what stands for a key there is none."""
    found = of(2)
    assert found.model("qwen-coder")["base_url"] == "http://host.docker.internal:11434/v1"
    assert "api_key" not in found.model("studio")
    assert found.became("model_list[2].litellm_params.api_key") == [
        "not needed: no key: what stands there is a placeholder"
    ]


def test_regions_of_azure_are_deployments_by_weight() -> None:
    """Entries of one name are one model; LiteLLM's shuffle by rpm is a weight, and the limits of each stay."""
    found = of(3)
    model = found.model("gpt-4o")
    assert [each["upstream_model"] for each in model["deployments"]] == ["gpt-4o-sweden", "gpt-4o-france"]
    assert [each["requests_per_minute"] for each in model["deployments"]] == [600, 300]
    assert [float(each["weight"]) for each in model["deployments"]] == [600, 300]
    assert model["known_as"] == "azure/gpt-4o"
    # A whole request's address is cut to the resource.
    assert found.model("embeddings")["base_url"] == "https://contoso.openai.azure.com"
    assert found.model("embeddings")["capabilities"] == ["embeddings"]
    assert found.written["providers"]["retry"] == {"attempts": 3}


def test_rpm_is_no_weight_for_another_strategy() -> None:
    """Where LiteLLM did not shuffle by rpm, its entries share alike."""
    path = FOLDER / "03_azure_several_regions.yaml"
    text = path.read_text().replace("simple-shuffle", "latency-based-routing")
    other = path.with_name("not-kept.yaml")
    other.write_text(text)
    try:
        assert all("weight" not in each for each in imported(other).model("gpt-4o")["deployments"])
    finally:
        other.unlink()


def test_literal_secrets_move_each_to_a_name_of_its_own() -> None:
    """The same secret has one name, another one another; none is lost."""
    found = of(4)
    assert [found.model(name)["api_key"] for name in ("gpt-4o-mini", "gpt-4o", "gpt-4.1")] == [
        "env:OPENAI_API_KEY",
        "env:OPENAI_API_KEY_2",
        "env:OPENAI_API_KEY",
    ]
    assert found.secrets.moved["OPENAI_API_KEY_2"].endswith("33334444")
    assert found.secrets.moved["GROQ_API_KEY"].startswith("gsk_")


def test_a_literal_takes_no_variable_that_something_refers_to(tmp_path: Path) -> None:
    """Also where the reference comes later: what the variable holds already is another key."""
    file = tmp_path / "config.yaml"
    file.write_text(
        "model_list:\n"
        "- {model_name: a, litellm_params: {model: openai/gpt-4o, api_key: sk-proj-aaaaBBBBccccDDDD}}\n"
        "- {model_name: b, litellm_params: {model: openai/gpt-4.1, api_key: os.environ/OPENAI_API_KEY}}\n"
    )
    found = imported(file)
    assert (found.model("a")["api_key"], found.model("b")["api_key"]) == ("env:OPENAI_API_KEY_2", "env:OPENAI_API_KEY")


def test_wildcards_stay() -> None:
    """A provider's wildcard is ours; one for every provider is told to be less."""
    found = of(5)
    assert found.model("groq-*")["deployments"][0]["upstream_model"] == "*"
    assert any("one provider" in words for words in found.became("model_list[4].litellm_params.model"))
    assert "policy" not in found.written
    assert found.became("litellm_settings.fallbacks[0].openai/*")[0].startswith("not possible")


def test_merge_keys_are_filled_in() -> None:
    """What an anchor brings counts unless the entry says otherwise."""
    found = of(6)
    assert found.model("sonnet")["timeouts"] == {"total_s": 120}
    assert found.model("kimi")["timeouts"] == {"total_s": 60}
    assert found.model("kimi")["headers"]["X-Title"] == "Example"
    assert found.model("deepseek")["api_key"] == "env:DEEPSEEK_API_KEY"


def test_included_files_are_read_once() -> None:
    """A file that is included brings its models, one that is not there is told, and a circle ends."""
    found = of(7)
    assert found.model("included")["model"] == "gpt-4o-mini"
    assert any("cannot be read" in words for words in found.became("include[1]"))
    assert found.written["providers"]["retry"] == {"attempts": 4}


@pytest.mark.parametrize("number", [8, 9])
def test_without_a_model_there_is_one_to_begin_with(number: int) -> None:
    """A file whose models are in a database gives one that loads, and says where to read them."""
    found = of(number)
    assert [each["model_id"] for each in found.written["providers"]["models"]] == ["openai/*"]
    if number == 9:
        assert any("--database" in words for words in found.became("general_settings.store_model_in_db"))


def test_bedrock_and_vertex_keep_their_arguments() -> None:
    """Region, project and role go to litellm; secrets are references, a file of credentials is read from its place."""
    found = of(10)
    options = found.model("claude-bedrock")["options"]
    assert options["aws_secret_access_key"] == "env:AWS_SECRET_ACCESS_KEY"
    assert found.model("nova")["options"]["aws_region_name"] == "env:AWS_REGION"
    assert found.model("gemini-vertex")["options"]["vertex_credentials"] == "file:/secrets/vertex.json"
    assert found.model("cohere-rerank")["prices"]["units"] == {"search": Decimal("0.002")}


def test_prices_are_exact_for_a_million_tokens() -> None:
    """Figures for a token, also as text with an exponent, are figures for a million to the last digit; free is free."""
    found = of(11)
    model = found.model("llama-70b")
    assert {name: str(each.normalize()) for name, each in model["prices"].items()} == {"input": "0.6", "output": "0.8"}
    assert model["max_context_tokens"] == 131072
    assert model["capabilities"] == ["json", "tools"]
    assert [each.get("kind", each.get("provider")) for each in model["deployments"]] == ["vllm", "openai"]
    assert model["deployments"][1]["base_url"] == "http://gpu-2:8000/v1"
    assert found.model("bge-m3")["prices"] == {"input": 0, "output": 0}


def test_other_models_behind_one_name_are_tried_in_order() -> None:
    """Entries that are other models or cost otherwise stay apart, so that each request is booked at its own price."""
    found = of(12)
    aliases = found.written["policy"]["aliases"]
    assert aliases["smart"] == ["smart--1", "smart--2", "cheap--1", "cheap--2"]
    assert aliases["gpt-4"] == ["smart--1", "smart--2"]
    assert found.model("cheap--2")["prices"]["input"] == Decimal("0.02")
    assert found.became("router_settings.model_group_alias.lost") == ["not possible: there is no model nowhere"]


def test_fallbacks_of_every_kind() -> None:
    """Fallbacks, those for long prompts and those for all become one list a model, without what is not there."""
    found = of(13)
    assert found.written["policy"]["fallbacks"] == {"a": ["b", "c"], "b": ["a", "c"]}
    assert any("nowhere" in words for words in found.became("litellm_settings.fallbacks[1].nowhere"))
    assert found.written["providers"]["breaker"]["consecutive_failures"] == 4
    assert float(found.written["providers"]["breaker"]["base_ejection_s"]) == 30


def test_redis_is_a_variable() -> None:
    """Host, port and password are parts of one address, which stands in no file."""
    found = of(14)
    assert found.written["redis"] == {"url": "env:REDIS_URL"}
    assert found.written["cache"] == {"default": True, "ttl_s": 3600}
    assert float(found.written["providers"]["breaker"]["base_ejection_s"]) == 3600
    known = of(14, {"REDIS_HOST": "cache", "REDIS_PORT": "6380", "REDIS_PASSWORD": "p"})
    assert known.secrets.moved["REDIS_URL"] == "redis://:p@cache:6380/0"


def test_sentinels_and_clusters_are_one_address(tmp_path: Path) -> None:
    """Which is said; where there are both, each with its own, and no password is told."""
    path = tmp_path / "config.yaml"
    path.write_text(
        "model_list: [{model_name: a, litellm_params: {model: openai/a}}]\n"
        "litellm_settings: {cache: true, cache_params: {type: redis, service_name: mymaster, sentinel_nodes: [[localhost, 26379]],"
        " sentinel_password: hunter2-hunter2, redis_startup_nodes: [{host: 127.0.0.1, port: 7001}]}}\n"
    )
    found = imported(path)
    place = "litellm_settings.cache_params"
    for key in ("service_name", "sentinel_nodes", "sentinel_password"):
        (words,) = found.became(f"{place}.{key}")
        assert "redis+sentinel://" in words
        assert "hunter2" not in words
    assert "redis+cluster://" in found.became(f"{place}.redis_startup_nodes")[0]


def test_what_has_no_equal_is_told() -> None:
    """Unknown keys, servers, guardrails and semantic caches are told one by one, with what to do instead."""
    assert of(16).became("general_settings.a_key_from_the_future")[0].startswith("not possible: no key of LiteLLM's")
    assert of(16).written["limits"] == {"team": {"tokens_per_minute": 20000, "requests_per_minute": 100}}
    assert any("guard" in words for words in of(17).became("guardrails"))
    assert any("similar" in words for words in of(15).became("litellm_settings.cache_params.type"))


def test_entries_that_say_too_little() -> None:
    """An entry without a provider or a model is left out and told; a hub's name at an address is a model there."""
    found = of(18)
    assert [each["model_id"] for each in found.written["providers"]["models"]] == [
        "hub",
        "mistral/mistral-small-latest",
        "custom",
    ]
    assert found.model("hub")["model"] == "acme/own-model"
    assert found.model("hub")["kind"] == "openai"
    assert any("whose model" in words for words in found.became("model_list[0].litellm_params.model"))


def test_defaults_of_requests_are_told() -> None:
    """What an entry sets in each request has no place here, and says so; limits of time have."""
    found = of(19)
    assert found.model("thinker")["timeouts"] == {"first_token_s": 20, "total_s": 90}
    assert found.became("model_list[0].litellm_params.temperature") == [
        "not possible: no defaults of requests: callers send it"
    ]
    assert found.model("o3")["headers"] == {"OpenAI-Organization": "env:OPENAI_ORG"}


def test_addresses_of_the_environment_are_written_out() -> None:
    """An address whose variable is set, here or in the file or by a default, is written; another leads nowhere, and says so."""
    found = of(
        20,
        {
            "AZURE_BASE": "https://contoso.openai.azure.com/",
            "AZURE_VERSION": "2025-01-01",
            "SOME_MODEL": "openai/gpt-5",
        },
    )
    assert found.model("azure")["base_url"] == "https://contoso.openai.azure.com"
    assert found.model("azure")["api_version"] == "2025-01-01"
    assert found.model("named")["model"] == "gpt-5"
    assert found.model("compose")["base_url"] == "http://compose:9000/v1"
    assert found.model("set")["base_url"] == "http://set-in-the-file:8000/v1"
    assert found.model("inner")["base_url"] == "http://inner-base.invalid/v1"


def test_a_key_is_no_address(tmp_path: Path) -> None:
    """Whoever mixed the two up finds no key in the file that was written."""
    found = _of_text(tmp_path, _MODEL.replace("'https://a.example/v1'", "os.environ/A_KEY") % 5, {"A_KEY": "sk-hidden"})
    assert ".invalid" in found.model("a")["base_url"]
    assert "sk-hidden" not in str(found.written)


def test_odd_names_stay_what_callers_send() -> None:
    """A name that no model of ours can have is an alias, so that old clients go on."""
    found = of(21)
    aliases = found.written["policy"]["aliases"]
    assert aliases["GPT 4o (EU)"] == "GPT-4o-EU"
    assert aliases["модель"] == "model"
    assert "auto" not in aliases
    assert found.model("auto-of-litellm")["model"] == "gpt-4o-mini"
    assert found.model("4")["model"] == "gpt-4"


def test_modes_are_capabilities() -> None:
    """Models that do not chat say so, with prices of their units."""
    found = of(22)
    assert found.model("whisper")["capabilities"] == ["transcription"]
    assert found.model("dalle")["prices"]["units"] == {"image": Decimal("0.04")}
    assert any("realtime" in words for words in found.became("model_list[3].model_info.mode"))


def test_a_router_by_complexity_is_an_alias_that_chooses() -> None:
    """LiteLLM's router chooses among the same models here; one without models of the file is told."""
    found = of(23)
    assert found.written["policy"]["aliases"] == {"smart": {"auto": ["small", "large"]}}
    assert found.became("model_list[3]")[0].startswith("not possible")


def test_credentials_stand_with_their_entries() -> None:
    """A named credential gives its entry key, address and version."""
    found = of(24)
    model = found.model("gpt-4o")
    assert (model["api_key"], model["base_url"]) == ("env:AZURE_KEY", "https://main.openai.azure.com")
    assert any("nobody" in words for words in found.became("model_list[1].litellm_params.litellm_credential_name"))


def test_the_last_of_two_counts() -> None:
    """A key that stands twice has its last value, as LiteLLM's reader has it, and both are told."""
    found = of(25)
    assert found.model("gpt-4o-2")["api_key"] == "env:SECOND_KEY"
    assert found.written["providers"]["retry"] == {"attempts": 6}
    assert any("stands here twice" in each.words for each in found.told)


def test_prices_of_long_prompts_and_batches() -> None:
    """Tiers of length and of batches come along, with every figure that stands beside them."""
    found = of(26)
    long_prompt = found.model("gemini-pro")["prices"]["long_prompts"][0]
    assert (long_prompt["above_tokens"], float(long_prompt["input"])) == (200_000, 2.5)
    assert float(found.model("claude")["prices"]["batch"]["output"]) == 7.5
    assert {name: float(each) for name, each in found.model("flat")["prices"].items()} == {"input": 1.0, "output": 0.0}
    assert "prices" not in found.model("senseless")


def test_a_litellm_behind_is_an_address() -> None:
    """Another LiteLLM is called as any host that speaks OpenAI's API."""
    found = of(28)
    assert found.model("upstream") == {
        "model_id": "upstream",
        "provider": "litellm",
        "model": "gpt-4o",
        "kind": "openai",
        "base_url": "http://litellm:4000",
        "api_key": "env:LITELLM_KEY",
    }


def test_numbers_that_mean_nothing_are_told() -> None:
    """A rate of 0, words for a number and a time below 0 are not written."""
    found = of(29)
    assert found.model("gpt-4o-mini").keys() == {"model_id", "provider", "model", "api_key"}
    assert found.became("model_list[1].litellm_params.tpm")[0].startswith("not possible")


def test_the_text_reads_as_it_was_written() -> None:
    """Prices are plain numbers in the file, no fractions of a binary float and no text."""
    text = as_yaml(of(26).written)
    assert "input: 1.25\n" in text
    assert re.search(r"[0-9]e-[0-9]", text) is None
    assert yaml.safe_load(text)["providers"]["models"][0]["prices"]["input"] == 1.25


def _of_text(folder: Path, text: str, environment: dict[str, str] | None = None) -> Imported:
    (path := folder / "config.yaml").write_text(text)
    return imported(path, environment)


_MODEL: Final = (
    "model_list: [{model_name: a, litellm_params: {model: openai/a, api_base: 'https://a.example/v1', rpm: %s}}]\n"
)


@pytest.mark.parametrize(
    "name", ['"a\\0b"', "circle", "5", "[a]", "{a: b}", "/dev/zero", ".", "missing.yaml", "pipe", "../other.yaml"]
)
def test_what_cannot_be_included_is_told(tmp_path: Path, name: str) -> None:
    """The rest is imported, and nobody waits for who would write to a pipe."""
    (tmp_path / "circle").symlink_to("circle")
    os.mkfifo(tmp_path / "pipe")
    found = _of_text(tmp_path, f"include: [{name}]\n{_MODEL % 5}")
    assert found.model("a")
    assert found.became("include[0]")[0].startswith("not possible: not read: ")


def test_a_file_outside_the_folder_is_not_told_line_by_line(tmp_path: Path) -> None:
    """Who may write the configuration need not be who may read the other, and a link leads out of the folder, too."""
    (tmp_path / "shadow").write_text("root: the hash of a password\n")
    (folder := tmp_path / "theirs").mkdir()
    (folder / "link.yaml").symlink_to("../shadow")
    found = _of_text(folder, f"include: [../shadow, {tmp_path}/shadow, link.yaml]\n{_MODEL % 5}")
    assert found.model("a")
    assert "hash of a password" not in f"{found.told}"
    for number in range(3):
        assert "outside the configuration's folder" in found.became(f"include[{number}]")[0]


@pytest.mark.parametrize("name", ["PATH", "PYTHONPATH", "LD_PRELOAD", "BASH_ENV", "https_proxy"])
def test_nothing_that_steers_a_shell_or_a_program_is_taken_for_a_secret(tmp_path: Path, name: str) -> None:
    """What `--secrets` writes is read by the shell that starts the gateway."""
    text = (
        f"environment_variables: {{{name}: /tmp/theirs}}\n"
        f"model_list: [{{model_name: b, litellm_params: {{model: openai/b, api_key: os.environ/{name}}}}}, "
        "{model_name: a, litellm_params: {model: openai/a}}]\n"
    )
    found = _of_text(tmp_path, text)
    assert name not in found.secrets.moved
    assert f"env:{name}" not in as_yaml(found.written)
    assert found.model("a")


def test_an_engine_of_one_s_own_is_said_to_be_one(tmp_path: Path) -> None:
    """As `openai` it is sent callers' links to media, which it would fetch from inside the network."""
    text = "model_list: [{model_name: a, litellm_params: {model: openai/llama, api_base: 'http://%s/v1'}}]\n"
    for host, is_own in (("10.0.0.5:8000", True), ("vllm.models.svc:8000", True), ("api.example.com", False)):
        found = _of_text(tmp_path, text % host)
        assert any("kind: vllm" in words for words in found.became("model_list[0].litellm_params.model")) is is_own, (
            host
        )


def test_what_no_model_is_named_by_is_told(tmp_path: Path) -> None:
    """A mapping in the name's place, and one that brings itself in."""
    text = "model_list: [{model_name: b, litellm_params: {model: {a: 1}}}, {model_name: a, litellm_params: {model: openai/a}}]\n"
    found = _of_text(tmp_path, f"{text}general_settings: &all {{<<: *all}}\n")
    assert found.model("a")
    assert "is a text" in found.became("model_list[0].litellm_params.model")[0]


@pytest.mark.parametrize("number", ["1e999999999", "1e30", "-1e999999999", "٣e99999", ".inf"])
def test_a_number_of_a_billion_digits_is_none(tmp_path: Path, number: str) -> None:
    """It is not written out first."""
    found = _of_text(
        tmp_path, _MODEL % f'"{number}"' + f'router_settings: {{num_retries: "{number}", timeout: "{number}"}}\n'
    )
    assert "requests_per_minute" not in found.model("a")


def test_a_password_of_redis_may_have_any_character(tmp_path: Path) -> None:
    """As it stands it would end the address's host, or begin a path."""
    cache = '{type: redis, host: redis.example, port: 6379, password: "p@ss/w:rd#?%"}'
    found = _of_text(tmp_path, f"{_MODEL % 5}litellm_settings: {{cache: true, cache_params: {cache}}}\n")
    address = urlsplit(found.secrets.moved["REDIS_URL"])
    assert (address.hostname, address.port, unquote(address.password or "")) == ("redis.example", 6379, "p@ss/w:rd#?%")


@pytest.mark.parametrize("text", ["😀", "a\u2028b\x85\x7f\ufeff", 'quote " and \\ud83d', "line\nend\ttab", "\ud800"])
def test_a_text_of_the_database_may_have_any_character(text: str) -> None:
    """JSON's escapes are not all YAML's: one emoji made the whole import fail."""
    row = {
        "model_id": "1",
        "model_name": text,
        "litellm_params": {"model": "openai/a"},
        "model_info": {"description": text},
    }
    (document,) = documents_of(Theirs(rows={"models": [row]}), None, Account())
    entries: Any = document.values["model_list"]
    (entry,) = entries
    wanted = "\ufffd" if text == "\ud800" else text
    assert entry == {
        "model_name": wanted,
        "litellm_params": {"model": "openai/a"},
        "model_info": {"description": wanted},
    }


def test_a_column_of_endless_brackets_is_no_value() -> None:
    """It is as if it were empty."""
    assert json_in("[" * 200_000) is None


@pytest.mark.parametrize(
    "params",
    [
        "model: os.environ/WEIGHBRIDGE_PEPPER",
        "model: openai/b, api_base: os.environ/WEIGHBRIDGE_PEPPER",
        "model: openai/b, api_base: 'https://b.example/v1', api_key: os.environ/WEIGHBRIDGE_PEPPER",
        "model: openai/b, extra_headers: {x: '${WEIGHBRIDGE_PEPPER}'}",
        "model: os.environ/THROUGH, api_key: os.environ/THROUGH",
    ],
)
def test_a_secret_of_ours_goes_nowhere(tmp_path: Path, params: str) -> None:
    """Neither into the file or the table, nor to an address of the file's choice."""
    pepper = "a pepper that nobody may see anywhere"
    text = (
        f"model_list: [{{model_name: b, litellm_params: {{{params}}}}}, {{model_name: a, litellm_params: {{model: openai/a}}}}]\n"
        "environment_variables: {THROUGH: os.environ/WEIGHBRIDGE_PEPPER}\n"
    )
    found = _of_text(tmp_path, text, {"WEIGHBRIDGE_PEPPER": pepper})
    shown = f"{as_yaml(found.written)} {found.told} {found.secrets.moved}"
    assert pepper not in shown
    assert "env:WEIGHBRIDGE" not in as_yaml(found.written)
    assert found.model("a")


def test_fallbacks_of_a_name_of_several_models_stand_in_its_alias(tmp_path: Path) -> None:
    """The table says where they are written, which is no key `policy.fallbacks`."""
    path = tmp_path / "config.yaml"
    path.write_text(
        "model_list:\n"
        "- {model_name: smart, litellm_params: {model: openai/gpt-4o, api_key: os.environ/A}}\n"
        "- {model_name: smart, litellm_params: {model: azure/eu, api_base: 'https://eu.openai.azure.com', api_key: os.environ/B}}\n"
        "- {model_name: cheap, litellm_params: {model: openai/gpt-4o-mini, api_key: os.environ/A}}\n"
        "litellm_settings: {fallbacks: [{smart: [cheap]}]}\n"
    )
    found = imported(path)
    assert found.written["policy"]["aliases"]["smart"] == ["smart--1", "smart--2", "cheap"]
    assert "fallbacks" not in found.written["policy"]
    assert found.became("litellm_settings.fallbacks[0].smart") == ["kept: the end of `policy.aliases.smart`"]
