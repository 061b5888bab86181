"""Files of other gateways are recognised, each with what to do; a file of ours is never taken for one."""

from pathlib import Path

import pytest

from gateway.configuration.environment import Environment
from gateway.configuration.file import ConfigError, parse_document
from gateway.configuration.foreign import foreign_problem
from gateway.configuration.settings import load

ROOT = Path(__file__).parents[3]
FOREIGN = [
    ("model_list: []\n", "LiteLLM", "weighbridge import litellm"),
    ("general_settings: {master_key: os.environ/X}\n", "LiteLLM", "weighbridge import litellm"),
    ("litellm_settings:\n  drop_params: true\n", "LiteLLM", "weighbridge import litellm"),
    (
        '{"$schema": "https://www.getbifrost.ai/schema", "providers": {"openai": {"keys": [{"value": "env.KEY"}]}}}\n',
        "Bifrost",
        "weighbridge keys create",
    ),
    ('{"providers": {"anthropic": {"keys": []}}, "config_store": {"enabled": true}}\n', "Bifrost", "config check"),
    ('{"config_store": {"enabled": true, "type": "sqlite"}}\n', "Bifrost", "config check"),
    (
        '{"strategy": {"mode": "fallback"}, "targets": [{"provider": "openai", "api_key": "x"}, {"provider": "anthropic"}]}\n',
        "Portkey",
        "config check",
    ),
    ('{"targets": [{"virtual_key": "openai-prod", "weight": 0.5}]}\n', "Portkey", "config check"),
    ('{"virtual_key": "openai-prod", "retry": {"attempts": 3}}\n', "Portkey", "config check"),
    (
        '{"model": "openai/gpt-4o", "provider": {"order": ["azure"], "allow_fallbacks": false}}\n',
        "OpenRouter",
        "config check",
    ),
    ('{"models": ["openai/gpt-4o", "anthropic/claude-sonnet-4"], "route": "fallback"}\n', "OpenRouter", "config check"),
    # As strangers have them: without a schema, and in part.
    (
        '{"client": {}, "providers": {}, "plugins": [{"name": "x"}], "logs_store": {"type": "sqlite"}}\n',
        "Bifrost",
        "config check",
    ),
    ('{"providers": {"ollama": {"network_config": {"base_url": "http://box:11434"}}}}\n', "Bifrost", "config check"),
    ('{"governance": {"virtual_keys": [{"id": "vk-a", "value": "sk-bf-x"}]}}\n', "Bifrost", "config check"),
    (
        '{"retry": {"attempts": 3, "on_status_codes": [429, 503]}, "cache": {"mode": "semantic", "max_age": 60}}\n',
        "Portkey",
        "config check",
    ),
    ('{"mode": "fallback", "targets": []}\n', "Portkey", "config check"),
    ('{"provider": "openai", "api_key": "sk-x", "custom_host": "http://box:11434"}\n', "Portkey", "config check"),
    (
        '{"strategy": {"mode": "fallback"}, "targets": [{"override_params": {"model": "@groq-a/llama"}}, {"override_params": {"model": "@b/c"}}]}\n',
        "Portkey",
        "config check",
    ),
    ('{"order": ["azure", "openai"], "allow_fallbacks": false}\n', "OpenRouter", "config check"),
    ('{"model": "a/b", "provider": {"zdr": true}}\n', "OpenRouter", "config check"),
    ('{"provider_preferences": {"only": ["azure"]}, "models": ["a/b"]}\n', "OpenRouter", "config check"),
]


@pytest.mark.parametrize(("text", "whose", "command"), FOREIGN)
def test_a_file_of_another_gateway_is_recognised(tmp_path: Path, text: str, whose: str, command: str) -> None:
    """One sentence says whose it is and names the command, in place of a list of unknown keys."""
    file = tmp_path / "theirs.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load(file, Environment(), secrets_from=None)
    (problem,) = refused.value.problems
    assert whose in problem.message
    assert command in problem.message


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda path: path.name)
def test_a_file_of_ours_is_not(path: Path) -> None:
    """The configurations that come with the gateway are nobody else's."""
    assert foreign_problem(parse_document(path.read_text(), str(path))) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mode: [a]\ncache: {mode: [a]}\n",
        "providers:\n",
        "providers: {models: []}\n",
        "policy: {aliases: {}}\n",
        "cache: {}\n",
    ],
)
def test_little_says_nothing(text: str) -> None:
    """A file with hardly anything in it is checked as ours."""
    assert foreign_problem(parse_document(text, "a.yaml")) is None
