"""The walk over a body: every text in it with its place, who says it, and whether it may be changed. Pure.

The body is taken as decoded JSON, so a walk of a wire is one table (`fields.toml`) and one recursion. What the table does not name
is prose of the user: a walk can read too much, never too little. A text is put back where it was found, and `Walk.changed`
writes the texts that stand encoded in others (arguments, files) again.
"""

import base64
import binascii
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote, unquote

import msgspec

Role = Literal["system", "user", "assistant", "tool", "definition"]
"""Who says a text: `tool`, a tool's result; `definition`, what describes a tool or the form of an answer."""
What = Literal["prose", "arguments", "name", "key", "link", "number", "file"]
Path = tuple[str | int, ...]

MOST_DEPTH: Final = 100
MOST_TEXTS: Final = 100_000
_LEAST_NUMBER: Final = 10**8
"""Shorter numbers are no card and no account."""
_MOST_WITHIN: Final = 20_000
"""Objects and lists within the arguments of one call; of more the text is read as it stands."""
_DATA_URL: Final = re.compile(r"data:([^,]{0,300}),", re.IGNORECASE)
_FAMILIES: Final = frozenset({"image", "audio", "video"})
_NOTED: Final[Mapping[str, str]] = {
    "image_url": "image",
    "audio_url": "audio",
    "video_url": "video",
    "file_url": "file",
}
_UNREADABLE: Final = "file"


class _Wire(msgspec.Struct, frozen=True):
    """The row of a wire in the table."""

    turns: str = ""
    system: frozenset[str] = frozenset()
    definitions: frozenset[str] = frozenset()
    fixed: bool = False
    unseen: str = ""


class _Fields(msgspec.Struct, frozen=True):
    """The names of fields by what they hold."""

    names: frozenset[str]
    arguments: frozenset[str]
    blobs: frozenset[str]
    links: frozenset[str]
    signatures: frozenset[str]
    described: frozenset[str]
    usual: frozenset[str]
    words: frozenset[str]


class _Table(msgspec.Struct, frozen=True):
    """The table `fields.toml`."""

    wires: dict[str, _Wire]
    shapes: dict[str, str]
    roles: dict[str, Role]
    types: dict[str, Role]
    fields: _Fields


_TABLE: Final = msgspec.convert(tomllib.loads((files("guard") / "fields.toml").read_text()), _Table)
_F: Final = _TABLE.fields
WIRES: Final = frozenset(_TABLE.wires) | frozenset(_TABLE.shapes)
"""The wires that have a row. Any other is read with none: all of it is prose."""
_UNKNOWN: Final = _Wire()


class TooMuch(Exception):
    """The body has more texts, or is nested more deeply, than is read."""


class Place(NamedTuple):
    """What holds for all texts of a part of the body."""

    role: Role
    new: bool
    """True after the last answer: block and flag look at nothing else."""
    recent: bool
    """True after the last answer, also where a later turn of the user's follows: a tool's result there is new."""
    fixed: bool
    meant: bool = False
    """True within arguments, whose names are not a wire's."""


class _Encoded(msgspec.Struct, eq=False):
    """A value that stands encoded in a text."""

    holder: Any
    key: str | int
    value: Any
    owner: "_Encoded | None"
    prefix: str | None = None
    """The beginning of a data URL or empty for plain base64; None for JSON."""
    in_base64: bool = True
    changed: bool = False

    def written(self) -> str:
        if self.prefix is None:
            return msgspec.json.encode(self.value).decode()
        text: str = self.value[0]
        encoded = base64.b64encode(text.encode()).decode() if self.in_base64 else quote(text)
        return self.prefix + encoded


