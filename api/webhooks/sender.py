"""Sender of the outbox: picks due messages, decides after each attempt (pure), and posts them."""

import asyncio
import logging
import random
import smtplib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, Literal, NamedTuple

import aiohttp
import msgspec

from api.webhooks.addresses import BadCallbackUrl, CallbackAddresses, CheckedResolver
from api.webhooks.callbacks import DESTINATION
from api.webhooks.mail import Mailer
from api.webhooks.outbox import GONE, DueMessage, Outbox
from api.webhooks.shapes import mail_of, slack_body
from api.webhooks.signature import BadSecret, signed_headers, signing_key
from api.webhooks.team_addresses import MAIL, SLACK
from api.webhooks.webhook_metrics import Result
from api.webhooks.webhooks_config import MailServer, WebhookDestination, destination_url
from cost.times import wall_us

_log = logging.getLogger("weighbridge.webhooks")


RETRY_AFTER_S: Final = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Seconds to wait after each failed attempt; a message is given up after the last."""
TIMEOUT_S: Final = 15.0
_JITTER: Final = 0.2
_MAX_RETRY_AFTER_S: Final = 86_400
_THROTTLED: Final = frozenset({429, 502, 503, 504})
_LEASE_US: Final = 60_000_000
"""Lease of a claimed message, longer than an attempt can take. After a crash the message is due again when it ends."""
_AT_ONCE: Final = 8
_POLL_S: Final = 1.0
_NO_ANSWER: Final = 0


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """A configured receiver with its resolved signing keys."""

    name: str
    url: str = ""
    """Empty for mail."""
    keys: tuple[bytes, ...] = ()
    shape: Literal["standard", "slack", "mail"] = "standard"
    to: tuple[str, ...] = ()
    mailer: Mailer | None = None
    """A transport of mail."""


class Callbacks(NamedTuple):
    """The rules of callbacks: the addresses that may be called, and the secrets that sign for a team."""

    addresses: CallbackAddresses
    keys_of: Callable[[str], Awaitable[tuple[bytes, ...]]]
    mailer: Mailer | None = None
    """A transport of mail to addresses of teams."""
    opened: Callable[[str, str], str] = lambda _team_id, address: address
    """Returns the address that a team's message holds sealed. Raises BadCallbackUrl."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A destination's reply; status 0 for none."""

    status: int
    retry_after_s: int | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an attempt, and the time of the next."""

    result: Result
    next_try_us: int | None = None


def destinations_of(
    configured: Sequence[WebhookDestination], resolve: Callable[[str], str], mail: MailServer | None = None
) -> dict[str, Destination]:
    """Return the destinations with resolved addresses and keys. Raises BadSecret, naming the destination."""
    found = {}
    for each in configured:
        references = [each.secret, each.previous_secret] if each.shape == "standard" else []
        try:
            keys = tuple(signing_key(resolve(reference)) for reference in references if reference is not None)
            url = each.url or ("" if each.url_from is None else destination_url(resolve(each.url_from)))
            mailer = mailer_of(mail, resolve) if each.shape == "mail" else None
        except BadSecret as error:
            raise BadSecret(f"webhooks: destination `{each.name}`: {error}") from None
        except (LookupError, OSError):
            raise BadSecret(f"webhooks: destination `{each.name}`: its secret is not there") from None
        except ValueError as error:
            raise BadSecret(f"webhooks: destination `{each.name}`: its address {error}") from None
        found[each.name] = Destination(name=each.name, url=url, keys=keys, shape=each.shape, to=each.to, mailer=mailer)
    return found


def mailer_of(server: MailServer | None, resolve: Callable[[str], str]) -> Mailer | None:
    """Return the configured transport of mail, with its password resolved."""
    if server is None:
        return None
    return Mailer(
        host=server.host,
        port=server.port,
        security=server.security,
        sender=server.sender,
        user=server.user,
        password=None if server.password is None else resolve(server.password),
    )


