"""Authlib's OAuth 2.0 client over this package's HTTP: the authorization address, and the exchange of a code for
tokens.
"""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote_plus

from authlib.oauth2.client import OAuth2Client

from accounts.openid.description import Description
from accounts.openid.fetch import ProviderHttp
from accounts.openid.openid_errors import ProviderFailed, SignInStopped
from accounts.openid.pending import Secrets
from accounts.people.oidc_config import OidcSection

# Codes of RFC 6749; whatever else a provider sends is not repeated.
_TOKEN_ERRORS: Final = frozenset(
    {
        "invalid_request",
        "invalid_client",
        "invalid_grant",
        "unauthorized_client",
        "unsupported_grant_type",
        "invalid_scope",
    }
)


class Tokens:
    """The token response of a code exchange."""

    def __init__(self, found: Mapping[str, Any], label: str) -> None:
        id_token, access_token = found.get("id_token"), found.get("access_token")
        if not isinstance(id_token, str) or not isinstance(access_token, str):
            raise ProviderFailed("tokens: no ID token", label)
        if str(found.get("token_type")).lower() != "bearer":
            raise ProviderFailed("tokens: of another type than Bearer", label)
        self.id_token = id_token
        self.access_token = access_token


def authorization_address(section: OidcSection, description: Description, redirect_uri: str, begun: Secrets) -> str:
    """Return the address of the provider's sign-in, which redirects back with a code."""
    client = OAuth2Client(
        None,
        client_id=section.client_id,
        scope=" ".join(section.scopes),
        redirect_uri=redirect_uri,
        code_challenge_method="S256",
    )
    asked = {"prompt": section.prompt} if section.prompt is not None else {}
    address, _ = client.create_authorization_url(
        description.authorization_endpoint,
        state=begun.state,
        nonce=begun.nonce,
        code_verifier=begun.verifier,
        **asked,
    )
    return str(address)


async def exchange(
    http: ProviderHttp,
    section: OidcSection,
    description: Description,
    secret: str | None,
    *,
    code: str,
    verifier: str,
    redirect_uri: str,
) -> Tokens:
    """Return the tokens for a code. Raises ProviderFailed, or SignInStopped when the provider refuses the code."""
    client = _TokenClient(http, section, description, secret, redirect_uri)
    found = await client.fetch_token(
        description.token_endpoint, grant_type="authorization_code", code=code, code_verifier=verifier
    )
    if "error" in found:
        raise _refused(found["error"], section.label)
    return Tokens(found, section.label)


class _TokenClient(OAuth2Client):  # type: ignore[misc]  # Authlib has no types
    """Authlib's client with its transport replaced, by the hook that its requests and httpx clients override too."""

    def __init__(
        self, http: ProviderHttp, section: OidcSection, description: Description, secret: str | None, redirect_uri: str
    ) -> None:
        super().__init__(
            None,
            client_id=section.client_id,
            client_secret=secret,
            token_endpoint_auth_method=_authentication(section, description),
            redirect_uri=redirect_uri,
        )
        self._http = http
        # Authlib's own leaves id and secret as they are, which RFC 6749 (2.3.1) wants encoded.
        self.register_client_auth_method(("client_secret_basic", _basic))

    async def _fetch_token(
        self, url: str, body: str = "", headers: Any = None, auth: Any = None, method: str = "POST", **_: Any
    ) -> dict[str, Any]:
        address, sent, form = auth.prepare(method, url, dict(headers or {}), body)
        return await self._http.post("tokens", address, sent, form)


def _basic(client: Any, _method: str, uri: str, headers: dict[str, str], body: str) -> tuple[str, dict[str, str], str]:
    pair = f"{quote_plus(client.client_id)}:{quote_plus(client.client_secret)}"
    return uri, {**headers, "Authorization": f"Basic {b64encode(pair.encode()).decode()}"}, body


def _authentication(section: OidcSection, description: Description) -> str:
    if section.client_secret is None:
        return "none"
    if section.client_authentication is not None:
        return section.client_authentication
    offered = description.token_endpoint_auth_methods_supported
    only_post = "client_secret_basic" not in offered and "client_secret_post" in offered
    return "client_secret_post" if only_post else "client_secret_basic"


def _refused(error: object, label: str) -> SignInStopped:
    code = error if isinstance(error, str) and error in _TOKEN_ERRORS else "another error"
    if code == "invalid_client":
        told = f"{label} does not accept this gateway. Tell your administrators that its client id or secret is wrong."
    else:
        told = f"{label} did not accept the sign-in: it was used before, or took too long. Start again."
    return SignInStopped(f"tokens: refused with {code}", told, status=502 if code == "invalid_client" else 400)
