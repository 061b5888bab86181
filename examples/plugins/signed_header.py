"""An authenticator: a portal before the gateway signs who its user is, `x-portal-user: team/key/expiry/signature`."""

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass

from weighbridge.plugins import Identity

HEADER = "x-portal-user"


@dataclass(frozen=True)
class Portal:
    """What the configuration's `settings` may say."""

    secret: str
    """Shared with the portal; write it as env:NAME."""


class SignedHeader:
    protocol = 1
    Settings = Portal

    def __init__(self, settings: Portal) -> None:
        self._secret = settings.secret.encode()

    async def caller(self, headers: Mapping[str, str]) -> Identity | None:
        team_id, _, rest = headers.get(HEADER, "").partition("/")
        key_name, _, rest = rest.partition("/")
        expiry, _, signature = rest.partition("/")
        wanted = hmac.new(self._secret, f"{team_id}/{key_name}/{expiry}".encode(), hashlib.sha256).hexdigest()
        if not expiry.isdecimal() or not hmac.compare_digest(signature.encode(), wanted.encode()):
            return None
        return Identity(team_id=team_id, key_name=key_name) if int(expiry) > time.time() else None
