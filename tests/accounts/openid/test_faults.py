"""What a provider, or somebody in its place, may do wrong: nobody is signed in, quickly, and the reason says why."""

import base64
import hashlib
import hmac
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import web
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from accounts.openid.cached_fetch import KEPT_S
from accounts.openid.fetch import MAX_BYTES
from accounts.openid.oidc import MAX_AT_ONCE, OidcProvider, SignInResult
from accounts.openid.openid_errors import ProviderFailed, SignInStopped, SsoUnusable, TokenUnsound
from accounts.openid.pending import PendingSignIns
from accounts.openid.signing_keys import REFETCH_S, usable
from accounts.people.oidc_config import OidcSection
from tests.oidc.scripted import CLIENT, CODE, DESCRIPTION, NOW_S, ScriptedProvider, scripted_provider
from tests.selfhosted.discovery import authorities

pytestmark = pytest.mark.story

SECRET: Final = "a client secret of the tests, 32 bytes"
PUBLIC_URL: Final = "https://weighbridge.example"
Spoil = Callable[[ScriptedProvider], None]


class Site:
    """One gateway's side of it, with clocks that stand still until they are set."""

    def __init__(self, scripted: ScriptedProvider, **fields: Any) -> None:
        self.scripted = scripted
        self.now_s: float = NOW_S
        self.clock_s = 1_000.0
        section = OidcSection(
            **{
                "name": "idp",
                "label": "the provider",
                "issuer": scripted.issuer,
                "client_id": CLIENT,
                "client_secret": "env:SECRET",
                "timeout_s": 60,
                **fields,
            }
        )
        self.begun = PendingSignIns(b"p" * 32, now_us=self.now_us)
        self.provider = OidcProvider(
            section, PUBLIC_URL, SECRET, self.begun, now_us=self.now_us, clock=lambda: self.clock_s
        )

    def now_us(self) -> int:
        return int(self.now_s * 1_000_000)

    async def sign_in(self) -> SignInResult:
        begun = await self.provider.begin("/dashboard/teams")
        state = self.scripted.remember(begun.address)
        return await self.provider.finish(begun.cookie, [("state", state), ("code", CODE)])


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedProvider]:
    async with scripted_provider() as running:
        yield running


@pytest.fixture
async def site(scripted: ScriptedProvider) -> AsyncIterator[Site]:
    made = Site(scripted)
    yield made
    await made.provider.aclose()


def set_claims(**claims: Any) -> Spoil:
    return lambda scripted: scripted.claims.update(claims)


def leave_out(*names: str) -> Spoil:
    return lambda scripted: setattr(scripted, "without", frozenset(names))


def describe(**fields: Any) -> Spoil:
    return lambda scripted: scripted.description.update(fields)


def signed_by(sign: Callable[[ScriptedProvider, dict[str, Any]], str]) -> Spoil:
    return lambda scripted: setattr(scripted, "sign", lambda claims: sign(scripted, claims))


def part(value: object) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def unsigned(scripted: ScriptedProvider, claims: dict[str, Any]) -> str:
    return f"{part({'alg': 'none', 'kid': 'key-1'})}.{part(claims)}."


def signed_with_the_public_key(scripted: ScriptedProvider, claims: dict[str, Any]) -> str:
    """RS256 taken for HS256: the published key as the shared secret."""
    public = scripted.key.as_pem(private=False)
    segments = f"{part({'alg': 'HS256', 'kid': 'key-1'})}.{part(claims)}"
    return f"{segments}.{part(hmac.digest(public, segments.encode(), hashlib.sha256))}"


def signed_with_the_client_secret(scripted: ScriptedProvider, claims: dict[str, Any]) -> str:
    key = OctKey.import_key(SECRET)
    return jwt.encode({"alg": "HS256", "kid": "key-1"}, claims, key, algorithms=["HS256"])


def signed_with_another_key(scripted: ScriptedProvider, claims: dict[str, Any]) -> str:
    return jwt.encode({"alg": "RS256", "kid": "key-1"}, claims, scripted.other_key, algorithms=["RS256"])


def bringing_its_key(scripted: ScriptedProvider, claims: dict[str, Any]) -> str:
    header = {"alg": "RS256", "kid": "key-2", "jwk": scripted.other_key.as_dict(private=False)}
    return jwt.encode(header, claims, scripted.other_key, algorithms=["RS256"])


