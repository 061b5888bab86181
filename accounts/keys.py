"""API keys: minting, parsing and hashing; a key itself is never stored.

A key reads `wb-<public id>-<secret><checksum>`. The checksum lets a mistyped or cut-off key be refused without a
lookup; it is no secret. What is stored is the HMAC-SHA256 of the whole key under a pepper that lives outside the
database, so a stolen database opens nothing.

A key of another gateway that was imported keeps its form, `sk-…` or what somebody chose. Of it that gateway knew the SHA-256 alone, so
the HMAC of that is stored. No text has both digests: what is digested here is either a key of ours, which has dashes, or 64
hexadecimal digits; and whoever presents such digits has them digested first, so they open nothing.
"""

import hashlib
import hmac
import re
import secrets
import zlib
from collections.abc import Callable
from typing import Final

import msgspec

from accounts.errors import MalformedKey, UnusablePepper
from settings.key_ids import successor_id

PREFIX: Final = "wb-"
PUBLIC_ID_CHARS: Final = 12
SECRET_BYTES: Final = 32
SECRET_CHARS: Final = 43
CHECKSUM_CHARS: Final = 6
KEY_CHARS: Final = len(PREFIX) + PUBLIC_ID_CHARS + 1 + SECRET_CHARS + CHECKSUM_CHARS
MIN_PEPPER_BYTES: Final = 32
LEAST_IMPORTED_CHARS: Final = 8
MOST_IMPORTED_CHARS: Final = 256

_TOKEN: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_BASE36: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SHAPE: Final = re.compile(
    rf"wb-(?P<public_id>[0-9a-z]{{{PUBLIC_ID_CHARS}}})-[0-9A-Za-z]{{{SECRET_CHARS + CHECKSUM_CHARS}}}", re.ASCII
)


class Pepper(msgspec.Struct, frozen=True, kw_only=True):
    """A secret kept outside the database. Its `id` is stored with each key, so that it can be rotated."""

    id: str
    secret: bytes

    def __post_init__(self) -> None:
        if len(self.secret) < MIN_PEPPER_BYTES:
            raise UnusablePepper(f"pepper {self.id!r} has {len(self.secret)} bytes; at least {MIN_PEPPER_BYTES} needed")

    def __repr__(self) -> str:
        return f"Pepper(id={self.id!r}, secret=<hidden>)"


class MintedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new key. `plaintext` is shown once to its owner and then dropped; `digest` is hexadecimal."""

    plaintext: str
    key_id: str
    digest: str
    last4: str
    pepper_id: str

    def __repr__(self) -> str:
        return f"MintedKey(key_id={self.key_id!r}, plaintext=<hidden>)"


class ParsedKey(msgspec.Struct, frozen=True, kw_only=True):
    """The public parts of a well-formed key."""

    key_id: str
    last4: str


def mint_key(
    pepper: Pepper, *, replaces: str = "", random_bytes: Callable[[int], bytes] = secrets.token_bytes
) -> MintedKey:
    """Return a new random key with its digest under `pepper`. `replaces` is the id of the key that it follows."""
    public_id = _public_id(random_bytes)
    secret = _in_base62(int.from_bytes(random_bytes(SECRET_BYTES)), SECRET_CHARS)
    body = f"{PREFIX}{public_id}-{secret}"
    plaintext = body + _checksum(body)
    return MintedKey(
        plaintext=plaintext,
        key_id=successor_id(replaces, _key_id(public_id)) if replaces else _key_id(public_id),
        digest=digest_key(plaintext, pepper).hex(),
        last4=plaintext[-4:],
        pepper_id=pepper.id,
    )


INCORRECT: Final = "Incorrect API key provided"
"""What OpenAI says, by which clients tell a wrong key from a wrong request: litellm's AuthenticationError."""


