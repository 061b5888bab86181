"""What a configuration's plug-ins may be called, and what names them."""

from pathlib import Path

import pytest
import yaml

from gateway.configuration.environment import Environment
from gateway.configuration.file import ConfigError
from gateway.configuration.settings import load
from tests.running_gateway import model


def problems(folder: Path, plugins: list[dict[str, object]], guard: object = None, **deployment: object) -> str:
    path = folder / "c.yaml"
    spoken = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1", **deployment}
    path.write_text(
        yaml.safe_dump({"providers": {"models": [model("m", [spoken])]}, "plugins": plugins, "guard": guard or {}})
    )
    with pytest.raises(ConfigError) as wrong:
        load(path, Environment(data_dir=folder))
    return str(wrong.value)


def test_what_is_wrong_between_plugins_and_the_rest_is_told_with_its_line(tmp_path: Path) -> None:
    """A name twice, a dialect that is not there, and one for a kind that has its own."""
    one: dict[str, object] = {"name": "one", "kind": "scorer", "use": "made_up:House"}
    assert "plugins[1].name: another plug-in has this name" in problems(tmp_path, [one, one])
    spoken = problems(tmp_path, [one, {**one, "name": "tgi", "kind": "dialect", "text": True}], dialect="one")
    assert "dialect: no plug-in of kind dialect has this name; there are: tgi" in spoken
    assert "a dialect of a plug-in is for kind openai" in problems(tmp_path, [], kind="vllm", dialect="tgi")


def test_a_guard_that_nobody_asks_and_a_rule_that_asks_nobody_are_refused(tmp_path: Path) -> None:
    """Rather than named and silent, or closed for ever; a plug-in of another kind is no guard."""
    guard: dict[str, object] = {"name": "house", "kind": "guard", "use": "made_up:House", "text": True}
    other: dict[str, object] = {"name": "other", "kind": "scorer", "use": "made_up:House"}
    told = problems(tmp_path, [other, guard])
    assert "plugins[1].name: nobody asks it: add `{name: house, kind: plugin, use: house, input: flag}`" in told
    rules = {"rules": [{"name": "one", "kind": "plugin", "use": "other", "input": "flag"}]}
    told = problems(tmp_path, [other, guard], guard=rules)
    assert "guard.rules[0].use: no plug-in of kind guard has this name; there are: house" in told
    assert "nobody asks it" in told
