"""The walk over a body: every text in it with its place, who says it, and whether it may be changed. Pure.

The body is taken as decoded JSON, so a walk of a wire is one table (`fields.toml`) and one recursion. What the table does not name
is prose of the user: a walk can read too much, never too little. A text is put back where it was found, and `Walk.changed`
writes the texts that stand encoded in others (arguments, files) again.
"""

import base64
import binascii
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from settings.decoding import DECODE_ERRORS

Role = Literal["system", "user", "assistant", "tool", "definition"]
"""Who says a text: `tool`, a tool's result; `definition`, what describes a tool or the form of an answer."""
What = Literal["prose", "arguments", "name", "key", "link", "number", "file"]
Path = tuple[str | int, ...]

MOST_DEPTH: Final = 100
MOST_TEXTS: Final = 100_000
_LEAST_NUMBER: Final = 10**8
"""Shorter numbers are no card and no account."""
_LEAST_FILE_CHARS: Final = 256
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
    structural: frozenset[str]
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


class _Turn(msgspec.Struct):
    """Who says a turn."""

    role: Any = None
    type: Any = None


_decode_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_turns: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_roles: Final = msgspec.json.Decoder(list[_Turn]).decode
_decode_any_number: Final = msgspec.json.Decoder(float_hook=lambda number: msgspec.Raw(number.encode())).decode
_MAY_HOLD: Final = (b'"', b"[", b"{")
_MOST_DIGITS: Final = 8
_BACKSLASH: Final = 0x5C


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


class Encoded(msgspec.Struct, eq=False):
    """A value that stands encoded in another one: a part of the body, what a call's arguments say, the text of a file."""

    holder: Any
    key: str | int
    within: Any
    """A list or an object that has the value alone, so that it can be replaced."""
    at: str | int = 0
    owner: "Encoded | None" = None
    prefix: str | None = None
    """The beginning of a data URL, or empty, where it is a file's text; None for JSON."""
    in_base64: bool = True
    is_part: bool = False
    """True for a part of the body itself, which is kept as bytes."""
    turns: bool = False
    """True for the list of the turns, of which each is a part."""
    changed: bool = False

    def __repr__(self) -> str:
        return "Encoded(…)"

    def write(self) -> None:
        """Put the value back into what it came from."""
        self.holder[self.key] = self._written()
        if self.owner is not None:
            self.owner.changed = True

    def _written(self) -> str | bytes:
        if self.prefix is not None:
            text: str = self.within[self.at]
            return self.prefix + (base64.b64encode(text.encode()).decode() if self.in_base64 else quote(text))
        value = self.within[self.at]
        if self.is_part:
            return _joined(value) if self.turns else msgspec.json.encode(value)
        return msgspec.json.encode(value).decode()


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
    owner: Encoded

    def __repr__(self) -> str:
        return f"Text({self.role}, {self.what}, {len(self.text)} characters)"

    def put(self, text: str) -> None:
        """Put another text in its place."""
        self.text = self.holder[self.key] = text
        self.owner.changed = True


class Part(NamedTuple):
    """A part of a body that is walked over by itself: a turn, or a field of another name."""

    name: str
    raw: bytes
    place: Place
    number: int | None = None
    """The turn's number; None for a field."""


class Walked(NamedTuple):
    """What there is in a part."""

    texts: list[Text]
    unseen: Mapping[str, int]
    lossy: bool
    """True where it has a name twice in one object, and so is not sent as it came."""