def parse_key(presented: str) -> ParsedKey:
    """Return the public parts of a key, found without a lookup. Raises MalformedKey for a wrong shape or checksum."""
    shape = _SHAPE.fullmatch(presented) if len(presented) == KEY_CHARS else None
    if shape is None:
        raise MalformedKey(f"{INCORRECT}: one looks like wb-<id>-<secret>, and this one does not")
    if not hmac.compare_digest(_checksum(presented[:-CHECKSUM_CHARS]), presented[-CHECKSUM_CHARS:]):
        raise MalformedKey(f"{INCORRECT}: its checksum does not fit; it was mistyped or cut off")
    return ParsedKey(key_id=_key_id(shape["public_id"]), last4=presented[-4:])


def digest_key(plaintext: str, pepper: Pepper) -> bytes:
    """Return the HMAC-SHA256 of the whole key, never of a part of it (CVE-2026-35030)."""
    return hmac.digest(pepper.secret, plaintext.encode(), "sha256")


def may_be_imported(presented: str) -> bool:
    """Return True for text that may be a key of another gateway: printable ASCII of a key's length, and not of our form."""
    return (
        LEAST_IMPORTED_CHARS <= len(presented) <= MOST_IMPORTED_CHARS
        and not presented.startswith(PREFIX)
        and presented.isascii()
        and presented.isprintable()
    )


def token_of(plaintext: str) -> str:
    """Return what another gateway stores of its key: the SHA-256 of the whole, hexadecimal."""
    return hashlib.sha256(plaintext.encode()).hexdigest()


def is_token(text: str) -> bool:
    """Return True for text of the form that `token_of` gives."""
    return _TOKEN.fullmatch(text) is not None


def digest_token(token: str, pepper: Pepper) -> bytes:
    """Return the digest of another gateway's key by what it stores of it. Raises MalformedKey for what is no such digest."""
    if not is_token(token):
        raise MalformedKey("another gateway's key is known by the 64 hexadecimal digits of its SHA-256")
    return hmac.digest(pepper.secret, token.encode(), "sha256")


def digest_presented(presented: str, pepper: Pepper) -> bytes:
    """Return the digest of a key of either kind, as it is stored."""
    if presented.startswith(PREFIX):
        return digest_key(presented, pepper)
    return digest_token(token_of(presented), pepper)


def imported_key(token: str, last4: str, pepper: Pepper, random_bytes: Callable[[int], bytes]) -> MintedKey:
    """Return another gateway's key as a row of ours. It has no plaintext: nobody here knows it."""
    return MintedKey(
        plaintext="",
        key_id=_key_id(_public_id(random_bytes)),
        digest=digest_token(token, pepper).hex(),
        last4=last4[-4:],
        pepper_id=pepper.id,
    )


def usable_peppers(peppers: tuple[Pepper, ...]) -> tuple[Pepper, ...]:
    """Return `peppers` unchanged, current one first. Raises UnusablePepper when there is none or two share an id."""
    if not peppers:
        raise UnusablePepper("at least one pepper is needed")
    if len({pepper.id for pepper in peppers}) != len(peppers):
        raise UnusablePepper("two peppers carry the same id")
    return peppers


def _public_id(random_bytes: Callable[[int], bytes]) -> str:
    # 16 bytes against 62 bits make the modulo's bias immaterial; the id is public anyway.
    return _in_base(int.from_bytes(random_bytes(16)) % 36**PUBLIC_ID_CHARS, _BASE36, PUBLIC_ID_CHARS)


def _key_id(public_id: str) -> str:
    return f"key_{public_id}"


def _checksum(body: str) -> str:
    return _in_base62(zlib.crc32(body.encode()), CHECKSUM_CHARS)


def _in_base62(number: int, chars: int) -> str:
    return _in_base(number, _BASE62, chars)


def _in_base(number: int, alphabet: str, chars: int) -> str:
    digits: list[str] = []
    for _ in range(chars):
        number, digit = divmod(number, len(alphabet))
        digits.append(alphabet[digit])
    return "".join(reversed(digits))
