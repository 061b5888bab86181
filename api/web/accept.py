"""Content negotiation by the Accept header (RFC 9110, 12.5.1)."""

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
        """Return the specificity of the match: 0 for none, 1 for `*/*`, 2 for `type/*`, 3 for the exact type."""
        if f"{self.type}/{self.subtype}" == kind:
            return 3
        if self.subtype == "*" and self.type in {"*", kind.partition("/")[0]}:
            return 1 if self.type == "*" else 2
        return 0


def best_kind(accept: str | None, offered: Sequence[str]) -> str:
    """Return the offered media type with the highest quality, the first of equals; the first offered one without a header.
    Raises NotAcceptable.
    """
    if accept is None or not accept.strip():
        return offered[0]
    ranges = [found for part in accept[:_MAX_CHARS].split(",") if (found := _range(part)) is not None]
    likings = {kind: _quality(kind, ranges) for kind in offered}
    best = max(offered, key=likings.__getitem__)
    if likings[best] == 0:
        raise NotAcceptable(f"The reply can be {', '.join(offered)}; `Accept` takes none of these.", param="accept")
    return best


def _quality(kind: str, ranges: Sequence[_Range]) -> int:
    """Return the quality of a media type in thousandths. The most specific range decides, even where a wider one has a
    higher quality.
    """
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