def decide(answer: Answer, tries: int, now_us: int, jitter: float) -> Verdict:
    """Return the verdict after the `tries`-th attempt. `jitter`, from 0 to 1, spreads messages that failed together."""
    if 200 <= answer.status < 300:  # noqa: PLR2004 - success, and nothing else is
        return Verdict(result="delivered")
    if answer.status == GONE:
        return Verdict(result="disabled")
    if tries > len(RETRY_AFTER_S):
        return Verdict(result="given_up")
    wait_us = RETRY_AFTER_S[tries - 1] * int(1_000_000 * (1 + _JITTER * jitter))
    if answer.status in _THROTTLED and answer.retry_after_s is not None:
        wait_us = max(wait_us, min(answer.retry_after_s, _MAX_RETRY_AFTER_S) * 1_000_000)
    return Verdict(result="retried", next_try_us=now_us + wait_us)


def retry_after_s(value: str | None, now_us: int) -> int | None:
    """Return the seconds of a Retry-After header, given as a number or a date; None without a valid one."""
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdigit():
        return min(int(value.strip()[:9]), _MAX_RETRY_AFTER_S)
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    left = (date - datetime.fromtimestamp(now_us // 1_000_000, UTC)).total_seconds()
    return max(0, min(int(left), _MAX_RETRY_AFTER_S))


class Sender:
    """One process's sender. Any number of processes may run one on the same database."""

    def __init__(
        self,
        outbox: Outbox,
        destinations: Mapping[str, Destination],
        *,
        now_us: Callable[[], int] = wall_us,
        jitter: Callable[[], float] = random.random,
        count: Callable[[Result], None] = lambda _result: None,
        timeout_s: float = TIMEOUT_S,
        callbacks: Callbacks | None = None,
    ) -> None:
        self._outbox = outbox
        self._destinations = destinations
        self._callbacks = callbacks
        self._now_us = now_us
        self._jitter = jitter
        self._count = count
        self._session = _session(timeout_s, aiohttp.TCPConnector(limit=64, limit_per_host=_AT_ONCE))
        self._checked_session = None if callbacks is None else _session(timeout_s, _checked(callbacks.addresses))

    async def aclose(self) -> None:
        await self._session.close()
        if self._checked_session is not None:
            await self._checked_session.close()

    async def run(self, poll_s: float = _POLL_S) -> None:
        """Send for ever. Each destination has its own loop, so that a slow one delays no other."""
        async with asyncio.TaskGroup() as loops:
            for name in self._destinations:
                loops.create_task(self._serve(name, poll_s))
            if self._callbacks is not None:
                loops.create_task(self._serve(DESTINATION, poll_s))

    async def _serve(self, name: str, poll_s: float) -> None:
        while True:
            try:
                busy = await self.send_due(name)
            except Exception:  # noqa: BLE001 - the loop must outlive a database that is away for a while
                _log.exception("webhook messages for %s could not be read or marked; trying again", name)
                busy = 0
            if busy < _AT_ONCE:
                await asyncio.sleep(poll_s)

    async def send_due(self, name: str) -> int:
        """Send one destination's due messages, a few concurrently; returns their number."""
        due = await self._outbox.due(name, _AT_ONCE)
        # Of callbacks each has an address of its own: one that is gone says nothing of the others.
        if due and name != DESTINATION and await self._outbox.disabled(name):
            for _ in range(await self._outbox.give_up(name)):
                self._count("disabled")
            return 0
        taken = await asyncio.gather(*(self._take(message) for message in due), return_exceptions=True)
        for failure in taken:
            if isinstance(failure, BaseException):
                raise failure
        return len(due)

    async def _take(self, message: DueMessage) -> None:
        claimed = await self._outbox.claim(message, _LEASE_US)
        if claimed is not None:
            await self._settle(claimed, await self._post(claimed))

    async def _settle(self, message: DueMessage, answer: Answer) -> None:
        verdict = decide(answer, message.tries, self._now_us(), self._jitter())
        if verdict.result == "delivered":
            await self._outbox.delivered(message, answer.status)
        else:
            await self._outbox.failed(message, answer.status, verdict.next_try_us)
        if verdict.result in {"given_up", "disabled"}:
            _log.error("webhook %s to %s: %s after %s", message.message_id, message.destination, verdict.result, answer)
        self._count(verdict.result)

    async def _post(self, message: DueMessage) -> Answer:
        """Make one delivery attempt. The reply's body is not read, and no redirect is followed."""
        destination = self._destinations.get(message.destination)
        try:
            if message.url is not None and self._callbacks is not None:
                opened = self._callbacks.opened(message.team_id or "", message.url)
                message = msgspec.structs.replace(message, url=opened)
            if destination is not None and destination.mailer is not None:
                mail = mail_of(message.body, message.message_id, destination.mailer.sender, destination.to)
                return Answer(status=await destination.mailer.send(mail))
            if destination is not None and destination.shape == "slack":
                return await self._answer(self._session, destination.url, slack_body(message.body), {})
            mailer = None if self._callbacks is None else self._callbacks.mailer
            if message.url is not None and message.url.startswith(MAIL) and mailer is not None:
                to = (message.url.removeprefix(MAIL),)
                mail = mail_of(message.body, message.message_id, mailer.sender, to)
                return Answer(status=await mailer.send(mail))
            session, url, keys = await self._route(message)
            if message.url is not None and message.url.startswith(SLACK):
                return await self._answer(session, url, slack_body(message.body), {})
            headers = signed_headers(message.message_id, self._now_us() // 1_000_000, message.body, keys)
            return await self._answer(session, url, message.body, headers)
        except (aiohttp.ClientError, smtplib.SMTPException, TimeoutError, OSError, BadCallbackUrl) as error:
            # Its text may hold the whole address, and an address may hold a token.
            _log.warning("webhook to %s: no answer (%s)", message.destination, type(error).__name__)
            return Answer(status=_NO_ANSWER)

    async def _answer(
        self, session: aiohttp.ClientSession, url: str, body: bytes, headers: Mapping[str, str]
    ) -> Answer:
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            wait_s = retry_after_s(response.headers.get("retry-after"), self._now_us())
            return Answer(status=response.status, retry_after_s=wait_s)

    async def _route(self, message: DueMessage) -> tuple[aiohttp.ClientSession, str, Sequence[bytes]]:
        """Return a message's destination, with its keys. Raises BadCallbackUrl for an address that is not allowed."""
        if self._callbacks is None or self._checked_session is None or message.url is None:
            destination = self._destinations[message.destination]
            return self._session, destination.url, destination.keys
        # A literal address is not looked up, so it is looked at here, at each try.
        url = message.url.removeprefix(SLACK)
        self._callbacks.addresses.check_url(url)
        return self._checked_session, url, await self._callbacks.keys_of(message.team_id or "")

    async def test(self, name: str, message_id: str) -> int:
        """Send a test message once and return the status, 0 for no reply. Acceptance re-enables a disabled destination."""
        now_us = self._now_us()
        held = await self._outbox.hold(message_id, name, "weighbridge.test", {"destination": name}, _LEASE_US)
        answer = await self._post(held)
        if decide(answer, 1, now_us, 0).result == "delivered":
            await self._outbox.delivered(held, answer.status)
        else:
            await self._outbox.failed(held, answer.status, None)
        return answer.status


def _session(timeout_s: float, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        # A receiver's cookies have no business in another message.
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"user-agent": "weighbridge-webhooks/1", "content-type": "application/json"},
        connector=connector,
    )


def _checked(addresses: CallbackAddresses) -> aiohttp.TCPConnector:
    """Connect only to addresses that were looked up, and looked at, for this very try."""
    return aiohttp.TCPConnector(
        limit=64,
        limit_per_host=_AT_ONCE,
        resolver=CheckedResolver(addresses),
        use_dns_cache=False,
        force_close=True,
    )
