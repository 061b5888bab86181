"""Signing in with one OpenID provider: the authorization code flow with PKCE, state and nonce (OpenID Connect Core, 3.1)."""

import contextlib
import hmac
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from accounts.people.oidc import Identity, identity_of
from accounts.people.oidc_config import OidcSection
from dashboards.openid.cached_fetch import CachedFetch
from dashboards.openid.client import Tokens, authorization_address, exchange
from dashboards.openid.description import Description, describe
from dashboards.openid.fetch import ProviderHttp
from dashboards.openid.id_token import Expected, claims_of, header_of
from dashboards.openid.openid_errors import ProviderFailed, SignInStopped, TokenUnsound
from dashboards.openid.pending import PendingSignIn, PendingSignIns
from dashboards.openid.signing_keys import SigningKeys

MAX_CODE_CHARS: Final = 4_096
MAX_AT_ONCE: Final = 64
"""Sign-ins that wait for this provider; it is slower than that only when it is broken."""
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
    """Where the browser goes, and what it keeps meanwhile."""

    address: str
    cookie: str


class SignInResult(msgspec.Struct, frozen=True, kw_only=True):
    """Who came back, and where they wanted to go."""

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
        self._begun = begun
        self._now_us = now_us
        self._http = ProviderHttp(section)
        self._description = CachedFetch(lambda: describe(self._http, section), section.label, clock)
        self._keys = SigningKeys(self._fetch_keys, section.label, clock)
        self._running = 0

    async def begin(self, next_path: str) -> SignInStart:
        """Raises SignInStopped."""
        with self._place():
            description = await self._description.now()
        begun = self._begun.begin(self.section.name, next_path)
        address = authorization_address(self.section, description, self.redirect_uri, self._begun.secrets_of(begun))
        return SignInStart(address=address, cookie=self._begun.cookie(begun))

    async def finish(self, cookie: str | None, answer: Sequence[tuple[str, str]]) -> SignInResult:
        """Who the provider says this is. Raises SignInStopped, and IdentityRefused for somebody who is kept out."""
        begun = self._own(cookie, answer)
        with self._place():
            description = await self._description.now()
            code = self._code(answer, description)
            made = self._begun.secrets_of(begun)
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

    def _own(self, cookie: str | None, answer: Sequence[tuple[str, str]]) -> PendingSignIn:
        """The sign-in that this browser began and this answer belongs to; each is taken once."""
        begun = None if cookie is None else self._begun.read(cookie)
        if begun is None or begun.provider != self.section.name:
            raise SignInStopped(
                "callback: no sign-in was begun in this browser",
                "This sign-in was not begun in this browser, or more than ten minutes ago. Start again; cookies must be allowed.",
            )
        state = _only(answer, "state") or ""
        if not hmac.compare_digest(state.encode(), self._begun.secrets_of(begun).state.encode()):
            raise SignInStopped(
                "callback: wrong state",
                "This answer does not belong to the sign-in that was begun last in this browser. Start again.",
            )
        if not self._begun.take(begun):
            raise SignInStopped("callback: used before", "This sign-in was used already. Start again.")
        return begun

    def _code(self, answer: Sequence[tuple[str, str]], description: Description) -> str:
        issuer = _only(answer, "iss")
        # RFC 9207: an answer of another provider, which some mix-up sent here, is not taken.
        is_missing = issuer is None and description.authorization_response_iss_parameter_supported
        if is_missing or (issuer is not None and issuer != self.section.issuer):
            raise SignInStopped("callback: another issuer", "This answer comes from another provider. Start again.")
        error, code = _only(answer, "error"), _only(answer, "code")
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
        """Whether nothing is missing that decides about anything."""
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
    def _place(self) -> Iterator[None]:
        """One of the sign-ins that may wait for the provider at once."""
        if self._running >= MAX_AT_ONCE:
            raise ProviderFailed(f"busy: {MAX_AT_ONCE} sign-ins wait for it", self.section.label, late=True)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


def joined(claims: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Both, the signed ones first. An e-mail address and whether it was verified come from the same place."""
    pair = {"email", "email_verified"}
    from_more = "email" in more and not pair <= claims.keys()
    address = more if from_more else claims
    whole = {**more, **claims}
    for name in pair:
        whole.pop(name, None)
        if name in address:
            whole[name] = address[name]
    return whole


def _only(answer: Sequence[tuple[str, str]], name: str) -> str | None:
    """A parameter's value. Raises SignInStopped when it was sent more than once."""
    found = [value for key, value in answer if key == name]
    if len(found) > 1:
        raise SignInStopped(f"callback: {name} more than once", "The answer is not as it should be. Start again.")
    return found[0] if found else None
