"""Sign-in with one OpenID provider: the authorization code flow with PKCE, state and nonce (OpenID Connect Core, 3.1)."""

import contextlib
import hmac
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from accounts.openid.cached_fetch import CachedFetch
from accounts.openid.client import Tokens, authorization_address, exchange
from accounts.openid.description import Description, describe
from accounts.openid.fetch import ProviderHttp
from accounts.openid.id_token import Expected, claims_of, header_of
from accounts.openid.openid_errors import ProviderFailed, SignInStopped, TokenUnsound
from accounts.openid.pending import PendingSignIn, PendingSignIns
from accounts.openid.signing_keys import SigningKeys
from accounts.people.oidc import Identity, identity_of
from accounts.people.oidc_config import OidcSection

MAX_CODE_CHARS: Final = 4_096
MAX_AT_ONCE: Final = 64
"""Most sign-ins that wait for one provider at once; only a broken provider makes more wait."""
_SECOND_US: Final = 1_000_000
# What a provider may say instead of a code (RFC 6749 and OpenID Connect Core), in words. Its own text is never shown:
# whoever makes a link writes it.
_SAID: Final = {
    "access_denied": "did not let you in",
    "temporarily_unavailable": "is not available right now",
    "server_error": "failed",
    "login_required": "wants you to sign in there first",
    "interaction_required": "wants something of you there first",
    "account_selection_required": "wants you to choose an account there first",
    "consent_required": "needs your consent first",
}


class SignInStart(msgspec.Struct, frozen=True, kw_only=True):
    """Address to redirect the browser to, and the cookie it keeps until the callback."""

    address: str
    cookie: str


