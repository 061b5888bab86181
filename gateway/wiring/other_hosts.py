"""Messages between gateways of several hosts on the prompts that they sent to replicas, through Redis.

The control plane of each host collects what its processes tell, and hands it on ten times a second. It is hashes and counts,
sealed under a key made of the pepper, so Redis has nothing that could be compared with a prompt. All of it may be lost: then
each host goes by what it knows, as without Redis.
"""

import contextlib
import logging
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

import msgspec
from prometheus_client import CollectorRegistry, Counter

from gateway.configuration.environment import Environment, tells_other_hosts
from gateway.configuration.gateway_config import GatewayConfig
from gateway.configuration.peppers import peppers
from proxy.responses.stored.sealing import CannotOpen, Sealing
from proxy.shared.background_tasks import background, every
from proxy.shared.redis.redis_link import RedisLink
from proxy.shared.redis.scripts import script
from proxy.shared.redis.shared_state import Link, SharedStateUnavailable
from selfhosted.balance.blocks import HASHES
from selfhosted.balance.sharing import PromptsSent
from settings.decoding import DECODE_ERRORS

_log: Final = logging.getLogger("weighbridge.hosts")
_EXCHANGE: Final = script("exchange")
_EVERY_S: Final = 0.1
_MOST_MESSAGES: Final = 500
"""Messages of this host that wait to be handed on; the oldest go."""
_MOST_BYTES: Final = 4_000_000
"""Largest unpacked message of one host."""
_KEPT: Final = 500
"""Entries that Redis keeps: some seconds of a dozen hosts."""
_GIVEN: Final = 100
_PLACE: Final = ("", "prompts of hosts")
_TOLD_EVERY_S: Final = 600.0
"""Between two lines of the log on one fault."""

NewsResult = Literal["heard", "other_pepper", "other_hashes", "unreadable"]
_FAULTS: Final[dict[NewsResult, str]] = {
    "other_pepper": "it seals with another pepper; give all hosts the same WEIGHBRIDGE_PEPPER",
    "other_hashes": "it hashes prompts in another way; run one kind of Python on all hosts, and the same peppers in the same order (here "
    f"{sys.implementation.name} {sys.version.split()[0]}, {sys.hash_info.algorithm}, {sys.hash_info.width} bits)",
    "unreadable": "what it tells cannot be read; run one version of weighbridge on all hosts",
}


class HostMetrics:
    """The Prometheus counts of other hosts' messages, by the four things that come of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._news = Counter(
            "weighbridge_hosts_news",
            "Messages of other hosts on what they sent to replicas: heard; left out for other_pepper, other_hashes, unreadable.",
            ("result",),
            registry=registry,
        )

    def count_news(self, result: NewsResult) -> None:
        self._news.labels(result).inc()


class _News(msgspec.Struct, array_like=True):
    pepper_id: str
    sealed: bytes


class OtherHosts:
    """The exchange with other hosts of which prompts went to which replica."""

    def __init__(
        self,
        host: str,
        link: Link,
        sealing: Sealing,
        hear: Callable[[PromptsSent], None],
        alone: Callable[[], bool] = lambda: False,
        count: Callable[[NewsResult], object] = lambda _result: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`hear` is called with each message of another host's process. `alone` says whether there is no other host."""
        self._host = host
        self._link = link
        self._sealing = sealing
        self._hear = hear
        self._alone = alone
        self._count = count
        self._clock = clock
        self._told_at: dict[NewsResult, float] = {}
        self._waiting: deque[PromptsSent] = deque(maxlen=_MOST_MESSAGES)
        self._seen = ""

    def tell(self, message: PromptsSent) -> None:
        """Take a message of a process of this host, to hand it on in a moment."""
        self._waiting.append(message)

    async def exchange(self) -> None:
        """Send the waiting messages, and read those of others since the last time."""
        if self._alone():
            self._waiting.clear()
            self._seen = ""
            return
        news = self._news()
        key = f"{self._link.prefix}prompts"
        try:
            seen, *told = await self._link.call(_EXCHANGE, (key,), (self._host, self._seen, news, _KEPT, _GIVEN))
        except SharedStateUnavailable:
            return
        self._seen = seen.decode() if isinstance(seen, bytes) else seen
        for each in told:
            self._take(each)

    def _news(self) -> bytes:
        if not self._waiting:
            return b""
        record = msgspec.msgpack.encode(list(self._waiting))
        self._waiting.clear()
        if len(record) > _MOST_BYTES:
            return b""
        sealing = self._sealing
        return msgspec.msgpack.encode(_News(sealing.pepper_id, sealing.seal(*_PLACE, record)))

    def _take(self, news: bytes) -> None:
        """Hear one entry. Anybody who reaches Redis may write there, so whatever is wrong with it costs no other entry."""
        try:
            for message in self._opened(news):
                self._hear(message)
        except Exception:  # noqa: BLE001 - nothing is known of what others write
            self._left_out("unreadable")

    def _opened(self, news: bytes) -> list[PromptsSent]:
        """Return the messages of another host; none where its pepper is another, or its messages cannot be read or
        compared.
        """
        try:
            found = msgspec.msgpack.decode(news, type=_News)
            record = self._sealing.open(*_PLACE, found.pepper_id, found.sealed, max_bytes=_MOST_BYTES)
            told = msgspec.msgpack.decode(record, type=list[PromptsSent])
        except CannotOpen:
            return self._left_out("other_pepper")
        except (zlib.error, *DECODE_ERRORS):
            return self._left_out("unreadable")
        if any(message.hashes != HASHES for message in told):
            return self._left_out("other_hashes")
        for _ in told:
            self._count("heard")
        return told

    def _left_out(self, why: NewsResult) -> list[PromptsSent]:
        self._count(why)
        now = self._clock()
        if now - self._told_at.get(why, -_TOLD_EVERY_S) >= _TOLD_EVERY_S:
            self._told_at[why] = now
            _log.warning("what another host sent to replicas is not known here: %s", _FAULTS[why])
        return []


async def open_other_hosts(
    config: GatewayConfig,
    environment: Environment,
    boot_id: str,
    hear: Callable[[PromptsSent], None],
    metrics: HostMetrics,
    stack: contextlib.AsyncExitStack,
) -> OtherHosts | None:
    """Open the exchange with other hosts, until the stack closes; None where it is off."""
    url = environment.redis(config.redis)
    if url is None or not tells_other_hosts(config, environment):
        return None
    # A prefix of its own: those that divide limits must not count this process as one of them.
    section = config.redis.model_copy(update={"prefix": f"{config.redis.prefix}hosts:"})
    link = RedisLink(url, section, boot_id)
    stack.push_async_callback(link.aclose)
    await link.start()
    sealing = Sealing(peppers(config, environment))
    await sealing.ready()
    hosts = OtherHosts(boot_id, link, sealing, hear, alone=lambda: link.live <= 1, count=metrics.count_news)
    background(stack, every(_EVERY_S, hosts.exchange))
    return hosts
