"""Loading: only what is named, and a sentence that says what to do for whatever is wrong with it."""

import importlib.metadata
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.configuration.plugins_config import PluginConfig
from gateway.plugins.loading import PluginInvalid, load_plugin

_SCORER = """
    class House:
        protocol = 1
        def score(self, facts, candidates):
            return []
"""
_WITH_SETTINGS = """
    from dataclasses import dataclass
    import msgspec, pydantic

    @dataclass(frozen=True)
    class Plain:
        limit: int
        token: str = ""

    class Struct(msgspec.Struct, frozen=True):
        limit: int
        token: str = ""

    class Model(pydantic.BaseModel):
        model_config = {"extra": "forbid"}
        limit: int
        token: str = ""

    class OfDataclass:
        protocol = 1
        Settings = Plain
        def __init__(self, settings):
            self.settings = settings
        def score(self, facts, candidates):
            return []

    class OfStruct(OfDataclass):
        Settings = Struct

    class OfModel(OfDataclass):
        Settings = Model

    class Refuses(OfDataclass):
        def __init__(self, settings):
            raise ValueError(f"the token {settings.token} is not known")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Writes a module, and returns its name."""
    monkeypatch.syspath_prepend(tmp_path)
    made: list[str] = []

    def write(source: str) -> str:
        name = f"made_up_plugin_{len(made)}_{tmp_path.name.replace('-', '_')}"
        made.append(name)
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        return name

    yield write
    for name in made:
        sys.modules.pop(name, None)


def config(use: str, kind: str = "scorer", **others: Any) -> PluginConfig:
    return PluginConfig.model_validate({"name": "house", "kind": kind, "use": use, **others})


def problem(found: PluginConfig) -> str:
    with pytest.raises(PluginInvalid) as invalid:
        load_plugin(found, {"env:TOKEN": "s3cret-value"}.__getitem__)
    return str(invalid.value)


def test_a_class_is_loaded_by_its_module_and_name(module: Callable[[str], str]) -> None:
    """Nothing has to be installed for it."""
    loaded = load_plugin(config(f"{module(_SCORER)}:House"), str)
    assert type(loaded.plugin).__name__ == "House"


@pytest.mark.parametrize(
    ("source", "name", "told"),
    [
        (_SCORER, "Hose", "has no Hose; did you mean House?"),
        ("House = 3", "House", "is no class: name the class"),
        ("class House:\n    def score(self, facts, candidates): ...", "House", "add `protocol = 1` to the class"),
        (
            "class House:\n    protocol = 2\n    def score(self, facts, candidates): ...",
            "House",
            "was written for protocol 2 of a scorer, and this gateway speaks 1: update the gateway",
        ),
        ("class House:\n    protocol = '1.4.2'\n", "House", "was written for protocol 1.4.2 of a scorer"),
        (
            "class House:\n    protocol = 1\n    async def finished(self, outcomes): ...",
            "House",
            "has no method `score`, which a scorer needs; it looks like a exporter: write `kind: exporter`",
        ),
        (
            "class House:\n    protocol = 1\n    async def score(self, facts, candidates): ...",
            "House",
            "has `score` as a coroutine: write `def score`",
        ),
        (
            "class House:\n    protocol = 1\n    def score(self, facts): ...",
            "House",
            "has `score` with other arguments: it is called with 2 beside self",
        ),
        (
            f"raise RuntimeError('no database')\n{textwrap.dedent(_SCORER)}",
            "House",
            "it raises RuntimeError: no database",
        ),
        ("import not_there_at_all\n", "House", "needs the package not_there_at_all, which is not installed here"),
        (
            "class House:\n    protocol = 1\n    def __init__(self, a): ...\n    def score(self, f, c): ...",
            "House",
            "cannot be made: it raises TypeError",
        ),
    ],
)
def test_what_is_wrong_with_a_class_is_told(source: str, name: str, told: str, module: Callable[[str], str]) -> None:
    """Kong says `not a plugin info table` and its traceback (kong-js-pdk 82); Bifrost renames hooks and calls nothing (1473)."""
    assert told in problem(config(f"{module(source)}:{name}"))


def test_a_module_that_is_not_there_says_where_to_put_it() -> None:
    """Installing or PYTHONPATH."""
    told = problem(config("nowhere_to_be_found.deeper:House"))
    assert "there is no module nowhere_to_be_found.deeper here: install its package" in told
    assert "PYTHONPATH" in told


