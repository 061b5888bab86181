"""Read the texts that the injection model is trained and measured on, as sources.toml lists them."""

import ast
import csv
import hashlib
import io
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import pyarrow.parquet as pq
import yaml

_HERE: Final = Path(__file__).parent
_PIECE_CHARS: Final = 2000
_MAX_CHARS: Final = 20_000
_FEWEST_CHARS: Final = 8
_SHORTEST_CONSTANT: Final = 25
_OWN: Final = "written for this project"

Reader = Literal["json", "jsonl", "yaml", "labelled", "column", "safe_rows", "pieces", "agentdojo"]


class SourceError(Exception):
    """A source's files are missing, or are others than those it was recorded with."""


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of sources.toml."""

    name: str
    folder: str
    files: list[str]
    reader: Reader
    use: Literal["train", "measure"]
    licence: str
    obtain: str
    sha256: str
    field: str = ""
    attacks: str = ""
    benign: str = ""
    most: int = 0
    hard: bool = False


class Text(msgspec.Struct, frozen=True):
    """A text, whose family it is, and what is known of it."""

    text: str
    family: str
    attack: bool
    train: bool
    hard: bool = False
    """True where it was made, or chosen, to sound like the other side."""


class _Own(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    override: list[str]
    goals: list[str]
    attacks: list[str]
    benign: list[str]
    slots: dict[str, list[str]]


def sources() -> list[Source]:
    """Return the rows of sources.toml."""
    return msgspec.convert(tomllib.loads((_HERE / "sources.toml").read_text("utf-8"))["source"], list[Source])


def digest(source: Source, data: Path) -> str:
    """Return the SHA-256 of a source's files. Raises SourceError where there are none."""
    found = hashlib.sha256()
    for path in _files(source, data):
        found.update(path.read_bytes())
    return found.hexdigest()


def record(digests: Mapping[str, str]) -> None:
    """Write the sources' digests into sources.toml, in its order."""
    path = _HERE / "sources.toml"
    fresh = iter(digests[row.name] for row in sources())
    path.write_text(
        re.sub(r'(?m)^sha256 = "[0-9a-f]*"$', lambda _: f'sha256 = "{next(fresh)}"', path.read_text("utf-8")), "utf-8"
    )


def texts(source: Source, data: Path) -> list[Text]:
    """Return a source's texts, without those of a few characters. Raises SourceError."""
    seen: dict[str, Text] = {}
    for text, attack in _read(source, data):
        family = source.attacks if attack else source.benign
        cut = text.strip()[:_MAX_CHARS]
        if family and len(cut) >= _FEWEST_CHARS:
            seen.setdefault(cut, Text(cut, family, attack, source.use == "train", source.hard))
    found = list(seen.values())
    if source.most and len(found) > source.most:
        return [found[at * len(found) // source.most] for at in range(source.most)]
    return found


def own() -> list[Text]:
    """Return the texts that were written for this project (own.toml): each pattern with its slots filled in turn."""
    told = msgspec.convert(tomllib.loads((_HERE / "own.toml").read_text("utf-8")), _Own)
    filled = [_filled(pattern, told, at * 31 + turn) for at, pattern in enumerate(told.override) for turn in range(24)]
    found = [
        *(Text(text, f"overrides in twelve languages, {_OWN}", attack=True, train=True) for text in told.attacks),
        *(Text(text, f"overrides in English, {_OWN}", attack=True, train=True) for text in filled),
        *(
            Text(text, f"sentences that only sound like one, {_OWN}", attack=False, train=True, hard=True)
            for text in told.benign
        ),
    ]
    return list({text.text: text for text in found}.values())


def _filled(pattern: str, told: _Own, turn: int) -> str:
    """Return the pattern with a word in each slot, another in every turn."""
    for at, (name, words) in enumerate({**told.slots, "goal": told.goals}.items()):
        pattern = pattern.replace(f"{{{name}}}", words[(turn * (2 * at + 3) + turn // len(words)) % len(words)])
    return pattern


def _files(source: Source, data: Path) -> list[Path]:
    found = sorted(path for pattern in source.files for path in (data / source.folder).glob(pattern))
    if not found:
        raise SourceError(f"{source.name}: no file {source.files} in {data / source.folder}; obtain: {source.obtain}")
    return found


def _read(source: Source, data: Path) -> Iterator[tuple[str, bool]]:
    attack = bool(source.attacks)
    if source.reader == "agentdojo":
        yield from ((text, True) for text in _agentdojo(_files(source, data)))
        return
    for path in _files(source, data):
        yield from _READERS[source.reader](path, source.field, attack)


def _json(path: Path, field: str, attack: bool) -> Iterator[tuple[str, bool]]:
    yield from ((text, attack) for text in _strings(json.loads(path.read_text("utf-8")), field))


def _jsonl(path: Path, field: str, attack: bool) -> Iterator[tuple[str, bool]]:
    for line in path.read_text("utf-8").splitlines():
        yield str(json.loads(line)[field]), attack


def _yaml(path: Path, field: str, attack: bool) -> Iterator[tuple[str, bool]]:
    said = str(yaml.safe_load(path.read_text("utf-8"))[field])
    for mark in ("{% raw %}", "{% endraw %}", "{{ prompt }}", "{{ '{{' }}", "{{ '}}' }}"):
        said = said.replace(mark, " ")
    yield said, attack


def _labelled(path: Path, field: str, _attack: bool) -> Iterator[tuple[str, bool]]:
    for row in pq.read_table(path).to_pylist():
        yield str(row[field]), bool(row["label"])


def _column(path: Path, field: str, attack: bool) -> Iterator[tuple[str, bool]]:
    for text in pq.read_table(path, columns=[field]).column(field).to_pylist():
        yield str(text), attack


def _safe_rows(path: Path, field: str, attack: bool) -> Iterator[tuple[str, bool]]:
    for row in csv.DictReader(io.StringIO(path.read_text("utf-8"))):
        if row["label"] == "safe":
            yield row[field], attack


def _pieces(path: Path, _field: str, attack: bool) -> Iterator[tuple[str, bool]]:
    said = path.read_text("utf-8")
    yield from ((said[at : at + _PIECE_CHARS], attack) for at in range(0, len(said), _PIECE_CHARS))


_READERS: Final[dict[str, Callable[[Path, str, bool], Iterator[tuple[str, bool]]]]] = {
    "json": _json,
    "jsonl": _jsonl,
    "yaml": _yaml,
    "labelled": _labelled,
    "column": _column,
    "safe_rows": _safe_rows,
    "pieces": _pieces,
}


def _strings(value: Any, field: str) -> Iterator[str]:
    """Yield the texts of lists, and of objects those under `field`; all values of an object without a field to take."""
    if isinstance(value, str):
        yield value.replace("{generator.name}", "ChatGPT")
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, field)
    elif isinstance(value, dict):
        yield from _strings([value[field]] if field in value else list(value.values()), field)


def _agentdojo(paths: list[Path]) -> Iterator[str]:
    """Yield each attack's template around some of the goals of the suites."""
    goals, templates = [], []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if path.name == "injection_tasks.py" and _assigns(node, "GOAL"):
                goals += [_said(node.value)]  # type: ignore[attr-defined] # An assignment, as was asked.
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_template(node.value):
                templates.append(node.value)
    for number, template in enumerate(sorted(set(templates))):
        for goal in goals[number % 3 :: 3]:
            yield template.replace("{user}", "Emma Johnson").replace("{model}", "GPT-4").replace("{goal}", goal)


def _is_template(said: str) -> bool:
    return (
        "{goal}" in said and len(said) > _SHORTEST_CONSTANT and "{injection_task" not in said and "attack" not in said
    )


def _assigns(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets)


def _said(node: ast.expr) -> str:
    """Return the text of a literal, or of a formatted one without its values."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=values):
            return "".join(_said(value) for value in values)
        case _:
            return "US133000000121212121212"
