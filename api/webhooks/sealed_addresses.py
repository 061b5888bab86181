"""Teams' addresses at rest: sealed under the pepper, because the rest of an address may be a secret that lets anybody post.

Alerts and the messages they put into the outbox hold the same sealed text; whoever sends, and a page that shows the host,
opens it.
"""

import base64
import binascii
from typing import Final

from api.webhooks.addresses import BadCallbackUrl
from proxy.responses.stored.sealing import CannotOpen, Sealing

MOST_CHARS: Final = 1_400
"""Longest address: sealed, any such text fits the 2,000 characters of its columns."""
PREFIX: Final = "sealed:"
_PLACE: Final = "address of an alert"


class SealedAddresses:
    """Seals addresses for a team, and opens them."""

    def __init__(self, sealing: Sealing) -> None:
        self._sealing = sealing

    async def ready(self) -> None:
        """Import what sealing needs, beside the loop."""
        await self._sealing.ready()

    def sealed(self, team_id: str, address: str) -> str:
        """Return the text that is kept of an address."""
        record = self._sealing.seal(team_id, _PLACE, address.encode())
        return f"{self.prefix}{base64.b64encode(record).decode()}"

    def opened(self, team_id: str, kept: str) -> str:
        """Return the address. One that was kept before addresses were sealed is returned as it is. Raises BadCallbackUrl."""
        if not kept.startswith(PREFIX):
            return kept
        pepper_id, _, record = kept.removeprefix(PREFIX).partition(":")
        try:
            found = self._sealing.open(
                team_id, _PLACE, pepper_id, base64.b64decode(record, validate=True), max_bytes=MOST_CHARS * 4
            )
        except (CannotOpen, binascii.Error) as error:
            raise BadCallbackUrl("was sealed under a pepper that is gone: enter it again") from error
        return found.decode()

    @property
    def prefix(self) -> str:
        """Beginning of every address that is sealed under the pepper in use."""
        return f"{PREFIX}{self._sealing.pepper_id}:"