class Text(msgspec.Struct, eq=False):
    """One text of a body. Its `repr` shows neither the text nor its place."""

    path: Path
    text: str
    role: Role
    what: What
    new: bool
    fixed: bool
    """True where nothing may be changed."""
    holder: Any
    key: str | int
    owner: _Encoded | None

    def __repr__(self) -> str:
        return f"Text({self.role}, {self.what}, {len(self.text)} characters)"

    def put(self, text: str) -> None:
        """Put another text in its place."""
        self.text = self.holder[self.key] = text
        if self.owner is not None:
            self.owner.changed = True


class Walk:
    """The texts of one body, and what could not be read in it."""

    def __init__(self, wire: str, body: Mapping[str, Any]) -> None:
        """Walk over a request's body. Raises TooMuch."""
        self.texts: list[Text] = []
        self.unseen: dict[str, int] = {}
        """How many things of each kind were not read: pictures, sound, files, tokens."""
        self._encoded: list[_Encoded] = []
        self._body(_TABLE.wires.get(_TABLE.shapes.get(wire, wire), _UNKNOWN), body)

    def changed(self) -> bool:
        """Write what stands encoded in other texts, and return True when anything of that was changed."""
        any_changed = False
        for each in reversed(self._encoded):
            if each.changed:
                any_changed = True
                each.holder[each.key] = each.written()
                if each.owner is not None:
                    each.owner.changed = True
        return any_changed

    def _body(self, wire: _Wire, body: dict[str, Any]) -> None:
        usual = Place("user", new=True, recent=True, fixed=wire.fixed)
        self._see_not(wire.unseen)
        self._keys(body, (), usual, None)
        for name, value in body.items():
            if name == wire.turns and isinstance(value, list):
                self._turns(value, (name,), wire)
                continue
            role: Role = "user"
            if name in wire.system:
                role = "system"
            elif name in wire.definitions:
                role = "definition"
            self._any(value, body, name, (name,), usual._replace(role=role), None)

    def _turns(self, turns: list[Any], path: Path, wire: _Wire) -> None:
        roles = [role_of(each) for each in turns]
        for index, (turn, place) in enumerate(zip(turns, _places(roles, fixed=wire.fixed), strict=True)):
            self._any(turn, turns, index, (*path, index), place, None)

    def _any(self, value: Any, holder: Any, key: str | int, path: Path, place: Place, owner: _Encoded | None) -> None:
        if type(value) is str:
            if type(key) is str and type(holder) is dict and not place.meant:
                self._field(key, value, holder, path, place, owner)
            else:
                self._add(value, holder, key, path, place, owner, "arguments" if place.meant else "prose")
        elif type(value) is dict:
            self._object(value, path, place, owner)
        elif type(value) is list:
            self._list(value, path, place, owner)
        elif isinstance(value, int | float) and abs(value) >= _LEAST_NUMBER:
            # A number that a wire reads stays one.
            fixed = place.fixed or not place.meant
            self._add(str(value), holder, key, path, place._replace(fixed=fixed), owner, "number")

    def _list(self, values: list[Any], path: Path, place: Place, owner: _Encoded | None) -> None:
        _check_depth(path)
        if path[0] in _TOKENS and values and all(type(each) is int and each < _LEAST_NUMBER for each in values):
            # A text as numbers of tokens, which only its model could read.
            self._see_not("tokens")
            return
        texts = place
        if path[-1] in _F.names or (place.role == "definition" and path[-1] not in _F.described):
            texts = place._replace(fixed=True)
        for index, each in enumerate(values):
            self._any(each, values, index, (*path, index), texts if type(each) is str else place, owner)

    def _object(self, value: dict[str, Any], path: Path, place: Place, owner: _Encoded | None) -> None:
        _check_depth(path)
        self._keys(value, path, place, owner)
        calls = False
        if not place.meant:
            place = _within(value, place)
            calls = value.get("type") in _CALLS
        for name, each in value.items():
            if calls and name in _F.arguments and type(each) is not str:
                self._any(each, value, name, (*path, name), place._replace(meant=True), owner)
            else:
                self._any(each, value, name, (*path, name), place, owner)

    def _field(
        self, name: str, text: str, holder: dict[str, Any], path: Path, place: Place, owner: _Encoded | None
    ) -> None:
        """Add the text of a field by what a field of its name holds."""
        if name in _F.names:
            if text not in _WORDS:
                self._add(text, holder, name, path, place._replace(fixed=True), owner, "name")
                if name == "file_id":
                    self._see_not(_UNREADABLE)
        elif name == "arguments" or (name == "input" and holder.get("type") in _CALLS):
            self._arguments(text, holder, name, path, place, owner)
        elif name in _F.links:
            self._link(name, text, holder, path, place, owner)
        elif name in _F.blobs and _is_blob(name, text, holder, path):
            self._blob(text, holder, name, path, place, owner, _media(holder, path))
        else:
            fixed = place.role == "definition" and name not in _F.described
            self._add(text, holder, name, path, place._replace(fixed=True) if fixed else place, owner, "prose")

    def _add(
        self, text: str, holder: Any, key: str | int, path: Path, place: Place, owner: _Encoded | None, what: What
    ) -> None:
        if not text:
            return
        if len(self.texts) >= MOST_TEXTS:
            raise TooMuch
        self.texts.append(
            Text(path, text, place.role, what, place.new, place.fixed or what in {"key", "link"}, holder, key, owner)
        )

    def _keys(self, value: Mapping[str, Any], path: Path, place: Place, owner: _Encoded | None) -> None:
        """Add the names of an object's fields that are none of a wire's, as one text: a value may stand there, too."""
        if place.meant or not _KNOWN.issuperset(value):
            odd = value if place.meant else [name for name in value if name not in _KNOWN]
            self._add("\n".join(odd), value, "", path, place, owner, "key")

    def _arguments(self, text: str, holder: Any, key: str, path: Path, place: Place, owner: _Encoded | None) -> None:
        """Add the texts within a call's arguments; of what is no JSON, the text itself."""
        value = _json_in(text)
        if value is None:
            self._add(text, holder, key, path, place._replace(meant=True), owner, "arguments")
            return
        encoded = _Encoded(holder, key, value, owner)
        # What is read only once, of two fields of one name, is sent only once.
        encoded.changed = loses_names(text.encode(), value)
        self._encoded.append(encoded)
        self._any(value, None, "", path, place._replace(meant=True), encoded)

    def _link(self, name: str, text: str, holder: Any, path: Path, place: Place, owner: _Encoded | None) -> None:
        media = _NOTED.get(name) or next((_NOTED[each] for each in path if each in _NOTED), "")
        if _DATA_URL.match(text):
            self._blob(text, holder, name, path, place, owner, media)
            return
        if media or holder.get("type") == "url":
            self._see_not(media or _UNREADABLE)
        self._add(text, holder, name, path, place, owner, "link")

    def _blob(
        self, text: str, holder: Any, key: str, path: Path, place: Place, owner: _Encoded | None, media: str
    ) -> None:
        """Add the text of a file that is one, and note any other as not seen."""
        prefix, in_base64 = "", True
        found = _DATA_URL.match(text)
        if found is not None:
            prefix, in_base64 = found[0], found[1].lower().endswith(";base64")
            family = found[1].partition("/")[0].lower()
            media = family if family in _FAMILIES else _UNREADABLE
        if media in _FAMILIES:
            self._see_not(media)
            return
        raw = _decoded(text[len(prefix) :]) if in_base64 else unquote(text[len(prefix) :], errors="replace").encode()
        if raw is None:
            # It says that it is a file, and is something else: then it is read as it is.
            self._add(text, holder, key, path, place, owner, "prose")
            return
        said = _text_in(raw)
        if said is None:
            self._see_not(media or _UNREADABLE)
            return
        encoded = _Encoded(holder, key, [said], owner, prefix, in_base64)
        self._encoded.append(encoded)
        self._add(said, encoded.value, 0, path, place, encoded, "file")

    def _see_not(self, media: str) -> None:
        if media:
            self.unseen[media] = self.unseen.get(media, 0) + 1