def with_other_claims(scripted: ScriptedProvider, claims: dict[str, Any]) -> str:
    header, _, signature = scripted._signed(claims).split(".")
    return f"{header}.{part({**claims, 'sub': 'mallory'})}.{signature}"


def with_a_critical_header(scripted: ScriptedProvider, claims: dict[str, Any]) -> str:
    header = {"alg": "RS256", "kid": "key-1", "crit": ["exp"], "exp": 1}
    segments = f"{part(header)}.{part(claims)}"
    signature = scripted._signed(claims).split(".")[2]
    return f"{segments}.{signature}"


async def test_a_sound_answer_is_taken(site: Site) -> None:
    """What the faults below are faults of: the same answer without any."""
    finished = await site.sign_in()
    assert finished.identity.email == "alice@example.com"
    assert finished.identity.subject == "alice"
    assert finished.next_path == "/dashboard/teams"


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param(set_claims(nonce="another"), "nonce", id="nonce"),
        pytest.param(leave_out("nonce"), "nonce", id="no-nonce"),
        pytest.param(set_claims(exp=NOW_S - 61), "exp", id="expired"),
        pytest.param(leave_out("exp"), "exp", id="no-exp"),
        pytest.param(set_claims(exp="tomorrow"), "exp", id="exp-text"),
        pytest.param(set_claims(exp=float("inf")), "exp|signed|another form", id="exp-infinite"),
        pytest.param(set_claims(nbf=NOW_S + 120), "nbf", id="not-yet"),
        pytest.param(set_claims(iat=NOW_S + 120), "iat", id="from-tomorrow"),
        pytest.param(leave_out("iat"), "iat", id="no-iat"),
        pytest.param(set_claims(aud="another-client"), "aud|azp", id="aud"),
        pytest.param(set_claims(aud=["another-client"]), "aud|azp", id="aud-list"),
        pytest.param(leave_out("aud"), "aud", id="no-aud"),
        pytest.param(set_claims(aud=[CLIENT, "another"]), "azp", id="two-audiences"),
        pytest.param(set_claims(aud=[CLIENT, "another"], azp="another"), "azp", id="azp"),
        pytest.param(set_claims(azp="another"), "azp", id="azp-of-another"),
        pytest.param(set_claims(iss="https://another.example"), "iss", id="iss"),
        pytest.param(leave_out("iss"), "iss", id="no-iss"),
        pytest.param(leave_out("sub"), "sub", id="no-sub"),
        pytest.param(set_claims(sub=7), "sub", id="sub-number"),
        pytest.param(set_claims(at_hash="AAAA"), "at_hash", id="at-hash"),
        pytest.param(set_claims(at_hash=7), "at_hash", id="at-hash-number"),
        pytest.param(signed_by(unsigned), "accepted algorithm|not a signed", id="none"),
        pytest.param(signed_by(signed_with_the_public_key), "accepted algorithm", id="hs256-public-key"),
        pytest.param(signed_by(signed_with_the_client_secret), "accepted algorithm", id="hs256-secret"),
        pytest.param(signed_by(signed_with_another_key), "signature", id="another-key"),
        pytest.param(signed_by(bringing_its_key), "does not publish", id="own-key"),
        pytest.param(signed_by(with_other_claims), "signature", id="other-claims"),
        pytest.param(signed_by(with_a_critical_header), "signature|signed", id="critical"),
        pytest.param(signed_by(lambda *_: "a.b.c.d.e"), "not a signed token", id="encrypted"),
        pytest.param(signed_by(lambda *_: ""), "not a signed token", id="empty"),
        pytest.param(signed_by(lambda *_: "é.é.é"), "not a signed token", id="not-ascii"),
        pytest.param(signed_by(lambda *_: "A" * 500_000), "not a signed token", id="huge"),
    ],
)
async def test_an_unsound_token_signs_nobody_in(site: Site, spoil: Spoil, reason: str) -> None:
    """Each thing that the standard wants checked is checked, and the reason never repeats what was sent."""
    spoil(site.scripted)
    with pytest.raises(TokenUnsound, match=reason) as unsound:
        await site.sign_in()
    assert "another" not in unsound.value.reason.replace("another form", "")
    assert "mallory" not in unsound.value.message


async def test_symmetric_algorithms_are_refused_even_if_announced(site: Site) -> None:
    """A provider that says it signs with HS256 or not at all is not believed there either."""
    site.scripted.description["id_token_signing_alg_values_supported"] = ["RS256", "HS256", "none"]
    for sign in (unsigned, signed_with_the_public_key, signed_with_the_client_secret):
        signed_by(sign)(site.scripted)
        with pytest.raises(TokenUnsound):
            await site.sign_in()


