"""The answer cache of one process, made from the configuration."""

import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b, sha256
from typing import Any, Final

from accounts.keys import Pepper
from cost.ledger.ledger import Books
from cost.times import wall_us
from gateway.configuration.gateway_config import GatewayConfig
from proxy.cache.answer_cache import AnswerCache, CacheObserver
from proxy.cache.cache_store import AnswerStore, LocalStore, RedisStore
from proxy.responses.stored.sealing import CannotOpen, Sealing
from proxy.shared.redis.shared_state import ScriptRunner

_PURPOSE: Final = b"answers given again"
_PLACE: Final = "answer/"
"""Beginning of the names under which answers are sealed: a kept response in one's place does not open."""
_ANSWERED_BY: Final = ("providers", "policy", "selfhosted", "cost", "deadlines", "guard")
"""Sections that decide by whom a request is answered, how it is sent, and what must not be said."""


def open_answer_cache(
    config: GatewayConfig,
    peppers: Sequence[Pepper],
    link: ScriptRunner | None,
    books: Books,
    observer: CacheObserver,
) -> AnswerCache | None:
    """Return the cache of one process; None where the configuration has none."""
    section = config.cache
    if section is None:
        return None
    store: AnswerStore
    if link is None:
        store = LocalStore(section.max_bytes, time.monotonic, observer)
    else:
        store = RedisStore(link, section.max_bytes, section.ttl_s, wall_us)
    # The first pepper's, as all processes have it: names follow from it, so they say nothing of a request.
    secret = blake2b(_PURPOSE, key=peppers[0].secret[:64]).digest()
    return AnswerCache(
        section,
        store,
        SealedAnswers(Sealing(tuple(peppers))),
        secret,
        books=books,
        clock=time.monotonic,
        now_us=wall_us,
        observer=observer,
        looks_far=link is not None,
    )


class SealedAnswers:
    """Answers sealed as kept responses are: under a key of the team's own, each in its place."""

    def __init__(self, sealing: Sealing) -> None:
        self._sealing = sealing

    def seal(self, team_id: str, name: str, record: bytes) -> bytes:
        """Return the sealed record, behind the name of its pepper."""
        sealed = self._sealing.seal(team_id, _PLACE + name, record)
        return self._sealing.pepper_id.encode() + b"\x00" + sealed

    def open(self, team_id: str, name: str, sealed: bytes, max_bytes: int) -> bytes | None:
        """Return the record; None where it was not sealed here, for this team and name."""
        pepper_id, _, rest = sealed.partition(b"\x00")
        try:
            return self._sealing.open(
                team_id, _PLACE + name, pepper_id.decode(errors="replace"), rest, max_bytes=max_bytes
            )
        except CannotOpen:
            return None


def answers_digest(config: GatewayConfig) -> bytes:
    """Return a digest of the configuration that requests are answered by; empty where no answers are kept."""
    if config.cache is None:
        return b""
    found = sha256()
    for name in _ANSWERED_BY:
        found.update(_canonical(getattr(config, name).model_dump(mode="python")).encode() + b"\n")
    return found.digest()


def _canonical(value: Any) -> str:
    """Return a value in words that are the same in each process: sets have no order."""
    match value:
        case Mapping():
            return "{" + ",".join(sorted(f"{key!r}:{_canonical(each)}" for key, each in value.items())) + "}"
        case set() | frozenset():
            return "{" + ",".join(sorted(map(_canonical, value))) + "}"
        case list() | tuple():
            return "[" + ",".join(map(_canonical, value)) + "]"
        case _:
            return repr(value)
