"""An OpenID provider that does wrong whatever a test wants: one correct answer for each address, to be changed."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec
from aiohttp import web
from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT: Final = "weighbridge"
NOW_S: Final = 1_790_000_000
"""When all of this happens, by the gateway's clock."""
CODE: Final = "the-code"
ACCESS_TOKEN: Final = "the-access-token"
_KEY_1: Final = RSAKey.generate_key(2048, {"kid": "key-1", "use": "sig", "alg": "RS256"})
_KEY_2: Final = RSAKey.generate_key(2048, {"kid": "key-2", "use": "sig", "alg": "RS256"})
DESCRIPTION: Final = "/.well-known/openid-configuration"

Reply = web.StreamResponse | None


class Asked(msgspec.Struct, frozen=True):
    """A request that came."""

    path: str
    headers: dict[str, str]
    form: dict[str, str]


class ScriptedProvider:
    """What it answers; tests change it before they ask."""

    def __init__(self) -> None:
        self.issuer = ""
        self.key, self.other_key = _KEY_1, _KEY_2
        self.asked: list[Asked] = []
        self.claims: dict[str, Any] = {
            "sub": "alice",
            "aud": CLIENT,
            "exp": NOW_S + 300,
            "iat": NOW_S,
            "email": "alice@example.com",
            "email_verified": True,
            "name": "Alice",
        }
        self.without: frozenset[str] = frozenset()
        """Claims that are left out."""
        self.header: dict[str, Any] = {"alg": "RS256", "kid": "key-1"}
        self.description: dict[str, Any] = {}
        self.keys: list[dict[str, Any]] = [_KEY_1.as_dict(private=False)]
        self.tokens: dict[str, Any] = {"access_token": ACCESS_TOKEN, "token_type": "Bearer", "expires_in": 60}
        self.token_status = 200
        self.userinfo: dict[str, Any] = {"sub": "alice"}
        self.instead: dict[str, Callable[[web.Request], Reply]] = {}
        """By path: another answer, or None to hang until the test is over."""
        self.sign: Callable[[dict[str, Any]], str] = self._signed
        self.nonce = ""
        self.over = asyncio.Event()

    def times(self, path: str) -> int:
        """How often an address was asked for."""
        return sum(each.path == path for each in self.asked)

    def remember(self, address: str) -> str:
        """Takes the authorization request that a browser brings, and gives its state back."""
        asked = dict(parse_qsl(urlsplit(address).query))
        self.nonce = asked["nonce"]
        return asked["state"]

    def _signed(self, claims: dict[str, Any]) -> str:
        return jwt.encode(self.header, claims, self.key, algorithms=[self.header["alg"]])

    async def answer(self, request: web.Request) -> web.StreamResponse:
        form = {key: str(value) for key, value in (await request.post()).items()}
        self.asked.append(Asked(request.path, dict(request.headers), form))
        if request.path in self.instead:
            instead = self.instead[request.path](request)
            if instead is not None:
                return instead
            await self.over.wait()
            return web.Response(status=503)
        return self._regular(request.path)

    def _regular(self, path: str) -> web.Response:
        match path:
            case "/.well-known/openid-configuration":
                return web.json_response(self._description())
            case "/keys":
                return web.json_response({"keys": self.keys})
            case "/me":
                return web.json_response(self.userinfo)
            case "/tokens" if self.token_status == 200:
                claims = {"iss": self.issuer, "nonce": self.nonce, **self.claims}
                kept = {name: value for name, value in claims.items() if name not in self.without}
                return web.json_response({"id_token": self.sign(kept), **self.tokens})
            case "/tokens":
                return web.json_response(self.tokens, status=self.token_status)
        return web.Response(status=404)

    def _description(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/tokens",
            "jwks_uri": f"{self.issuer}/keys",
            "userinfo_endpoint": f"{self.issuer}/me",
            "id_token_signing_alg_values_supported": ["RS256"],
            **self.description,
        }


@contextlib.asynccontextmanager
async def scripted_provider(tls: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedProvider]:
    """A running one, on a port of the system's choice."""
    provider = ScriptedProvider()
    app = web.Application(client_max_size=10_000_000)
    app.router.add_route("*", "/{path:.*}", provider.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    host, port = runner.addresses[0][:2]
    provider.issuer = f"{'http' if tls is None else 'https'}://{host}:{port}"
    try:
        yield provider
    finally:
        provider.over.set()
        await runner.cleanup()