async def test_two_audiences_are_fine_when_it_is_for_us(site: Site) -> None:
    """An ID token for several clients is taken when it was issued to this one."""
    site.scripted.claims |= {"aud": [CLIENT, "another"], "azp": CLIENT}
    assert (await site.sign_in()).identity.subject == "alice"


async def test_clocks_may_differ_by_a_minute(site: Site) -> None:
    """A token that expired some seconds ago by our clock is taken."""
    site.scripted.claims["exp"] = NOW_S - 59
    site.scripted.claims["iat"] = NOW_S + 59
    assert (await site.sign_in()).identity.subject == "alice"


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param(describe(issuer="https://another.example"), "issuer", id="issuer"),
        pytest.param(describe(token_endpoint="http://elsewhere.example/tokens"), "token_endpoint", id="plain-http"),
        pytest.param(describe(jwks_uri="file:///etc/passwd"), "jwks_uri", id="file"),
        pytest.param(describe(authorization_endpoint="javascript:alert(1)"), "authorization_endpoint", id="script"),
        pytest.param(describe(token_endpoint=7), "another form", id="number"),
        pytest.param(describe(jwks_uri=None), "incomplete", id="no-keys"),
        pytest.param(describe(id_token_signing_alg_values_supported=["HS256"]), "none of the algorithms", id="hs256"),
    ],
)
async def test_a_description_is_checked(site: Site, spoil: Spoil, reason: str) -> None:
    """Nobody is sent to a provider that describes itself as another, or leads where others can listen."""
    spoil(site.scripted)
    with pytest.raises(ProviderFailed, match=reason) as failed:
        await site.provider.begin("")
    assert failed.value.status == 502


BROKEN: Final[dict[str, tuple[Callable[[web.Request], web.StreamResponse], str]]] = {
    "error": (lambda _: web.json_response({}, status=500), "status 500"),
    "gone": (lambda _: web.Response(status=404), "status 404"),
    "page": (lambda _: web.Response(text="<html>Maintenance</html>"), "no JSON"),
    "list": (lambda _: web.json_response([1]), "no JSON object"),
    "deep": (lambda _: web.Response(text="[" * 100_000), "no JSON"),
    "huge": (lambda _: web.Response(body=b" " * (MAX_BYTES + 1)), "more than"),
    "redirect": (lambda _: web.Response(status=302, headers={"location": "http://127.0.0.1:1/"}), "status 302"),
    "compressed": (
        lambda _: web.Response(body=b"\x1f\x8b\x08\x00", headers={"content-encoding": "gzip"}),
        "no JSON",
    ),
}


@pytest.mark.parametrize("where", [DESCRIPTION, "/keys", "/tokens", "/me"])
@pytest.mark.parametrize("how", BROKEN)
async def test_a_broken_provider_is_told_apart(site: Site, where: str, how: str) -> None:
    """Whatever breaks where, the person is told that it is the provider, and the log which part of it."""
    answer, reason = BROKEN[how]
    site.scripted.without = frozenset({"email"})
    site.scripted.instead[where] = answer
    with pytest.raises(ProviderFailed, match=reason) as failed:
        await site.sign_in()
    assert failed.value.status == 502
    assert "the provider" in failed.value.message


@pytest.mark.parametrize("where", [DESCRIPTION, "/keys", "/tokens", "/me"])
async def test_a_provider_that_hangs_is_given_up(scripted: ScriptedProvider, where: str) -> None:
    """Nobody waits longer than configured, wherever it hangs."""
    hasty = Site(scripted, timeout_s=0.2)
    scripted.without = frozenset({"email"})
    scripted.instead[where] = lambda _: None
    try:
        with pytest.raises(ProviderFailed, match="no answer within") as failed:
            await hasty.sign_in()
    finally:
        await hasty.provider.aclose()
    assert failed.value.status == 504


async def test_a_failed_provider_rests(site: Site) -> None:
    """Everybody who presses the button in the next seconds is told at once, without asking the provider again."""
    site.scripted.instead[DESCRIPTION] = lambda _: web.Response(status=500)
    for _ in range(3):
        with pytest.raises(ProviderFailed):
            await site.provider.begin("")
    assert site.scripted.times(DESCRIPTION) == 1
    del site.scripted.instead[DESCRIPTION]
    site.clock_s += 6
    await site.provider.begin("")


