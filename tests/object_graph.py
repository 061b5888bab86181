"""What two running processes hold differently: all that is reachable is walked side by side, from the same roots."""

import asyncio
import collections
import datetime as dt
import decimal
import enum
import functools
import inspect
import pathlib
import types
from collections.abc import Iterator, Mapping
from typing import Final

_PLAIN: Final = (
    bool,
    int,
    float,
    str,
    bytes,
    decimal.Decimal,
    dt.date,
    pathlib.PurePath,
    enum.Enum,
    frozenset,
    set,
    type(None),
)
_LOOKED_INTO: Final = frozenset(
    {
        "accounts",
        "classifier",
        "contextlib",
        "cost",
        "dashboards",
        "gateway",
        "providers",
        "proxy",
        "selfhosted",
        "settings",
    }
)
"""Packages whose objects are looked into. What objects of other libraries hold, they were given by these."""


def differences(one: object, other: object) -> dict[str, tuple[object, object]]:
    """Returns the plain values that differ, by their path from the roots: `['data'].live.config.server.port`.

    Attributes, captured variables of functions, and local variables of waiting coroutines are all followed.
    """
    found: dict[str, tuple[object, object]] = {}
    seen: set[tuple[int, int]] = set()
    waiting = collections.deque([("", one, other)])
    while waiting:
        path, left, right = waiting.popleft()
        if left is right or (id(left), id(right)) in seen:
            continue
        seen.add((id(left), id(right)))
        if isinstance(left, _PLAIN) or isinstance(right, _PLAIN) or type(left) is not type(right):
            if type(left) is not type(right) or left != right:
                found[path] = (left, right)
            continue
        parts, others = dict(_parts(left)), dict(_parts(right))
        if parts.keys() != others.keys():
            found[f"{path} has"] = (sorted(parts.keys() - others.keys()), sorted(others.keys() - parts.keys()))
        waiting.extend((f"{path}{name}", parts[name], others[name]) for name in parts.keys() & others.keys())
    return found


def _parts(of: object) -> Iterator[tuple[str, object]]:
    """Yields what an object refers to, each with the end of its path."""
    if isinstance(of, Mapping):
        yield from ((f"[{key!r}]", value) for key, value in of.items() if isinstance(key, (*_PLAIN, tuple)))
    elif isinstance(of, list | tuple | collections.deque):
        yield from ((f"[{index}]", value) for index, value in enumerate(of))
    elif isinstance(of, asyncio.Task):
        yield ".coro", of.get_coro()
    elif inspect.iscoroutine(of):
        yield from _locals(of.cr_frame)
        yield ".await", of.cr_await
    elif callable(of):
        yield from _captured(of)
    if _is_looked_into(type(of).__module__) and not isinstance(of, type | types.ModuleType):
        yield from _attributes(of)


def _is_looked_into(module: str) -> bool:
    return module.partition(".")[0] in _LOOKED_INTO


def _captured(of: object) -> Iterator[tuple[str, object]]:
    if isinstance(of, functools.partial):
        yield from ((".func", of.func), (".args", of.args), (".keywords", of.keywords))
    elif isinstance(of, types.MethodType):
        yield ".__self__", of.__self__
    elif isinstance(of, types.FunctionType):
        for name, cell in zip(of.__code__.co_freevars, of.__closure__ or (), strict=True):
            try:
                yield f".<{name}>", cell.cell_contents
            except ValueError:
                # It was not assigned yet.
                continue
        yield from ((".defaults", of.__defaults__), (".kwdefaults", of.__kwdefaults__))


def _locals(frame: types.FrameType | None) -> Iterator[tuple[str, object]]:
    if frame is not None and _is_looked_into(frame.f_globals["__name__"]):
        yield from ((f".<{name}>", value) for name, value in frame.f_locals.items())


def _attributes(of: object) -> Iterator[tuple[str, object]]:
    names = dict.fromkeys([*getattr(of, "__dict__", ()), *getattr(type(of), "__struct_fields__", ())])
    for each in type(of).__mro__:
        slots = each.__dict__.get("__slots__", ())
        names.update(dict.fromkeys((slots,) if isinstance(slots, str) else slots))
    yield from ((f".{name}", getattr(of, name)) for name in names if hasattr(of, name))
