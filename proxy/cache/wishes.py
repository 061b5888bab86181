"""What a request says of the cache, in the header `x-weighbridge-cache`."""

import re
from typing import Final

import msgspec

from proxy.errors import BadRequest

HEADER: Final = "x-weighbridge-cache"
_TTL: Final = re.compile(r"ttl=(?P<seconds>[0-9]{1,9})", re.ASCII)
_RULE: Final = (
    f"`{HEADER}` must be `ttl=SECONDS`, `no-cache`, `no-store`, or several of these with commas between them."
)


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """A caller's wishes. They only ever make less of what the configuration and the team allow."""

    ttl_s: int | None = None
    """The age of an answer that is good enough; None where the caller said nothing."""
    reads: bool = True
    """False for a caller that wants a new answer, whatever is kept."""
    stores: bool = True
    """False for one whose answer must not be kept."""


NO_WISHES: Final = Wishes()


def wishes_of(header: str | None) -> Wishes:
    """Return the wishes of a request. Raises BadRequest."""
    if header is None:
        return NO_WISHES
    ttl_s, reads, stores = None, True, True
    for word in header.lower().split(","):
        match word.strip():
            case "no-cache" | "refresh":
                reads = False
            case "no-store":
                stores = False
            case other:
                found = _TTL.fullmatch(other)
                if found is None:
                    raise BadRequest(_RULE, param=HEADER)
                ttl_s = int(found["seconds"])
    return Wishes(ttl_s=ttl_s, reads=reads, stores=stores)
