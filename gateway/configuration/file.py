"""Reading of one YAML file into plain values, with the line of each value.

Only the part of YAML that a configuration needs is understood: mappings, lists and scalars, with a
bounded number of anchors. Tags, merge keys, duplicate keys and further documents are refused, each
with its line. Numbers with a point become Decimal, so that a price is exactly what was written.

A file of another program is read `foreign`: merge keys are filled in, and of a key that stands there twice the last counts,
as other readers have it.
"""

import re
from decimal import Decimal
from pathlib import Path

import msgspec
import yaml

MAX_BYTES = 1 << 20
MAX_DEPTH = 24
MAX_ALIASES = 64
_MAX_FOREIGN_ALIASES = 2_000
MAX_VALUES = 20_000

Value = str | int | bool | Decimal | list["Value"] | dict[str, "Value"] | None
KeyPath = tuple[str | int, ...]

# libyaml is twenty times as fast; a PyYAML that was built without it reads the same.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})\Z")
_DECIMAL = re.compile(r"[-+]?[0-9]{0,18}\.[0-9]{1,18}\Z|[-+]?[0-9]{1,18}\.\Z")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|nan)\Z", re.IGNORECASE)
_WORDS: dict[str, Value] = {"": None, "~": None, "null": None, "true": True, "false": False}


class Problem(msgspec.Struct, frozen=True, order=True):
    """One error of the configuration. `line` is 0 when no line is to blame."""

    file: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (where, self.key, self.message) if part)


class ConfigError(Exception):
    """The configuration is invalid; `problems` holds every error found, in order of lines."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        super().__init__("\n".join(str(problem) for problem in self.problems))


class Document(msgspec.Struct, frozen=True):
    """A file's values, the line of each by key path, and the errors of its form."""

    file: str
    values: dict[str, Value]
    lines: dict[KeyPath, int]
    problems: tuple[Problem, ...] = ()

    def problem(self, path: KeyPath, message: str) -> Problem:
        """Build a problem at `path`, with the line of the nearest enclosing value that has one."""
        around = path
        while around and around not in self.lines:
            around = around[:-1]
        return Problem(self.file, self.lines.get(around, 0), spell(path), message)


