"""In which service tier a line is asked for: the cheap one while there is time for it. Pure."""

from typing import Final

import msgspec

from proxy.batch.batch import ClaimedLine
from proxy.batch.scheduler import Laxity

MOST_FLEX: Final = 3
"""Beginnings of one line that are tried in the tier flex; a provider that has no room there refuses the next one, too."""
_SOLD_FOR: Final = frozenset({"/v1/chat/completions", "/v1/responses"})


def takes_flex(laxity: Laxity, line: ClaimedLine, endpoint: str) -> bool:
    """Whether a line is asked for in the service tier flex, which is slower, cheaper, and may have no room.

    Only while its batch has time to spare, so never where the speed is not known yet, and only while the line has not failed
    and was not begun often: what flex does not answer is asked in the usual tier with the time that is left.
    """
    relaxed = laxity.pressure == 0
    return relaxed and line.failures == 0 and line.generation <= MOST_FLEX and endpoint in _SOLD_FOR


def in_flex(body: bytes) -> bytes:
    """The body of a line, asking for flex unless it names a service tier itself. Raises msgspec.MsgspecError."""
    fields = _decode(body)
    if "service_tier" in fields:
        return body
    return _encode({**fields, "service_tier": "flex"})


_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode
