"""What strangers reported of LiteLLM's keys, models and files, as an import finds it. Each case names its report."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.configuration.environment import Environment
from gateway.from_litellm.checked import sound
from gateway.from_litellm.configuration import Translated, translate
from gateway.from_litellm.models import Models
from gateway.from_litellm.plan import planned
from gateway.from_litellm.secrets import Secrets
from gateway.from_litellm.source import Source, Variables, add_documents, read_source
from gateway.from_litellm.tables import Theirs, documents_of
from gateway.from_litellm.told import Account

NOW: Final = datetime(2026, 11, 1, tzinfo=UTC)
MODELS: Final = Models(names={"gpt-4o": ["gpt-4o"], "mini": ["mini"], "dear": ["dear"]})
GROUP: Final = {"access_group_id": "g1", "access_group_name": "usual", "access_model_names": ["gpt-4o", "mini"]}


@pytest.mark.parametrize(
    ("team", "key", "of_team", "of_key"),
    [
        # BerriAI/litellm#26656: groups on a key without models are its models, not all.
        ({}, {"access_group_ids": ["g1"]}, None, ["gpt-4o", "mini"]),
        # #31438: a team without default models, which has its models by a group.
        (
            {"models": ["no-default-models"], "access_group_ids": ["g1"]},
            {"models": ["all-team-models"]},
            ["gpt-4o", "mini"],
            None,
        ),
        # #23850: all of the proxy's for the team, a group for the key.
        ({"models": ["all-proxy-models"]}, {"access_group_ids": ["g1"]}, None, ["gpt-4o", "mini"]),
        # A group that is gone lets nothing through.
        ({}, {"access_group_ids": ["gone"]}, None, []),
        ({"models": ["dear"]}, {"models": ["dear"], "access_group_ids": ["g1"]}, ["dear"], ["dear", "gpt-4o", "mini"]),
    ],
)
def test_access_groups(
    team: dict[str, Any], key: dict[str, Any], of_team: list[str] | None, of_key: list[str] | None
) -> None:
    """Access groups of the database say which models a team and a key may use."""
    rows: dict[str, Any] = {
        "access_groups": [GROUP],
        "teams": [{"team_id": "t", "team_alias": "T", **team}],
        "keys": [{"token": "a" * 64, "team_id": "t", "key_name": "sk-...aaaa", **key}],
    }
    (found,) = planned(Theirs(rows=rows), MODELS, NOW).teams
    assert (found.models, found.keys[0].models) == (of_team, of_key)


def of_database(rows: list[Any], **variables: str) -> tuple[Translated, Account]:
    """What models of the database come to."""
    account, known, source = Account(), Variables(variables), Source([])
    add_documents(source, documents_of(Theirs(rows={"models": rows}), None, account), known)
    return translate(source, account, Secrets(account, known), known), account


def own(team: str, public: str) -> dict[str, Any]:
    """A team's own model, as LiteLLM stores it."""
    info = {"team_id": team, "team_public_model_name": public}
    return {
        "model_id": team,
        "model_name": f"model_name_{team}_0bf1f0d2",
        "litellm_params": {"model": "openai/gpt-4o", "api_key": "os.environ/OPENAI_API_KEY"},
        "model_info": info,
    }


def test_a_team_s_own_model_has_the_name_that_its_callers_send() -> None:
    """PR 39867: within LiteLLM it has another one."""
    translated, account = of_database([own("team-b", "team-b-nova")])
    assert list(translated.models.names) == ["team-b-nova"]
    assert any(each.place == "model team-b-nova" and each.outcome == "changed" for each in account.told)


def test_two_teams_models_of_one_name_are_not_mixed() -> None:
    """A key of one team would be charged for the other: both keep their names within LiteLLM, and the words say so."""
    translated, account = of_database([own("team-a", "nova"), own("team-b", "nova")])
    assert set(translated.models.names) == {"model_name_team-a_0bf1f0d2", "model_name_team-b_0bf1f0d2"}
    assert [each.outcome for each in account.told if "a name of its own" in each.words] == ["not possible"] * 2