class SignInResult(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a completed sign-in, and the page to continue to."""

    identity: Identity
    next_path: str


class OidcProvider:
    """One configured provider."""

    def __init__(
        self,
        section: OidcSection,
        public_url: str,
        secret: str | None,
        begun: PendingSignIns,
        *,
        now_us: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.section: Final = section
        self.redirect_uri: Final = f"{public_url}/dashboard/sign-in/{section.name}/callback"
        self._secret = secret
        self._pending = begun
        self._now_us = now_us
        self._http = ProviderHttp(section)
        self._description = CachedFetch(lambda: describe(self._http, section), section.label, clock)
        self._keys = SigningKeys(self._fetch_keys, section.label, clock)
        self._running = 0

    async def begin(self, next_path: str) -> SignInStart:
        """Begin a sign-in. Raises SignInStopped."""
        with self._slot():
            description = await self._description.now()
        begun = self._pending.begin(self.section.name, next_path)
        address = authorization_address(self.section, description, self.redirect_uri, self._pending.secrets_of(begun))
        return SignInStart(address=address, cookie=self._pending.cookie(begun))

    async def finish(self, cookie: str | None, answer: Sequence[tuple[str, str]]) -> SignInResult:
        """Return the identity from the provider's callback. Raises SignInStopped, and IdentityRefused for an identity
        that the configuration keeps out.
        """
        begun = self._take_pending(cookie, answer)
        with self._slot():
            description = await self._description.now()
            code = self._code(answer, description)
            made = self._pending.secrets_of(begun)
            tokens = await exchange(
                self._http,
                self.section,
                description,
                self._secret,
                code=code,
                verifier=made.verifier,
                redirect_uri=self.redirect_uri,
            )
            claims = await self._claims(tokens, description, made.nonce)
        return SignInResult(identity=identity_of(claims, self.section), next_path=begun.next_path)

    async def aclose(self) -> None:
        await self._http.aclose()

    def _take_pending(self, cookie: str | None, answer: Sequence[tuple[str, str]]) -> PendingSignIn:
        """Return the pending sign-in of this browser and callback. Each is accepted once. Raises SignInStopped."""
        begun = None if cookie is None else self._pending.read(cookie)
        if begun is None or begun.provider != self.section.name:
            raise SignInStopped(
                "callback: no sign-in was begun in this browser",
                "This sign-in was not begun in this browser, or more than ten minutes ago. Start again; cookies must be allowed.",
            )
        state = _single(answer, "state") or ""
        if not hmac.compare_digest(state.encode(), self._pending.secrets_of(begun).state.encode()):
            raise SignInStopped(
                "callback: wrong state",
                "This answer does not belong to the sign-in that was begun last in this browser. Start again.",
            )
        if not self._pending.take(begun):
            raise SignInStopped("callback: used before", "This sign-in was used already. Start again.")
        return begun

    def _code(self, answer: Sequence[tuple[str, str]], description: Description) -> str:
        issuer = _single(answer, "iss")
        # RFC 9207: an answer of another provider, which some mix-up sent here, is not taken.
        is_missing = issuer is None and description.authorization_response_iss_parameter_supported
        if is_missing or (issuer is not None and issuer != self.section.issuer):
            raise SignInStopped("callback: another issuer", "This answer comes from another provider. Start again.")
        error, code = _single(answer, "error"), _single(answer, "code")
        if error is not None:
            known = error if error in _SAID else "another error"
            raise SignInStopped(
                f"callback: the provider said {known}",
                f"{self.section.label} {_SAID.get(error, 'ended the sign-in')}. Start again, or ask your administrators.",
                status=403 if error == "access_denied" else 400,
            )
        if not code or len(code) > MAX_CODE_CHARS:
            raise SignInStopped("callback: no code", "The answer is not complete. Start again.")
        return code

    async def _claims(self, tokens: Tokens, description: Description, nonce: str) -> dict[str, Any]:
        label = self.section.label
        header = header_of(tokens.id_token, description.algorithms, label)
        key = await self._keys.find(header.key_id, header.algorithm)
        expected = Expected(
            issuer=self.section.issuer,
            client_id=self.section.client_id,
            nonce=nonce,
            access_token=tokens.access_token,
            label=label,
        )
        claims = claims_of(tokens.id_token, header, key, expected, self._now_us() // _SECOND_US)
        if description.userinfo_endpoint is None or self._is_complete(claims):
            return claims
        more = await self._http.get("userinfo", description.userinfo_endpoint, bearer=tokens.access_token)
        if more.get("sub") != claims["sub"]:
            raise TokenUnsound("the claims are about somebody else than the ID token", label)
        return joined(claims, more)

    def _is_complete(self, claims: dict[str, Any]) -> bool:
        """Return True if the ID token has every claim that decides access, so that userinfo need not be fetched."""
        section = self.section
        groups_matter = bool(section.groups or section.required_groups)
        root = section.groups_claim if section.groups_claim in claims else section.groups_claim.split(".")[0]
        elsewhere = claims.get("_claim_names")
        has_groups = root in claims or (isinstance(elsewhere, dict) and section.groups_claim in elsewhere)
        has_email = "email" in claims and ("email_verified" in claims or section.emails_are_verified)
        return has_email and (has_groups or not groups_matter)

    async def _fetch_keys(self) -> dict[str, Any]:
        description = await self._description.now()
        return await self._http.get("keys", description.jwks_uri)

    @contextlib.contextmanager
    def _slot(self) -> Iterator[None]:
        """Hold one of the MAX_AT_ONCE places. Raises ProviderFailed when all are taken."""
        if self._running >= MAX_AT_ONCE:
            raise ProviderFailed(f"busy: {MAX_AT_ONCE} sign-ins wait for it", self.section.label, late=True)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


def joined(claims: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return the ID token claims merged with userinfo claims, the signed ones first. `email` and `email_verified` come
    from the same source.
    """
    pair = {"email", "email_verified"}
    from_more = "email" in more and not pair <= claims.keys()
    address = more if from_more else claims
    whole = {**more, **claims}
    for name in pair:
        whole.pop(name, None)
        if name in address:
            whole[name] = address[name]
    return whole


def _single(answer: Sequence[tuple[str, str]], name: str) -> str | None:
    """Return a parameter's value, or None. Raises SignInStopped when it was sent more than once."""
    found = [value for key, value in answer if key == name]
    if len(found) > 1:
        raise SignInStopped(f"callback: {name} more than once", "The answer is not as it should be. Start again.")
    return found[0] if found else None