class Walk:
    """The texts of one body, part by part, and what could not be read in it."""

    def __init__(self, wire: str, body: bytes) -> None:
        """Take a body, which is a JSON object, apart."""
        self.texts: list[Text] = []
        self.unseen: dict[str, int] = {}
        """How many things of each kind were not read: pictures, sound, files, tokens."""
        self._wire = _TABLE.wires.get(_TABLE.shapes.get(wire, wire), _UNKNOWN)
        self._fields: dict[str, Any] = {name: bytes(raw) for name, raw in _decode_fields(body).items()}
        self._encoded: list[Encoded] = []
        self._noted = self.unseen
        self._turns: Encoded | None = None
        usual = self._usual = Place("user", new=True, recent=True, fixed=self._wire.fixed)
        self._rewritten = _has_twice(body, self._fields)
        self._see_not(self._wire.unseen)
        self._keys(self._fields, (), usual, Encoded(None, "", None))

    def parts(self) -> Iterator[Part]:
        """Yield the parts in which a text may be."""
        wire, usual = self._wire, self._usual
        for name, raw in self._fields.items():
            if name == wire.turns and raw.startswith(b"["):
                yield from self._split(name, raw)
            elif raw.startswith(_MAY_HOLD) or len(raw) > _MOST_DIGITS:
                role: Role = "user"
                if name in wire.system:
                    role = "system"
                elif name in wire.definitions:
                    role = "definition"
                yield Part(name, raw, usual if role == "user" else usual._replace(role=role))

    def _split(self, name: str, raw: bytes) -> Iterator[Part]:
        turns = [bytes(each) for each in _decode_turns(raw)]
        self._turns = Encoded(self._fields, name, [turns], is_part=True, turns=True)
        try:
            roles = [role_of(each.role, each.type) for each in _decode_roles(raw)]
        except msgspec.ValidationError:
            # A turn that is no object, which its wire refuses or knows.
            roles = [_role_in(each) for each in turns]
        for index, (turn, place) in enumerate(zip(turns, _places(roles, fixed=self._wire.fixed), strict=True)):
            yield Part(name, turn, place, index)

    def over(self, part: Part) -> "Walked":
        """Walk over a part. Raises TooMuch."""
        begun, first = len(self.texts), len(self._encoded)
        self._noted = {}
        self._over(part)
        self.see(self._noted)
        lossy = any(each.changed for each in self._encoded[first:])
        return Walked(self.texts[begun:], self._noted, lossy)

    def see(self, noted: Mapping[str, int]) -> None:
        """Count what could not be read in a part."""
        for media, count in noted.items():
            self.unseen[media] = self.unseen.get(media, 0) + count

    def _over(self, part: Part) -> None:
        value = _value_in(part.raw)
        path: Path = (part.name,)
        if part.number is None:
            whole = Encoded(self._fields, part.name, {part.name: value}, part.name, is_part=True)
        else:
            assert self._turns is not None  # noqa: S101 - parts with a number come from there
            whole = Encoded(self._turns.within[0], part.number, [value], owner=self._turns, is_part=True)
            path = (part.name, part.number)
        # What is read only once, of two fields of one name, is sent only once.
        whole.changed = loses_names(part.raw, value)
        self._encoded.append(whole)
        self._any(value, whole.within, whole.at, path, part.place, whole)

    def all(self) -> "Walk":
        """Walk over all parts. Raises TooMuch."""
        for part in self.parts():
            self.over(part)
        return self

    @property
    def is_changed(self) -> bool:
        """True where a part was changed, or is not what it seems."""
        return self._rewritten or any(each.changed for each in self._encoded)

    def written(self) -> bytes | None:
        """Return the body with what was changed in it; None where nothing was. Parts that were not changed are byte for byte as they were."""
        if not self.is_changed:
            return None
        for each in reversed(self._encoded):
            if each.changed:
                each.write()
        if self._turns is not None and self._turns.changed:
            self._turns.write()
        return _joined(self._fields)

    def _any(self, value: Any, holder: Any, key: str | int, path: Path, place: Place, owner: Encoded) -> None:
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

    def _list(self, values: list[Any], path: Path, place: Place, owner: Encoded) -> None:
        _check_depth(path)
        if path[0] in _TOKENS and values and all(type(each) is int and each < _LEAST_NUMBER for each in values):
            # A text as numbers of tokens, which only its model could read.
            self._see_not("tokens")
            return
        texts = place._replace(fixed=True) if path[-1] in _F.names else place
        for index, each in enumerate(values):
            self._any(each, values, index, (*path, index), texts if type(each) is str else place, owner)

    def _object(self, value: dict[str, Any], path: Path, place: Place, owner: Encoded) -> None:
        _check_depth(path)
        self._keys(value, path, place, owner)
        calls = False
        if not place.meant:
            place = _within(value, place)
            calls = kind_of(value) in _CALLS
        for name, each in value.items():
            if place.role == "definition" and name in _F.structural:
                self._any(each, value, name, (*path, name), place._replace(fixed=True), owner)
            elif calls and name in _F.arguments and type(each) is not str:
                self._any(each, value, name, (*path, name), place._replace(meant=True), owner)
            else:
                self._any(each, value, name, (*path, name), place, owner)

    def _field(self, name: str, text: str, holder: dict[str, Any], path: Path, place: Place, owner: Encoded) -> None:
        """Add the text of a field by what a field of its name holds."""
        if name in _F.names:
            if text not in _WORDS:
                self._add(text, holder, name, path, place._replace(fixed=True), owner, "name")
                if name == "file_id":
                    self._see_not(_UNREADABLE)
        elif name == "arguments" or (name == "input" and kind_of(holder) in _CALLS):
            self._arguments(text, holder, name, path, place, owner)
        elif name in _F.links:
            self._link(name, text, holder, path, place, owner)
        elif name in _F.blobs and _is_blob(name, text, holder, path):
            self._blob(text, holder, name, path, place, owner, _media(holder, path))
        else:
            self._add(text, holder, name, path, place, owner, "prose")

    def _add(
        self, text: str, holder: Any, key: str | int, path: Path, place: Place, owner: Encoded, what: What
    ) -> None:
        if not text:
            return
        if len(self.texts) >= MOST_TEXTS:
            raise TooMuch
        self.texts.append(
            Text(path, text, place.role, what, place.new, place.fixed or what in {"key", "link"}, holder, key, owner)
        )

    def _keys(self, value: Mapping[str, Any], path: Path, place: Place, owner: Encoded) -> None:
        """Add the names of an object's fields that are none of a wire's, as one text: a value may stand there, too."""
        if place.meant or not _KNOWN.issuperset(value):
            odd = value if place.meant else [name for name in value if name not in _KNOWN]
            self._add("\n".join(odd), value, "", path, place, owner, "key")

    def _arguments(self, text: str, holder: Any, key: str, path: Path, place: Place, owner: Encoded) -> None:
        """Add the texts within a call's arguments; of what is no JSON, the text itself."""
        value = _json_in(text)
        if value is None:
            self._add(text, holder, key, path, place._replace(meant=True), owner, "arguments")
            return
        encoded = Encoded(holder, key, [value], owner=owner)
        # What is read only once, of two fields of one name, is sent only once.
        encoded.changed = loses_names(text.encode(), value)
        self._encoded.append(encoded)
        self._any(value, encoded.within, 0, path, place._replace(meant=True), encoded)

    def _link(self, name: str, text: str, holder: Any, path: Path, place: Place, owner: Encoded) -> None:
        media = _NOTED.get(name) or next(
            (_NOTED[each] for each in path if isinstance(each, str) and each in _NOTED), ""
        )
        if _DATA_URL.match(text):
            self._blob(text, holder, name, path, place, owner, media)
            return
        if media or holder.get("type") == "url":
            self._see_not(media or _UNREADABLE)
        self._add(text, holder, name, path, place, owner, "link")

    def _blob(self, text: str, holder: Any, key: str, path: Path, place: Place, owner: Encoded, media: str) -> None:
        """Add the text of a file that is one, and note any other as not seen."""
        prefix, in_base64 = "", True
        found = _DATA_URL.match(text)
        if found is not None:
            prefix, in_base64 = found[0], found[1].lower().endswith(";base64")
            family = found[1].partition("/")[0].lower()
            media = family if family in _FAMILIES else _UNREADABLE
        if media in _FAMILIES:
            self._not_a_text(media, text, holder, key, path, place, owner)
            return
        raw = _decoded(text[len(prefix) :]) if in_base64 else unquote(text[len(prefix) :], errors="replace").encode()
        if raw is None:
            # It says that it is a file, and is something else: then it is read as it is.
            self._add(text, holder, key, path, place, owner, "prose")
            return
        said = _text_in(raw)
        if said is None:
            self._not_a_text(media or _UNREADABLE, text, holder, key, path, place, owner)
            return
        encoded = Encoded(holder, key, [said], owner=owner, prefix=prefix, in_base64=in_base64)
        self._encoded.append(encoded)
        self._add(said, encoded.within, 0, path, place, encoded, "file")

    def _not_a_text(
        self, media: str, text: str, holder: Any, key: str | int, path: Path, place: Place, owner: Encoded
    ) -> None:
        """Note what could not be read. So little is no picture and no file, but may be a value itself: it is read as it stands."""
        self._see_not(media)
        if len(text) < _LEAST_FILE_CHARS:
            self._add(text, holder, key, path, place, owner, "prose")

    def _see_not(self, media: str) -> None:
        if media:
            self._noted[media] = self._noted.get(media, 0) + 1


