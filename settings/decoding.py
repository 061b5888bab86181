"""What reading others' JSON or MessagePack raises."""

from typing import Final

import msgspec

DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
"""Neither of the last two is msgspec's own: bytes that are no UTF-8 or text with half a surrogate pair, and lists within lists without end."""
