"""What may be wrong with a plug-in, in sentences that say what to do. The gateway and the test kit ask the same."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

from weighbridge.plugins.facts import Candidate, Identity, Kind, Outgoing, Score, Span, Text, Verdict
from weighbridge.plugins.protocols import PROTOCOLS

METHODS: Final[Mapping[Kind, Mapping[str, tuple[bool, int]]]] = {
    "guard": {"check": (True, 2)},
    "scorer": {"score": (False, 2)},
    "exporter": {"finished": (True, 1)},
    "authenticator": {"caller": (True, 1)},
    "dialect": {"request": (False, 2), "reader": (False, 1)},
}
"""Each kind's methods: whether it is a coroutine, and how many arguments it is given."""
_ACTIONS: Final = frozenset({"pass", "block", "mask", "own", "flag"})
_MOST_NANOUSD: Final = 1_000_000_000_000
"""A thousand dollars: a larger margin is meant as a veto."""
MOST_CHARS: Final = 64
"""Of names that become labels of counts."""


class PluginFault(Exception):
    """A plug-in returned what it may not. The message never repeats what it was given."""


def class_problem(made_by: Any, kind: Kind) -> str | None:
    """Return what keeps a class from being a plug-in of this kind, or None."""
    if not inspect.isclass(made_by):
        return "is no class: name the class that is to be made, such as `package.module:Class`"
    if (problem := _version_problem(made_by, kind)) is not None:
        return problem
    found = (_method_problem(made_by, kind, name) for name in METHODS[kind])
    return next((each for each in found if each is not None), None)


def _version_problem(made_by: Any, kind: Kind) -> str | None:
    newest = PROTOCOLS[kind]
    said = getattr(made_by, "protocol", None)
    if said is None:
        return f"says not which protocol it was written for: add `protocol = {newest}` to the class"
    if type(said) is int and said == newest:
        return None
    remedy = "install a newer release of the plug-in" if type(said) is int and said < newest else "update the gateway"
    return f"was written for protocol {str(said)[:20]} of a {kind}, and this gateway speaks {newest}: {remedy}"


def _method_problem(made_by: Any, kind: Kind, name: str) -> str | None:
    awaits, given = METHODS[kind][name]
    method = getattr(made_by, name, None)
    if not callable(method):
        others = [
            each for each, methods in METHODS.items() if all(callable(getattr(made_by, one, None)) for one in methods)
        ]
        meant = f"; it looks like a {others[0]}: write `kind: {others[0]}`" if others else ""
        return f"has no method `{name}`, which a {kind} needs{meant}"
    if inspect.iscoroutinefunction(method) != awaits:
        return f"has `{name}` as {'a plain function' if awaits else 'a coroutine'}: write `{'async ' if awaits else ''}def {name}`"
    return _signature_problem(method, name, given)


def _signature_problem(method: Any, name: str, given: int) -> str | None:
    try:
        inspect.signature(method).bind(*[None] * (given + 1))
    except TypeError:
        return f"has `{name}` with other arguments: it is called with {given} beside self"
    except ValueError:
        return None
    return None


def settings_type(made_by: Any) -> Any | None:
    """Return the class of a plug-in's settings; None where it has none."""
    return getattr(made_by, "Settings", None)


def setting_names(settings: Any) -> frozenset[str] | None:
    """Return the names that settings may have; None where the class itself refuses others."""
    if is_dataclass(settings):
        return frozenset(each.name for each in fields(settings) if each.init)
    names = getattr(settings, "__struct_encode_fields__", None)
    return None if names is None else frozenset(names)


def checked_verdict(found: object, texts: Sequence[Text]) -> Verdict:
    """Return a guard's verdict. Raises PluginFault."""
    if not isinstance(found, Verdict):
        raise PluginFault(f"`check` returned {_type(found)}: return a Verdict")
    if found.action not in _ACTIONS:
        raise PluginFault("`check` returned an action that there is not: pass, block, mask, own or flag")
    if found.action == "mask" and not found.spans:
        raise PluginFault("`check` returned `mask` without spans: say which characters")
    _check_name(found.name)
    for span in found.spans:
        _check_span(span, texts)
    return found


def _check_span(span: object, texts: Sequence[Text]) -> None:
    if not isinstance(span, Span):
        raise PluginFault(f"`check` returned {_type(span)} among the spans: return Span objects")
    _check_name(span.kind)
    if not 0 <= span.text < len(texts) or not 0 <= span.start < span.end <= len(texts[span.text].value):
        raise PluginFault(
            "`check` returned a span outside its text: `start` and `end` count characters of `texts[text]`"
        )


def _check_name(name: object) -> None:
    if not isinstance(name, str) or len(name) > MOST_CHARS or not name.isprintable():
        raise PluginFault(f"a name is text of at most {MOST_CHARS} printable characters")


def checked_scores(found: object, candidates: Sequence[Candidate]) -> list[Score]:
    """Return a scorer's scores, without those of targets that are no candidates. Raises PluginFault."""
    if not isinstance(found, Sequence) or not all(isinstance(each, Score) for each in found):
        raise PluginFault("`score` returns a list of Score objects")
    known = {each.target_id for each in candidates}
    for each in found:
        if type(each.margin_nanousd) is not int or abs(each.margin_nanousd) > _MOST_NANOUSD:
            raise PluginFault("`margin_nanousd` is a whole number of nano-dollars, at most 1,000 dollars either way")
        if not isinstance(each.veto, str):
            raise PluginFault("`veto` says why in words, or is empty")
    return [each for each in found if each.target_id in known]


def checked_identity(found: object) -> Identity | None:
    """Return whom an authenticator knows. Raises PluginFault."""
    if found is None:
        return None
    if not isinstance(found, Identity):
        raise PluginFault(f"`caller` returned {_type(found)}: return an Identity or None")
    given: tuple[object, ...] = (found.team_id, found.key_name)
    if not all(isinstance(each, str) and 0 < len(each) <= 2 * MOST_CHARS for each in given):
        raise PluginFault("`caller` returned an Identity without a team or a key's name")
    return found


def checked_outgoing(found: object) -> Outgoing:
    """Return a dialect's request. Raises PluginFault."""
    if not isinstance(found, Outgoing) or not isinstance(found.body, bytes):
        raise PluginFault("`request` returns an Outgoing whose body is bytes")
    path = str(found.path)
    if not path.isascii() or not path.isprintable() or any(each in path for each in (" ", "://", "..", "#")):
        raise PluginFault("`path` is added to `base_url`: printable, without a host and without `..`")
    return found


def checked_chunk(found: object) -> Mapping[str, Any]:
    """Return what a reader read. Raises PluginFault."""
    if not isinstance(found, Mapping) or not isinstance(found.get("choices"), Sequence):
        raise PluginFault("a reader returns a mapping with `choices`, as /v1/chat/completions answers")
    return found


def _type(found: object) -> str:
    return f"a {type(found).__name__[:MOST_CHARS]}"