async def test_only_so_many_wait_for_it(site: Site) -> None:
    """A provider that hangs holds a bounded number of sign-ins; the next one is told at once."""
    site.provider._running = MAX_AT_ONCE
    with pytest.raises(ProviderFailed, match="busy"):
        await site.provider.begin("")


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ({"token_type": "DPoP"}, "another type"),
        ({"access_token": None}, "no ID token"),
        ({"id_token": None}, "no ID token"),
        ({"error": "invalid_grant", "error_description": "secret words"}, "invalid_grant"),
        ({"error": "<script>"}, "another error"),
        ({"error": ["invalid_grant"]}, "another error"),
    ],
)
async def test_odd_tokens_are_refused(site: Site, tokens: dict[str, Any], reason: str) -> None:
    """What is no pair of tokens is none, and the provider's own words are not repeated."""
    site.scripted.tokens |= tokens
    with pytest.raises(SignInStopped, match=reason) as stopped:
        await site.sign_in()
    assert "script" not in stopped.value.message
    assert "secret words" not in stopped.value.message + stopped.value.reason


async def test_a_new_key_is_fetched_once_a_minute(site: Site) -> None:
    """A token of an unknown key makes the gateway look once, not each time; the hour's end makes it look anyway."""
    await site.sign_in()
    assert site.scripted.times("/keys") == 1
    site.scripted.header = {"alg": "RS256", "kid": "key-2"}
    site.scripted.key = site.scripted.other_key
    for _ in range(3):
        with pytest.raises(TokenUnsound, match="does not publish"):
            await site.sign_in()
    assert site.scripted.times("/keys") == 2
    site.scripted.keys.append(site.scripted.other_key.as_dict(private=False))
    site.clock_s += REFETCH_S
    await site.sign_in()
    assert site.scripted.times("/keys") == 3
    site.clock_s += KEPT_S
    await site.sign_in()
    assert site.scripted.times("/keys") == 4


async def test_a_key_that_was_withdrawn_is_believed_for_an_hour_at_most(site: Site) -> None:
    """Keys are not kept for ever."""
    await site.sign_in()
    site.scripted.keys = [site.scripted.other_key.as_dict(private=False)]
    await site.sign_in()
    site.clock_s += KEPT_S
    with pytest.raises(TokenUnsound, match="does not publish"):
        await site.sign_in()


async def test_the_description_is_asked_for_once_an_hour(site: Site) -> None:
    """Many sign-ins need one look."""
    await site.sign_in()
    await site.sign_in()
    assert site.scripted.times(DESCRIPTION) == 1
    site.clock_s += 3_600
    await site.sign_in()
    assert site.scripted.times(DESCRIPTION) == 2


def test_only_public_signature_keys_of_some_strength_are_used() -> None:
    """Symmetric, weak, encryption and broken keys are passed over, and the others stay usable."""
    good = RSAKey.generate_key(2048, {"kid": "good"}).as_dict(private=False)
    weak = {**good, "kid": "weak", "n": part(b"\xff" * 128)}
    odd: list[object] = [
        {"kty": "oct", "k": part(b"secret" * 8), "kid": "oct"},
        {**good, "kid": "enc", "use": "enc"},
        {"kty": "RSA", "kid": "empty"},
        {"kty": ["RSA"]},
        {"kty": "AKP"},
        "key",
        7,
        weak,
    ]
    assert [key.kid for key in usable({"keys": [*odd, good]})] == ["good"]
    assert usable({"keys": "none"}) == ()


async def test_without_a_key_id_the_only_fitting_key_is_meant(site: Site) -> None:
    """A token that names no key is taken when there is no doubt, and refused when there is."""
    site.scripted.header = {"alg": "RS256"}
    await site.sign_in()
    site.scripted.keys.append(site.scripted.other_key.as_dict(private=False))
    site.clock_s += KEPT_S
    with pytest.raises(TokenUnsound, match="does not publish"):
        await site.sign_in()


async def test_claims_about_somebody_else_are_refused(site: Site) -> None:
    """The userinfo endpoint must speak of whom the ID token names."""
    site.scripted.without = frozenset({"email"})
    site.scripted.userinfo = {"sub": "bob", "email": "bob@example.com", "email_verified": True}
    with pytest.raises(TokenUnsound, match="somebody else"):
        await site.sign_in()


