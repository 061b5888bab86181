"""Validation of ID tokens: issuer, audience, nonce, signature and times (OpenID Connect Core, 3.1.3.7). No I/O."""

from collections.abc import Collection
from typing import Any, Final

import msgspec
from authlib.oidc.core import CodeIDToken
from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import Key

from accounts.openid.openid_errors import TokenUnsound

LEEWAY_S: Final = 60
"""Tolerated difference between the provider's clock and ours, in seconds."""
MAX_HEADER_BYTES: Final = 8_192
"""Largest token header; some providers put certificates into it."""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """Values that the token's claims must match."""

    issuer: str
    client_id: str
    nonce: str
    access_token: str | None
    label: str

    def __repr__(self) -> str:
        return f"Expected(issuer={self.issuer!r}, client_id={self.client_id!r}, nonce=<hidden>)"


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The token's header, unverified until the signature is checked."""

    algorithm: str
    key_id: str | None


def header_of(token: str, algorithms: Collection[str], label: str) -> Header:
    """Return the header of a signed token. Raises TokenUnsound where it is malformed or its algorithm is not accepted."""
    try:
        headers = jws.extract_compact(token.encode(), registry=_registry(algorithms)).headers()
    except (JoseError, ValueError) as failure:
        raise TokenUnsound("the ID token is not a signed token", label) from failure
    algorithm, key_id = headers.get("alg"), headers.get("kid")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise TokenUnsound("the ID token is not signed with an accepted algorithm", label)
    return Header(algorithm=algorithm, key_id=key_id if isinstance(key_id, str) else None)


def claims_of(token: str, header: Header, key: Key, expected: Expected, now_s: int) -> dict[str, Any]:
    """Return the claims of a token whose signature and claims were verified. Raises TokenUnsound."""
    try:
        decoded = jwt.decode(token, key, registry=_registry([header.algorithm]))
    except (JoseError, ValueError) as failure:
        raise TokenUnsound("the ID token's signature does not fit", expected.label) from failure
    options = {
        "iss": {"essential": True, "value": expected.issuer},
        "sub": {"essential": True},
        "aud": {"essential": True, "value": expected.client_id},
        "exp": {"essential": True},
        "iat": {"essential": True},
        "nonce": {"essential": True, "value": expected.nonce},
    }
    params = {"nonce": expected.nonce, "client_id": expected.client_id, "access_token": expected.access_token}
    claims = CodeIDToken(decoded.claims, decoded.header, options, params)
    try:
        claims.validate(now=now_s, leeway=LEEWAY_S)
    except JoseError as failure:
        # `error` and `claim` are names of the standard; the values stay out of logs and pages.
        wrong = getattr(failure, "claim", "") or failure.error
        raise TokenUnsound(f"the ID token's {wrong} is not what it must be", expected.label) from failure
    except (TypeError, ValueError, AttributeError) as failure:
        raise TokenUnsound("the ID token has a claim of another form", expected.label) from failure
    return dict(claims)


def _registry(algorithms: Collection[str]) -> jws.JWSRegistry:
    # Other header parameters than the standard's are common and harmless; critical ones are refused all the same.
    registry = jws.JWSRegistry(algorithms=list(algorithms), strict_check_header=False)
    registry.max_header_length = MAX_HEADER_BYTES
    return registry