def test_the_protocol_counts_and_no_version_label(
    module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label on the gateway's version broke every plug-in of Bifrost (stakgraph 1423)."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "9.0.0+custom.build")
    assert load_plugin(config(f"{module(_SCORER)}:House"), str).plugin.protocol == 1


@pytest.mark.parametrize("name", ["OfDataclass", "OfStruct", "OfModel"])
def test_settings_are_typed_and_checked_before(name: str, module: Callable[[str], str]) -> None:
    """Of each kind of class: good ones, a wrong type, one that is missing, and one that nobody knows."""
    use = f"{module(_WITH_SETTINGS)}:{name}"
    loaded = load_plugin(
        config(use, settings={"limit": 3, "token": "env:TOKEN"}), {"env:TOKEN": "s3cret-value"}.__getitem__
    )
    assert (loaded.plugin.settings.limit, loaded.plugin.settings.token) == (3, "s3cret-value")
    assert "limit" in problem(config(use, settings={"limit": "s3cret-value"}))
    assert "s3cret-value" not in problem(config(use, settings={"limit": "s3cret-value"}))
    assert "limit" in problem(config(use, settings={}))
    assert "limits" in problem(config(use, settings={"limit": 3, "limits": 4}))


def test_a_secret_is_in_no_message(module: Callable[[str], str]) -> None:
    """Though the plug-in itself says it."""
    use = f"{module(_WITH_SETTINGS)}:Refuses"
    told = problem(config(use, settings={"limit": 1, "token": "env:TOKEN"}))
    assert "it raises ValueError" in told
    assert "s3cret" not in told
    assert "refer to env:NOT_SET, which is not set" in problem(
        config(use, settings={"limit": 1, "token": "env:NOT_SET"})
    )


def test_settings_for_a_class_without_are_refused(module: Callable[[str], str]) -> None:
    """Decoded and dropped they would only seem to have an effect (langwatch 430)."""
    assert "declares no `Settings`" in problem(config(f"{module(_SCORER)}:House", settings={"limit": 3}))


def test_an_installed_plugin_runs_only_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Callable[[str], str]
) -> None:
    """That what is installed is active annoys (pluggy 422, djp 17): the module of an entry point is not even imported."""
    name = module(f"import os; os.environ['MADE_UP_IMPORTED'] = '1'\n{textwrap.dedent(_SCORER)}")
    monkeypatch.delenv("MADE_UP_IMPORTED", raising=False)
    folder = tmp_path / "made_up-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        f"[weighbridge.plugins]\nmade-up = {name}:House\nbroken = gone_for_good:House\n"
    )
    assert "there are: broken, made-up" in problem(config("other"))
    assert name not in sys.modules
    assert "there is no module gone_for_good" in problem(config("broken"))
    assert type(load_plugin(config("made-up"), str).plugin).__name__ == "House"
    second = tmp_path / "made_up_again-1.0.dist-info"
    second.mkdir()
    (second / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up-again\nVersion: 1.0\n")
    (second / "entry_points.txt").write_text("[weighbridge.plugins]\nmade-up = others:House\n")
    assert "several packages have an entry point made-up" in problem(config("made-up"))


def test_a_setting_that_only_sounds_like_a_key_is_none() -> None:
    """A header's name, or words to look for."""
    given = {"key_header": "x-user", "keywords": ["a"], "api_key": "env:KEY"}
    assert config("made_up:House", settings=given).settings == given


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"kind": "guard"}, "grant them with `text: true`"),
        ({"kind": "dialect"}, "grant them with `text: true`"),
        ({"settings": {"api_key": "sk-1234"}}, "looks like a secret; write where it is found"),
        ({"settings": {"token": "plain"}}, "looks like a secret; write where it is found"),
        ({"use": "../plugin.py"}, "String should match pattern"),
        ({"use": "https://example.com/plugin.py"}, "String should match pattern"),
    ],
)
def test_what_a_configuration_may_not_say(given: dict[str, Any], told: str) -> None:
    """No secret in the file, and no code from a path or an address (CVE-2026-40217)."""
    with pytest.raises(ValueError, match=told):
        config(**{"use": "made_up:House", **given})