async def test_an_address_and_its_verification_come_together(site: Site) -> None:
    """That one place vouches for its address says nothing of another place's address."""
    site.scripted.claims |= {"email": "mallory@example.com"}
    site.scripted.without = frozenset({"email_verified"})
    site.scripted.userinfo = {"sub": "alice", "email": "alice@example.com", "email_verified": True}
    assert (await site.sign_in()).identity.email == "alice@example.com"
    site.scripted.userinfo = {"sub": "alice", "email_verified": True}
    assert (await site.sign_in()).identity.email is None


async def test_the_code_is_bound_to_who_asked(site: Site) -> None:
    """The verifier fits the challenge that the browser carried, and the secret goes to the provider only, encoded."""
    begun = await site.provider.begin("")
    asked = {name: values[0] for name, values in parse_qs(urlsplit(begun.address).query).items()}
    state = site.scripted.remember(begun.address)
    await site.provider.finish(begun.cookie, [("state", state), ("code", CODE)])
    sent = next(each for each in site.scripted.asked if each.path == "/tokens")
    assert asked["code_challenge_method"] == "S256"
    assert create_s256_code_challenge(sent.form["code_verifier"]) == asked["code_challenge"]
    assert sent.form["redirect_uri"] == asked["redirect_uri"] == f"{PUBLIC_URL}/dashboard/sign-in/idp/callback"
    assert sent.form["code"] == CODE
    pair = base64.b64decode(sent.headers["Authorization"].removeprefix("Basic ")).decode()
    assert pair == f"{CLIENT}:a+client+secret+of+the+tests%2C+32+bytes"
    assert "client_secret" not in sent.form


async def test_the_cookie_tells_nothing(site: Site) -> None:
    """State, nonce and verifier cannot be read from what the browser keeps."""
    begun = await site.provider.begin("/dashboard/teams")
    kept = base64.urlsafe_b64decode(begun.cookie.partition(".")[0] + "==").decode()
    remembered = site.begun.read(begun.cookie)
    assert remembered is not None
    made = site.begun.secrets_of(remembered)
    assert len({made.state, made.nonce, made.verifier}) == 3
    assert len(made.verifier) == 43
    for secret in (made.state, made.nonce, made.verifier):
        assert secret not in kept
    assert made.verifier not in begun.address


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ([("code", CODE)], "wrong state"),
        ([("state", "guessed"), ("code", CODE)], "wrong state"),
        ([("state", "STATE"), ("state", "STATE"), ("code", CODE)], "state more than once"),
        ([("state", "STATE")], "no code"),
        ([("state", "STATE"), ("code", "x" * 5_000)], "no code"),
        ([("state", "STATE"), ("code", CODE), ("code", "another")], "code more than once"),
        ([("state", "STATE"), ("code", CODE), ("iss", "https://another.example")], "another issuer"),
        ([("state", "STATE"), ("error", "access_denied"), ("error_description", "call 555")], "access_denied"),
        ([("state", "STATE"), ("error", "call 555")], "another error"),
        ([("error", "access_denied")], "wrong state"),
    ],
)
async def test_a_wrong_answer_goes_no_further(site: Site, answer: list[tuple[str, str]], reason: str) -> None:
    """An answer that this browser's sign-in did not ask for reaches nothing, and its texts reach nobody's eyes."""
    begun = await site.provider.begin("")
    state = site.scripted.remember(begun.address)
    sent = [(name, state if value == "STATE" else value) for name, value in answer]
    with pytest.raises(SignInStopped, match=reason) as stopped:
        await site.provider.finish(begun.cookie, sent)
    assert "555" not in stopped.value.message
    assert site.scripted.times("/tokens") == 0


async def test_a_promised_issuer_must_be_there(site: Site) -> None:
    """A provider that says it names itself in its answers is held to it (RFC 9207)."""
    site.scripted.description["authorization_response_iss_parameter_supported"] = True
    with pytest.raises(SignInStopped, match="another issuer"):
        await site.sign_in()
    begun = await site.provider.begin("")
    state = site.scripted.remember(begun.address)
    answer = [("state", state), ("code", CODE), ("iss", site.scripted.issuer)]
    assert (await site.provider.finish(begun.cookie, answer)).identity.subject == "alice"


