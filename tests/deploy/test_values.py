"""The chart's values and what is said of them. Needs no Helm."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.chart import CHART

_SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
_VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
_ROOT = Path(__file__).parents[2]


def _keys(schema: dict[str, Any], at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, inner in schema.get("properties", {}).items():
        yield f"{at}{name}", inner
        yield from _keys(inner, f"{at}{name}.")


def test_each_key_has_a_sentence() -> None:
    """It begins like one, ends like one, and the file has the draft that Helm reads."""
    assert _SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    told = dict(_keys(_SCHEMA))
    assert len(told) > 150
    for key, inner in told.items():
        said = inner["description"]
        assert said[0].isupper(), key
        assert said.endswith("."), key


def test_values_and_schema_have_the_same_keys() -> None:
    """What can be set has a default, and nothing else is taken: a misspelt key is an error everywhere but in free maps."""

    def compare(values: dict[str, Any], schema: dict[str, Any], at: str) -> None:
        if "properties" not in schema:
            return
        assert schema["additionalProperties"] is False, at
        assert set(values) == set(schema["properties"]) - {"global"}, at
        for name, value in values.items():
            if isinstance(value, dict):
                compare(value, schema["properties"][name], f"{at}.{name}")

    compare(_VALUES, _SCHEMA, "")


def test_a_section_without_anything_is_refused() -> None:
    """`gateway:` with all of it commented out takes the defaults away, in Helm: the schema says which key is missing, in place of a nil
    pointer (envoyproxy/gateway #6091). Lists and free maps may be empty so.
    """

    def compare(values: dict[str, Any], schema: dict[str, Any], at: str) -> None:
        sections = {name for name, inner in schema["properties"].items() if "properties" in inner} & set(values)
        single = {name for name, value in values.items() if not isinstance(value, (dict, list))}
        # Of an autoscaler's two measures either may be left out.
        may = {"cpuPercent", "inFlightPerPod"} if at.endswith(".autoscaling") else set()
        assert set(schema["required"]) == (sections | single) - may, at
        for name in sections:
            compare(values[name], schema["properties"][name], f"{at}.{name}")

    compare(_VALUES, _SCHEMA, "")


def emptied(values: dict[str, Any] | None = None, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """All that may be empty, empty as a file has it whose lines below a key are comments."""
    values, schema = _VALUES if values is None else values, _SCHEMA if schema is None else schema
    return {
        name: emptied(value, schema["properties"][name]) if "properties" in schema["properties"][name] else None
        for name, value in values.items()
        if "properties" in schema["properties"][name] or name not in schema["required"]
    }


def test_the_chart_is_this_version() -> None:
    """The tag of the image is the version's unless somebody sets one, so it is never `latest` and never missing."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chart["appVersion"] == version
    assert (_VALUES["image"]["tag"], _VALUES["image"]["digest"]) == ("", "")


def test_no_secret_has_a_default() -> None:
    """Nothing that keeps something safe is the same in two installations."""
    assert [_VALUES[name]["existingSecret"] for name in ("pepper", "database", "redis", "metrics", "tls")] == [""] * 5
