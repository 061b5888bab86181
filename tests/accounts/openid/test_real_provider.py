"""Signing in with a real OpenID provider, up to who it says that somebody is."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import pytest
import pytest_asyncio

from accounts.openid.oidc import OidcProvider, SignInResult
from accounts.openid.openid_errors import SignInStopped, TokenUnsound
from accounts.openid.pending import PendingSignIns
from accounts.people.oidc_config import OidcSection
from cost.times import wall_us
from tests.oidc.real import PUBLIC_URL, RealProvider, browser, client, real_provider

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET: Final = "a secret + of/the tests%, 32 bytes and more"
ALICE: Final[dict[str, Any]] = {
    "email": "Alice@Example.com",
    "email_verified": True,
    "name": "Alice",
    "groups": ["payments", "weighbridge-admins"],
}
CLIENTS: Final = (
    client("basic", "idp"),
    client("post", "idp", token_endpoint_auth_method="client_secret_post"),
    client("public", "idp", token_endpoint_auth_method="none"),
    client("elliptic", "idp", id_token_signed_response_alg="ES256"),
)


def section(issuer: str, **fields: Any) -> OidcSection:
    return OidcSection(
        **{
            "name": "idp",
            "label": "the provider",
            "issuer": issuer,
            "client_id": "basic",
            "client_secret": "env:SECRET",
            "scopes": ("openid", "email", "profile", "groups"),
            "groups": ({"group": "payments", "team": "payments"},),
            "timeout_s": 30,
            **fields,
        }
    )


@contextlib.asynccontextmanager
async def opened(issuer: str, **fields: Any) -> AsyncIterator[OidcProvider]:
    chosen = section(issuer, **fields)
    secret = None if chosen.client_secret is None else SECRET
    begun = PendingSignIns(b"p" * 32, now_us=wall_us)
    provider = OidcProvider(chosen, PUBLIC_URL, secret, begun, now_us=wall_us)
    try:
        yield provider
    finally:
        await provider.aclose()


async def sign_in(provider: OidcProvider, login: str = "alice") -> SignInResult:
    begun = await provider.begin("/dashboard/teams")
    async with browser() as person:
        came = await person.sign_in(begun.address, login)
    return await provider.finish(begun.cookie, parse_qsl(urlsplit(came.address).query))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[True, False], ids=["thin", "fat"])
async def real(request: pytest.FixtureRequest) -> AsyncIterator[RealProvider]:
    async with real_provider(CLIENTS, {"alice": ALICE}, thin=request.param) as running:
        yield running


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"client_id": "post", "client_authentication": "client_secret_post"},
        {"client_id": "public", "client_secret": None},
        {"client_id": "elliptic"},
    ],
    ids=["basic", "post", "public", "elliptic"],
)
async def test_somebody_signs_in(real: RealProvider, fields: Mapping[str, Any]) -> None:
    """Whichever way the gateway shows who it is and wherever the claims are, the person arrives with address and groups."""
    async with opened(real.issuer, **fields) as provider:
        finished = await sign_in(provider)
    assert finished.next_path == "/dashboard/teams"
    assert finished.identity.issuer == real.issuer
    assert finished.identity.subject == "alice"
    assert finished.identity.email == "alice@example.com"
    assert finished.identity.name == "Alice"
    assert finished.identity.groups == frozenset(ALICE["groups"])


async def test_new_keys_are_found(real: RealProvider) -> None:
    """A provider that signs with a key that was not there before is believed after one look at its keys, and only one."""
    async with opened(real.issuer) as provider:
        await sign_in(provider)
        await real.rotate()
        assert (await sign_in(provider)).identity.subject == "alice"
        await real.rotate()
        with pytest.raises(TokenUnsound, match="does not publish"):
            await sign_in(provider)


async def test_a_code_is_good_once(real: RealProvider) -> None:
    """The provider takes no code again, and the gateway sends it none for a sign-in that was used."""
    async with opened(real.issuer) as provider:
        begun = await provider.begin("")
        async with browser() as person:
            answer = parse_qsl(urlsplit((await person.sign_in(begun.address, "alice")).address).query)
        await provider.finish(begun.cookie, answer)
        with pytest.raises(SignInStopped, match="used before"):
            await provider.finish(begun.cookie, answer)
    # Another process has not seen it; there the provider refuses.
    async with opened(real.issuer) as other:
        with pytest.raises(SignInStopped, match="invalid_grant"):
            await other.finish(begun.cookie, answer)


async def test_who_changes_their_mind_is_told(real: RealProvider) -> None:
    """Leaving the provider's page ends as its refusal, in our words."""
    async with opened(real.issuer) as provider:
        begun = await provider.begin("")
        async with browser() as person:
            came = await person.sign_in(begun.address, "alice", abort=True)
        with pytest.raises(SignInStopped, match="access_denied") as stopped:
            await provider.finish(begun.cookie, parse_qsl(urlsplit(came.address).query))
    assert stopped.value.status == 403
    assert "did not let you in" in stopped.value.message


async def test_a_wrong_secret_is_said(real: RealProvider) -> None:
    """A gateway that the provider does not accept says so to whom it concerns, without the secret."""
    begun = PendingSignIns(b"p" * 32, now_us=wall_us)
    provider = OidcProvider(section(real.issuer), PUBLIC_URL, "another secret", begun, now_us=wall_us)
    try:
        with pytest.raises(SignInStopped, match="invalid_client") as stopped:
            await sign_in(provider)
    finally:
        await provider.aclose()
    assert "another secret" not in stopped.value.message