async def test_a_cookie_must_be_ours_fresh_and_unused(scripted: ScriptedProvider, site: Site) -> None:
    """None, another's, an old one, another provider's and a used one begin nothing."""
    begun = await site.provider.begin("")
    state = scripted.remember(begun.address)
    answer = [("state", state), ("code", CODE)]
    other = Site(scripted, name="other")
    foreign = PendingSignIns(b"q" * 32, now_us=site.now_us)
    body, _, signature = begun.cookie.partition(".")
    try:
        for cookie in (
            None,
            "",
            "x.y",
            f"{body}.",
            f"{body}.{signature}x",
            f"{part({'seed': '0', 'provider': 'idp', 'next_path': '', 'expires_us': 2**62})}.{signature}",
            foreign.cookie(foreign.begin("idp", "")),
            "é" * 50,
            "x" * 10_000,
        ):
            with pytest.raises(SignInStopped, match="no sign-in was begun"):
                await site.provider.finish(cookie, answer)
        with pytest.raises(SignInStopped, match="no sign-in was begun"):
            await other.provider.finish(begun.cookie, answer)
    finally:
        await other.provider.aclose()
    site.now_s += 601
    with pytest.raises(SignInStopped, match="no sign-in was begun"):
        await site.provider.finish(begun.cookie, answer)
    site.now_s -= 601
    await site.provider.finish(begun.cookie, answer)
    with pytest.raises(SignInStopped, match="used before"):
        await site.provider.finish(begun.cookie, answer)
    assert scripted.times("/tokens") == 1


def test_a_stranger_who_fills_the_memory_of_used_sign_ins_shuts_nobody_out() -> None:
    """It is bounded, and the oldest goes first: who begins sign-ins by the thousand stops nobody else's."""
    now = [0]
    begun = PendingSignIns(b"p" * 32, now_us=lambda: now[0], max_used=2)
    first, second, third = (begun.begin("idp", "") for _ in range(3))
    assert all(begun.take(each) for each in (first, second, third))
    assert not begun.take(third)
    assert not begun.take(second)
    now[0] = 601 * 1_000_000
    fourth = begun.begin("idp", "")
    assert begun.take(fourth)
    assert not begun.take(fourth)


def test_a_long_way_back_is_forgotten() -> None:
    """What no cookie can hold is left out of it."""
    begun = PendingSignIns(b"p" * 32, now_us=lambda: 0)
    assert begun.begin("idp", "/dashboard/" + "x" * 2_000).next_path == ""
    assert len(begun.cookie(begun.begin("idp", "/dashboard/" + "x" * 1_400))) < 3_800


async def test_only_trusted_certificates_are_believed(tmp_path: Path) -> None:
    """A provider whose authority nobody knows is refused, until the configuration names its certificate."""
    (tmp_path / "one.pem").write_text(authorities.ONE.certificate)
    (tmp_path / "one.key").write_text(authorities.ONE.key)
    (tmp_path / "two.pem").write_text(authorities.TWO.certificate)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "one.pem", tmp_path / "one.key")
    async with scripted_provider(tls) as scripted:
        for fields in ({}, {"ca_file": tmp_path / "two.pem"}):
            wary = Site(scripted, **fields)
            with pytest.raises(ProviderFailed, match="description: Client"):
                await wary.sign_in()
            await wary.provider.aclose()
        trusting = Site(scripted, ca_file=tmp_path / "one.pem")
        assert (await trusting.sign_in()).identity.subject == "alice"
        await trusting.provider.aclose()


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """A missing or broken file stops the start, and the message says which."""
    (tmp_path / "broken.pem").write_text("no certificate")
    for name in ("missing.pem", "broken.pem"):
        with pytest.raises(SsoUnusable, match=name):
            Site(ScriptedProvider(), issuer="https://id.example.com", ca_file=tmp_path / name)


def test_the_extra_is_asked_for_only_with_a_provider() -> None:
    """Without Authlib the gateway runs; once a provider is configured, it says what to install."""
    program = """
import sys
sys.modules["authlib"] = None
from accounts.keys import Pepper
from accounts.people.sign_in_config import SignInSection
from dashboards.sign_in import openid_page
from accounts.openid.openid_errors import SsoUnusable
from accounts.openid.providers import open_providers
pepper = Pepper(id="p", secret=b"p" * 32)
assert open_providers(SignInSection(), str, pepper, int).get("idp") is None
one = {"name": "idp", "label": "IdP", "issuer": "https://id.example.com", "client_id": "wb"}
section = SignInSection.model_validate({"public_url": "https://wb.example.com", "providers": [one]})
try:
    open_providers(section, str, pepper, int)
except SsoUnusable as unusable:
    print(unusable)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.strip() == "sign_in.providers needs Authlib: pip install 'weighbridge[sso]'"