def spell(path: KeyPath) -> str:
    """Format a path as people write it: `providers.models[2].tiers`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_document(path: Path, *, foreign: bool = False) -> Document:
    """Read and parse a file. Raises ConfigError when it is unreadable or not valid YAML at all."""
    file = str(path)
    try:
        with path.open("rb") as opened:
            raw = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError([Problem(file, 0, "", f"cannot be read: {error.strerror}")]) from error
    if len(raw) > MAX_BYTES:
        raise ConfigError(
            [Problem(file, 0, "", f"is larger than {MAX_BYTES} bytes, the most a configuration may have")]
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError([Problem(file, line, "", "is not UTF-8 text")]) from error
    return parse_document(text, file, foreign=foreign)


def parse_document(text: str, file: str, *, foreign: bool = False) -> Document:
    """Parse the text of `file`. Raises ConfigError when it is not valid YAML at all."""
    try:
        _check_form(text, file, _MAX_FOREIGN_ALIASES if foreign else MAX_ALIASES)
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # The parser's own excerpt of the file is left out: it could show a secret.
        reason = " ".join(filter(None, (error.context, error.problem)))
        raise ConfigError([Problem(file, mark.line + 1 if mark else 0, "", f"is not valid YAML: {reason}")]) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError([Problem(file, line, "", "holds a character that YAML does not allow")]) from error
    if root is None:
        return Document(file, {}, {})
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError([Problem(file, root.start_mark.line + 1, "", "must be a mapping of sections (`key: value`)")])
    walk = _Walk(file, foreign=foreign)
    values = walk.mapping(root, ())
    return Document(file, values, walk.lines, tuple(walk.problems))


def _check_form(text: str, file: str, most_aliases: int) -> None:
    """Scan the flat event stream first, so that nothing deep, endless or tagged is ever built. Raises ConfigError."""
    depth = documents = aliases = 0
    for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        refusal = None
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        documents += isinstance(event, yaml.DocumentStartEvent)
        aliases += isinstance(event, yaml.AliasEvent)
        tag = getattr(event, "tag", None)
        if tag is not None:
            refusal = f"the tag {tag[:40]} is not allowed; a configuration holds plain values only"
        elif documents > 1:
            refusal = "a configuration is one YAML document; remove the second `---`"
        elif depth > MAX_DEPTH:
            refusal = f"is nested deeper than {MAX_DEPTH} levels"
        elif aliases > most_aliases:
            refusal = f"uses more than {most_aliases} YAML aliases (`*name`)"
        elif count > 3 * MAX_VALUES:
            refusal = f"holds more than {MAX_VALUES} values"
        if refusal is not None:
            line = event.start_mark.line + 1 if event.start_mark is not None else 0
            raise ConfigError([Problem(file, line, "", refusal)])


class _Walk:
    """The conversion of a node graph to values. Aliased nodes are converted, and counted, at each use."""

    def __init__(self, file: str, *, foreign: bool) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []
        self._file = file
        self._foreign = foreign
        self._left = MAX_VALUES
        self._merging: set[int] = set()

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Value]:
        values = self._merged(node, path) if self._foreign else {}
        own: set[str] = set()
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse(line, path, "a key must be a plain word")
                continue
            key = str(key_node.value)
            here = (*path, key)
            if key_node.tag.endswith(":merge"):
                if not self._foreign:
                    self._refuse(line, path, "merge keys (`<<`) are not understood; write the keys out")
                continue
            if key in own:
                self._refuse(line, here, f"stands here twice; the first is on line {self.lines[here]}")
                if not self._foreign:
                    continue
            own.add(key)
            self.lines[here] = line
            values[key] = self._value(value_node, here)
        return values

    def _merged(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Value]:
        """Return what a mapping's merge keys bring, the first of several mappings last, as that counts."""
        values: dict[str, Value] = {}
        for key_node, value_node in node.value:
            if not key_node.tag.endswith(":merge"):
                continue
            parts = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            for part in reversed(parts):
                if id(part) in self._merging:
                    self._refuse(key_node.start_mark.line + 1, path, "a merge key (`<<`) brings a mapping into itself")
                    continue
                self._merging.add(id(part))
                found = self._value(part, path)
                self._merging.discard(id(part))
                if isinstance(found, dict):
                    values |= found
                else:
                    self._refuse(key_node.start_mark.line + 1, path, "a merge key (`<<`) takes a mapping")
        return values

    def _value(self, node: yaml.Node, path: KeyPath) -> Value:
        self._left -= 1
        if self._left < 0 or len(path) > MAX_DEPTH:
            line = node.start_mark.line + 1
            limit = f"{MAX_VALUES} values or {MAX_DEPTH} levels once its aliases are filled in"
            raise ConfigError([Problem(self._file, line, "", f"holds more than {limit}")])
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._item(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _item(self, node: yaml.Node, path: KeyPath) -> Value:
        self.lines[path] = node.start_mark.line + 1
        return self._value(node, path)

    def _scalar(self, node: yaml.Node, path: KeyPath) -> Value:
        text = str(node.value)
        # Quoted or folded text stays text. A plain scalar's style is None, or empty where libyaml parsed it.
        if getattr(node, "style", None):
            return text
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
        if _INTEGER.match(text):
            return int(text)
        if _DECIMAL.match(text):
            return Decimal(text)
        if _NOT_FINITE.match(text):
            self._refuse(node.start_mark.line + 1, path, "must be a finite number")
            return None
        return text

    def _refuse(self, line: int, path: KeyPath, message: str) -> None:
        self.problems.append(Problem(self._file, line, spell(path), message))
