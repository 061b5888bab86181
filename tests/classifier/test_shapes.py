"""The shapes in which programs wrap an ask: each has its slots, and what is held is held as a whole."""

import json
import tomllib
from pathlib import Path

import pytest

from classifier.training.tier_set import FOLDER, HELD_ROWS, held_rows, written

SHAPES = HELD_ROWS.parent
PLACES = {"before", "after", "between", "inside", "alone", "system"}
ASK, CONTEXT = "{ask}", "{context}"


def templates() -> list[dict[str, str]]:
    found: list[dict[str, str]] = tomllib.loads((SHAPES / "templates.toml").read_text())["template"]
    return found


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_template_says_where_the_ask_stands() -> None:
    """The ask is in the message that `place` names, the source is told, and no two templates have one id."""
    found = templates()
    assert len({each["id"] for each in found}) == len(found)
    assert len({each["framework"] for each in found}) >= 40
    for each in found:
        assert each["place"] in PLACES, each["id"]
        assert each["read"] in {"source", "copy", "recalled"}, each["id"]
        assert each["source"], each["id"]
        assert each["licence"], each["id"]
        assert ASK in each.get("system" if each["place"] == "system" else "user", ""), each["id"]
        assert each["place"] != "alone" or CONTEXT not in each["user"], each["id"]


def test_a_framework_is_held_with_all_of_its_templates() -> None:
    """Every third framework by name is judged only, so that no sibling of a judged template is learned from."""
    names = sorted({each["framework"] for each in templates()})
    assert {each["framework"] for each in templates() if each["held"]} == set(names[2::3])


@pytest.mark.parametrize("name", ["contexts.jsonl", "phrases.jsonl", "systems.jsonl"])
def test_a_third_of_what_stands_beside_an_ask_is_held(name: str) -> None:
    """Ids are unique, no text is on both sides, and about a third is judged only."""
    found = lines(SHAPES / name)
    assert len({each["id"] for each in found}) == len(found)
    held = {each["text"] for each in found if each["held"]}
    assert not held & {each["text"] for each in found if not each["held"]}
    assert 0.25 < len(held) / len(found) < 0.45


def test_rows_of_one_text_are_on_one_side() -> None:
    """Of the rows in such shapes about half are judged only, and of system tasks and consent none shares its material with a learned one."""
    rows = [row for row in written() if row.kind.startswith("shaped-")]
    held = held_rows()
    assert len(rows) >= 400
    assert 0.4 < len(held) / len(rows) < 0.6
    assert {row.kind for row in rows if row.row_id in held} == {row.kind for row in rows}
    for kind in ("shaped-system-task", "shaped-consent"):
        sides: dict[bool, set[str]] = {True: set(), False: set()}
        for row in rows:
            if row.kind == kind:
                sides[row.row_id in held].add(row.prompt.history or row.prompt.text)
        assert not sides[True] & sides[False], kind
    assert all((FOLDER / f"{row.kind}.jsonl").is_file() for row in rows)