def _value_in(raw: bytes) -> Any:
    """Return a part's value. Raises TooMuch for a number that nobody reads."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.ValidationError:
        # A number beyond a float's, such as 1e400, which the target may read: it stays as it came.
        try:
            return _decode_any_number(raw)
        except msgspec.ValidationError as error:
            raise TooMuch from error


def kind_of(value: Mapping[str, Any]) -> str:
    """Return the type that an object says it has; empty for none."""
    found = value.get("type")
    return found if isinstance(found, str) else ""


def _role_in(turn: bytes) -> Role:
    found = msgspec.json.decode(turn)
    return role_of(found.get("role"), found.get("type")) if isinstance(found, dict) else "user"


def role_of(role: Any, kind: Any) -> Role:
    """Return who says a turn: as it says itself, else by its type, else the user."""
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
    answered = asked = -1
    for index in range(end):
        if roles[index] == "user":
            asked = index
        elif roles[index] == "assistant":
            answered = index
    return [
        Place(
            role, role == "system" or (index > answered and (role != "user" or index >= asked)), index > answered, fixed
        )
        for index, role in enumerate(roles)
    ]


def _within(value: Mapping[str, Any], place: Place) -> Place:
    """Return the place of an object's texts: a tool's result within a user's turn is the tool's, and what is signed stays."""
    role = _TABLE.types.get(kind_of(value)) if place.role not in {"definition", "system"} else None
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
    except (ValueError, *DECODE_ERRORS):
        return None


def loses_names(raw: bytes, value: Any) -> bool:
    """Return True where JSON may have a name twice in one object, of which `value` has the last alone: another reader may take the
    first. All colons are counted, which are between names and values or in texts, and of which nothing else is lost.
    """
    if raw.count(b":") != msgspec.json.encode(value).count(b":"):
        return True
    # As a number: a byte is found several times faster than a piece of bytes.
    return _BACKSLASH in raw and b"\\u003" in raw


def _has_twice(body: bytes, fields: Mapping[str, bytes]) -> bool:
    """Return True where the body itself may have a name twice, as `loses_names` tells it of its parts."""
    known = len(fields)
    for raw in fields.values():
        known += raw.count(b":")
    escaped = _BACKSLASH in body and b"\\u003" in body
    return body.count(b":") != known or (escaped and any(":" in name for name in fields))


def _joined(parts: Mapping[str, bytes] | Sequence[bytes]) -> bytes:
    """Return an object or a list of parts that are JSON already."""
    if isinstance(parts, Mapping):
        return msgspec.json.encode({name: msgspec.Raw(each) for name, each in parts.items()})
    return msgspec.json.encode([msgspec.Raw(each) for each in parts])


def _check_depth(path: Path) -> None:
    if len(path) > MOST_DEPTH:
        raise TooMuch


_TOKENS: Final = frozenset({"input", "prompt"})
_CALLS: Final = frozenset(name for name, role in _TABLE.types.items() if role == "assistant" and name != "reasoning")
_WORDS: Final = _F.words | _TABLE.types.keys() | _TABLE.roles.keys()
_KNOWN: Final = _F.usual | _F.names | _F.arguments | _F.blobs | _F.links | _F.structural