def role_of(turn: Any) -> Role:
    """Return who says a turn: as it says itself, else by its type, else the user."""
    if not isinstance(turn, dict):
        return "user"
    role, kind = turn.get("role"), turn.get("type")
    if isinstance(role, str):
        return _TABLE.roles.get(role, "user")
    return _TABLE.types.get(kind, "user") if isinstance(kind, str) else "user"


def _places(roles: Sequence[Role], *, fixed: bool) -> list[Place]:
    """Return the place of each turn. New is the last turn of the user's, with what tools said since the last answer: an earlier turn
    of the user's that was refused must not refuse all that follow it. Answers at the end are begun ones, and no answer yet.
    """
    end = len(roles)
    while end and roles[end - 1] == "assistant":
        end -= 1
    answered = max((index for index in range(end) if roles[index] == "assistant"), default=-1)
    asked = max((index for index in range(end) if roles[index] == "user"), default=-1)
    return [
        Place(
            role, role == "system" or (index > answered and (role != "user" or index >= asked)), index > answered, fixed
        )
        for index, role in enumerate(roles)
    ]


def _within(value: Mapping[str, Any], place: Place) -> Place:
    """Return the place of an object's texts: a tool's result within a user's turn is the tool's, and what is signed stays."""
    kind = value.get("type")
    role = _TABLE.types.get(kind) if isinstance(kind, str) and place.role not in {"definition", "system"} else None
    if role is not None and role != place.role:
        place = place._replace(role=role, new=place.new or (role == "tool" and place.recent))
    if not _F.signatures.isdisjoint(value) and any(value.get(name) for name in _F.signatures):
        place = place._replace(fixed=True)
    return place