def test_a_variable_in_the_database_is_one() -> None:
    """#30969: `os.environ/X` of a model of the database went out as it stood there."""
    translated, _ = of_database([own("t", "m")])
    (model,) = translated.written["providers"]["models"]
    assert "os.environ" not in repr(model)


def of_file(folder: Path, text: str, **variables: str) -> tuple[dict[str, Any], Account]:
    """What a file comes to, loaded as any configuration of ours is."""
    path = folder / "config.yaml"
    path.write_text(text)
    account, known = Account(), Variables(variables)
    translated = translate(read_source(path, account, known), account, Secrets(account, known), known)
    return sound(translated.written, Environment(data_dir=folder), account), account


def test_a_file_without_anything(tmp_path: Path) -> None:
    """#12163: an empty file is LiteLLM's way to have all models in the database."""
    written, _ = of_file(tmp_path, "")
    assert written["providers"]["models"]


def test_switches_from_the_environment(tmp_path: Path) -> None:
    """PR 6276: any value may be a variable, switches and numbers too."""
    text = (
        "model_list: [{model_name: m, litellm_params: {model: openai/gpt-4o}}]\n"
        "litellm_settings: {cache: os.environ/USE_CACHE, num_retries: os.environ/RETRIES}\n"
    )
    written, _ = of_file(tmp_path, text, USE_CACHE="true", RETRIES="3")
    assert written["cache"]["default"] is True
    assert written["providers"]["retry"]["attempts"] == 4


def test_models_of_a_team_in_the_file(tmp_path: Path) -> None:
    """PR 1933: `default_team_settings` has a team's models, which have another place here."""
    text = (
        "model_list: [{model_name: m, litellm_params: {model: openai/gpt-4o}}]\n"
        "litellm_settings: {default_team_settings: [{team_id: dev, models: [m]}]}\n"
    )
    _, account = of_file(tmp_path, text)
    assert any("default_team_settings" in each.place and "policy" in each.words for each in account.told)


def test_wildcards_of_several_providers(tmp_path: Path) -> None:
    """#8095: `ollama_chat/*` beside others, each with its own address."""
    text = (
        "model_list:\n"
        "  - {model_name: anthropic/*, litellm_params: {model: anthropic/*, api_key: os.environ/A}}\n"
        "  - {model_name: openai/*, litellm_params: {model: openai/*, api_key: os.environ/O}}\n"
        "  - {model_name: ollama_chat/deepseek-r1:14b, litellm_params: {model: 'ollama_chat/deepseek-r1:14b', api_base: 'http://localhost:11434'}}\n"
        "  - {model_name: ollama_chat/*, litellm_params: {model: ollama_chat/*, api_base: 'http://localhost:11434'}}\n"
    )
    written, _ = of_file(tmp_path, text, A="a", O="o")
    found = [each["model_id"] for each in written["providers"]["models"]]
    assert found == ["anthropic/*", "openai/*", "ollama_chat/deepseek-r1:14b", "ollama_chat/*"]


def test_credentials_without_values_are_told(tmp_path: Path) -> None:
    """#9114, #9253: values beside the name, as the proposal had them, are not what LiteLLM reads."""
    text = (
        "credential_list: [{credential_name: c, api_key: sk-secret-0123456789}]\n"
        "model_list: [{model_name: m, litellm_params: {model: openai/gpt-4o, litellm_credential_name: c}}]\n"
    )
    _, account = of_file(tmp_path, text)
    assert any("credential_values" in each.words for each in account.told)
    assert "sk-secret" not in repr(account.told)


def with_secrets(tmp_path: Path, text: str, **variables: str) -> tuple[dict[str, Any], Account, Secrets]:
    """What a file comes to."""
    (tmp_path / "config.yaml").write_text(text)
    account, known = Account(), Variables(variables)
    secrets = Secrets(account, known)
    translated = translate(read_source(tmp_path / "config.yaml", account, known), account, secrets, known)
    return sound(translated.written, Environment(), account), account, secrets


def became(account: Account, place: str) -> str:
    """What was told of a place, in one text."""
    return "; ".join(f"{each.outcome}: {each.words}" for each in account.told if each.place == place)


