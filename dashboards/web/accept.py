"""Which of the kinds that a route can answer with a caller takes best, by its Accept header (RFC 9110, 12.5.1)."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from proxy.errors import NotAcceptable

_MAX_CHARS: Final = 1_000
_RANGE: Final = re.compile(r"(?P<type>[\w!#$&^.+*-]+)/(?P<subtype>[\w!#$&^.+*-]+)", re.ASCII)
_WEIGHT: Final = re.compile(r"(0(\.\d{0,3})?|1(\.0{0,3})?)", re.ASCII)


class _Range(msgspec.Struct, frozen=True):
    type: str
    subtype: str
    thousandths: int

    def specificity(self, kind: str) -> int:
        """How closely it names the kind: 0 for not at all, 3 for exactly."""
        if f"{self.type}/{self.subtype}" == kind:
            return 3
        if self.subtype == "*" and self.type in {"*", kind.partition("/")[0]}:
            return 1 if self.type == "*" else 2
        return 0


def best_kind(accept: str | None, offered: Sequence[str]) -> str:
    """The first of the kinds that the caller likes best; without a header the first of all."""
    if accept is None or not accept.strip():
        return offered[0]
    ranges = [found for part in accept[:_MAX_CHARS].split(",") if (found := _range(part)) is not None]
    likings = {kind: _liking(kind, ranges) for kind in offered}
    best = max(offered, key=likings.__getitem__)
    if likings[best] == 0:
        raise NotAcceptable(f"The reply can be {', '.join(offered)}; `Accept` takes none of these.", param="accept")
    return best


def _liking(kind: str, ranges: Sequence[_Range]) -> int:
    """The closest range decides, also when it says less than a wider one."""
    closest = max(ranges, key=lambda each: (each.specificity(kind), each.thousandths), default=None)
    return closest.thousandths if closest is not None and closest.specificity(kind) else 0


def _range(text: str) -> _Range | None:
    media, *parameters = (part.strip() for part in text.lower().split(";"))
    shape = _RANGE.fullmatch(media)
    if shape is None:
        return None
    weights = [part.partition("=")[2].strip() for part in parameters if part.partition("=")[0].strip() == "q"]
    if not weights:
        return _Range(shape["type"], shape["subtype"], 1_000)
    if _WEIGHT.fullmatch(weights[0]) is None:
        return None
    whole, _, fraction = weights[0].partition(".")
    return _Range(shape["type"], shape["subtype"], int(whole) * 1_000 + int(fraction.ljust(3, "0") or 0))
