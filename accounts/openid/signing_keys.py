"""A provider's signing keys (JWKS): cached for an hour, and fetched again early when a token names an unknown key."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

from accounts.openid.cached_fetch import CachedFetch
from accounts.openid.openid_errors import TokenUnsound

REFETCH_S: Final = 60.0
"""Seconds between early fetches caused by unknown key ids."""
MAX_KEYS: Final = 100
MIN_RSA_BITS: Final = 2_048
_KINDS: Final[Mapping[str, type[Key]]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
_KIND_OF: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}


class SigningKeys:
    """One provider's signing keys."""

    def __init__(
        self, fetch: Callable[[], Awaitable[Mapping[str, Any]]], label: str, clock: Callable[[], float]
    ) -> None:
        self._fetch = fetch
        self._label = label
        self._clock = clock
        self._keys = CachedFetch(self._load, label, clock)
        self._lock = asyncio.Lock()
        self._refetched_s: float | None = None

    async def find(self, key_id: str | None, algorithm: str) -> Key:
        """Return the key of this id. Raises TokenUnsound, or ProviderFailed."""
        found = chosen(await self._keys.now(), key_id, algorithm)
        if found is None:
            # A waiter looks again first: the one before may have fetched the key.
            async with self._lock:
                found = chosen(await self._keys.now(), key_id, algorithm)
                if found is None and self._may_ask_again():
                    self._refetched_s = self._clock()
                    found = chosen(await self._keys.anew(), key_id, algorithm)
        if found is None:
            raise TokenUnsound("the ID token is signed with a key that the provider does not publish", self._label)
        return found

    def _may_ask_again(self) -> bool:
        return self._refetched_s is None or self._clock() - self._refetched_s >= REFETCH_S

    async def _load(self) -> tuple[Key, ...]:
        return usable(await self._fetch())


def usable(found: Mapping[str, Any]) -> tuple[Key, ...]:
    """Return the public signature keys of a key set; those that are not understood are skipped, as RFC 7517 requires."""
    listed = found.get("keys")
    keys = []
    for data in listed[:MAX_KEYS] if isinstance(listed, list) else ():
        key = _key(data)
        if key is not None:
            keys.append(key)
    return tuple(keys)


def chosen(keys: Sequence[Key], key_id: str | None, algorithm: str) -> Key | None:
    """Return the key of this id that fits the algorithm, or None; without an id, the only key that fits."""
    kind = _KIND_OF.get(algorithm[:2])
    fitting = [key for key in keys if key.key_type == kind and key.get("alg") in (None, algorithm)]
    if key_id is not None:
        return next((key for key in fitting if key.get("kid") == key_id), None)
    return fitting[0] if len(fitting) == 1 else None


def _key(data: Any) -> Key | None:
    # A published symmetric key is skipped: anybody could sign with it.
    kind = data.get("kty") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS or data.get("use", "sig") != "sig":
        return None
    if kind == "RSA" and len(str(data.get("n", ""))) * 6 < MIN_RSA_BITS:
        return None
    try:
        key = _KINDS[kind].import_key(data)
        public = key.public_key
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return None if isinstance(public, RSAPublicKey) and public.key_size < MIN_RSA_BITS else key