@pytest.mark.parametrize("text", ["# nothing yet\n", "model_list: []\ngeneral_settings: {store_model_in_db: true}\n"])
def test_a_model_that_nobody_wrote_is_told(tmp_path: Path, text: str) -> None:
    """A file without models, as of whoever keeps them in the database, is not one with all of OpenAI's."""
    written, account, _ = with_secrets(tmp_path, text)
    assert [each["model_id"] for each in written["providers"]["models"]] == ["openai/*"]
    assert "not possible: no model came of it" in became(account, "providers.models")


@pytest.mark.parametrize(
    ("master", "words", "moved"),
    [
        ("os.environ/PROXY_KEY", "--from-env PROXY_KEY", []),
        ("sk-own-0123456789abcdef", "--from-env LITELLM_MASTER_KEY", ["LITELLM_MASTER_KEY"]),
        ("sk-1234", "can be guessed; a new one: weighbridge keys create", []),
    ],
)
def test_the_master_key_is_found_where_it_stands(tmp_path: Path, master: str, words: str, moved: list[str]) -> None:
    """A literal one is in the file of secrets, another variable's name in the command."""
    _, account, secrets = with_secrets(tmp_path, f"model_list: []\ngeneral_settings: {{master_key: {master}}}\n")
    assert words in became(account, "general_settings.master_key")
    assert list(secrets.moved) == moved


def test_a_key_in_another_section_s_place_is_told_so(tmp_path: Path) -> None:
    """LiteLLM takes no notice of it there, which its owner may not know."""
    text = "general_settings: {provider_budget_config: {openai: {budget_limit: 1}}, telemetry: false}\nlitellm_settings: {ui_access_mode: all}\n"
    _, account, _ = with_secrets(tmp_path, text)
    assert "LiteLLM reads it in router_settings" in became(account, "general_settings.provider_budget_config")
    assert "LiteLLM reads it in litellm_settings" in became(account, "general_settings.telemetry")
    assert "LiteLLM reads it in general_settings" in became(account, "litellm_settings.ui_access_mode")


def test_notes_of_one_s_own_are_one_line(tmp_path: Path) -> None:
    """Twenty models with fifteen notes each for a page of one's own would hide what matters."""
    text = """
model_list:
  - model_name: a
    litellm_params: {model: openai/gpt-4o}
    model_info: {shelf: 3, colour: red, mode: tts, input_cost_per_token: 0.000002, output_cost_per_token: 0.000004, input_cost_per_second: 0.001}
"""
    written, account, _ = with_secrets(tmp_path, text)
    assert became(account, "model_list[0].model_info").endswith("shelf, colour")
    assert written["providers"]["models"][0]["capabilities"] == ["speech"]


def test_a_price_that_is_not_charged_is_not_kept(tmp_path: Path) -> None:
    """By the second beside by the token: one of the two is charged."""
    text = """
model_list:
  - model_name: a
    litellm_params: {model: ollama/llama3.2, api_base: "http://box:11434", output_cost_per_second: 0.002}
    model_info: {input_cost_per_token: 0.00002, output_cost_per_token: 0.00004, cache_read_input_token_cost: 0.000005}
"""
    written, account, _ = with_secrets(tmp_path, text)
    assert set(written["providers"]["models"][0]["prices"]) == {"input", "cached_input", "output"}
    assert became(account, "model_list[0].litellm_params.output_cost_per_second").startswith("not possible")
    for key in ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost"):
        assert became(account, f"model_list[0].model_info.{key}").startswith("kept"), key


def test_no_part_of_an_address_is_masked_in_words(tmp_path: Path) -> None:
    """What looks like a password is hidden, so words have none."""
    _, account, secrets = with_secrets(
        tmp_path, "router_settings: {redis_host: cache, redis_password: p4ss-p4ss-p4ss}\n"
    )
    assert "•" not in became(account, "router_settings.redis_host")
    assert secrets.moved == {"REDIS_URL": "redis://:p4ss-p4ss-p4ss@cache:6379/0"}