def _is_blob(name: str, text: str, holder: Mapping[str, Any], path: Path) -> bool:
    """Return True for the bytes of a file, or what is sent in their place; False for a text in a field of that name."""
    if _DATA_URL.match(text):
        return True
    kind = holder.get("type")
    return kind != "redacted_thinking" and (name != "data" or kind == "base64" or "input_audio" in path)


def _media(holder: Mapping[str, Any], path: Path) -> str:
    """Return what kind of thing the bytes in a field are, as the field beside it says."""
    said = holder.get("media_type") or holder.get("mime_type")
    family = said.partition("/")[0] if isinstance(said, str) else ""
    if family in _FAMILIES:
        return family
    return "audio" if "input_audio" in path else _UNREADABLE


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _text_in(raw: bytes) -> str | None:
    """Return the text that bytes are; None for any other file."""
    if b"\0" in raw or raw.startswith(b"%PDF"):
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _json_in(text: str) -> Any:
    """Return the object or list that a text is; None for any other text."""
    if text.lstrip()[:1] not in {"{", "["} or text.count("{") + text.count("[") > _MOST_WITHIN:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


def loses_names(raw: bytes, value: Any) -> bool:
    """Return True where JSON may have a name twice in one object, of which `value` has the last alone: another reader may take the
    first. All colons are counted, which are between names and values or in texts, and of which nothing else is lost.
    """
    return raw.count(b":") != msgspec.json.encode(value).count(b":") or b"\\u003a" in raw or b"\\u003A" in raw


def _check_depth(path: Path) -> None:
    if len(path) > MOST_DEPTH:
        raise TooMuch


_TOKENS: Final = frozenset({"input", "prompt"})
_CALLS: Final = frozenset(name for name, role in _TABLE.types.items() if role == "assistant" and name != "reasoning")
_WORDS: Final = _F.words | _TABLE.types.keys() | _TABLE.roles.keys()
_KNOWN: Final = _F.usual | _F.names | _F.arguments | _F.blobs | _F.links | _F.described
