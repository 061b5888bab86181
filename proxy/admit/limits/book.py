"""The limit book: resolves the buckets that a request draws from, rules in the database overriding the configuration."""

import asyncio
import hashlib
import logging
from collections.abc import Iterable
from typing import Final, Protocol
from urllib.parse import quote

from sqlalchemy.exc import SQLAlchemyError

from accounts.caller import Caller
from cost.scopes import ANY
from proxy.admit.limits.limit import Kind, Limit, Limits, Scope
from proxy.admit.limits.limits_config import LimitsSection
from proxy.admit.limits.rules import ANY_ID, Place, Rule, over, team_of
from proxy.admit.limits.store import TableVersion

_log: Final = logging.getLogger("weighbridge.limits")

AUTO: Final = "auto"
MAX_CACHED: Final = 20_000
"""The most cached resolutions (keys times models); beyond it they are computed anew, in microseconds."""
_MAX_ESCAPED: Final = 90
_PATIENCE_S: Final = 5.0
"""The time-out of a database look-up, so that a start does not hang."""


class LimitBook:
    """The limits in force. Any change of rules or configuration drops the cached resolutions."""

    def __init__(self, section: LimitsSection, known: Iterable[str]) -> None:
        """`known` are the names that callers may send as `model`; `auto` is always added, and so is what a rule names, such as a model
        that a wildcard stands for.
        """
        self._rules: dict[Place, Limits] = {}
        self._ruled: frozenset[str] = frozenset()
        self.adopt(section, known)

    def adopt(self, section: LimitsSection, known: Iterable[str]) -> None:
        """Adopt a new configuration."""
        self.section = section
        self._known = frozenset(known) | {AUTO}
        self._drop_cache()

    def replace(self, rules: Iterable[Rule]) -> None:
        """Adopt the rules of the database."""
        found = {rule.place: rule.limits for rule in rules}
        if found != self._rules:
            self._rules = found
            self._ruled = frozenset(place.model for place in found if place.model)
            self._drop_cache()

    def _drop_cache(self) -> None:
        of_end_users = any(place.scope == "end_user" for place in self._rules)
        # Where nobody limits end users, they make no entry of the cache either.
        self._limits_end_users = of_end_users or self.section.end_user.limits() != Limits()
        self._cache: dict[tuple[str, str, str, str, str], tuple[Limit, ...]] = {}
        self._by_place: dict[Place, tuple[Limit, ...]] = {}

    def knows(self, model: str) -> bool:
        """Return True for a model that has buckets of its own."""
        return model in self._known or model in self._ruled

    def limits_of(self, caller: Caller, model: str, end_user: str = "") -> tuple[Limit, ...]:
        """Return the buckets that a request draws from, widest scope first. An unknown model has none of its own."""
        if end_user and not self._limits_end_users:
            end_user = ""
        found = self._cache.get((caller.organisation_id, caller.team_id, caller.key_id, model, end_user))
        return self._resolve(caller, model, end_user) if found is None else found

    def _resolve(self, caller: Caller, model: str, end_user: str) -> tuple[Limit, ...]:
        if model and not self.knows(model):
            # A caller's text must not fill the memory, nor Redis.
            return self.limits_of(caller, "", end_user)
        if len(self._cache) >= MAX_CACHED:
            self._drop_cache()
        found = tuple(limit for place in places_of(caller, model, end_user) for limit in self.at(place))
        self._cache[caller.organisation_id, caller.team_id, caller.key_id, model, end_user] = found
        return found

    def at(self, place: Place) -> tuple[Limit, ...]:
        """Return the buckets of one place; the tuple is shared by all callers."""
        found = self._by_place.get(place)
        if found is None:
            if len(self._by_place) >= MAX_CACHED:
                self._by_place.clear()
            found = self._by_place[place] = buckets(place, self._limits(place))
        return found

    def _limits(self, place: Place) -> Limits:
        default = self.section.default_of(place)
        if place.scope == "end_user":
            of_team = self._rules.get(Place("end_user", f"{team_of(place)}/{ANY}"))
            default = default if of_team is None else over(of_team, default)
        rule = self._rules.get(place)
        return default if rule is None else over(rule, default)


def places_of(caller: Caller, model: str, end_user: str = "") -> list[Place]:
    """Return every place that a request counts under; with an empty `model` and `end_user`, those common to all the
    caller's requests.
    """
    own: tuple[tuple[Scope, str], ...] = (
        ("organisation", caller.organisation_id),
        ("team", caller.team_id),
        ("key", caller.key_id),
    )
    places = [Place(scope, scope_id) for scope, scope_id in own]
    if end_user:
        places.append(Place("end_user", f"{caller.team_id}/{end_user}"))
    if model:
        places.append(Place("model", ANY_ID, model))
        places += [Place(scope, scope_id, model) for scope, scope_id in own]
    return places


def buckets(place: Place, limits: Limits) -> tuple[Limit, ...]:
    """Return a bucket for each limit that is set."""
    kinds: tuple[tuple[Kind, int | None, int | None], ...] = (
        ("requests", limits.requests_per_minute, limits.request_burst),
        ("tokens", limits.tokens_per_minute, limits.token_burst),
    )
    whose = place.scope_id if place.scope == "end_user" else ""
    made = [
        Limit(key=bucket_key(place, kind), scope=place.scope, kind=kind, rate=rate, burst=burst or rate, whose=whose)
        for kind, rate, burst in kinds
        if rate
    ]
    if limits.concurrency:
        key = bucket_key(place, "concurrency")
        made.append(
            Limit(key=key, scope=place.scope, kind="concurrency", rate=0, burst=limits.concurrency, whose=whose)
        )
    return tuple(made)


def bucket_key(place: Place, kind: Kind) -> str:
    """Return a bucket's unique key, such as `team/team_a//tokens`: plain ASCII of bounded length."""
    scope_id = ANY_ID if place.scope == "model" else _escaped(place.scope_id)
    return f"{place.scope}/{scope_id}/{_escaped(place.model)}/{kind}"


def _escaped(text: str) -> str:
    plain = quote(text, safe="")
    # An equals sign is always escaped, so nothing else looks like this.
    return plain if len(plain) <= _MAX_ESCAPED else "=" + hashlib.sha256(text.encode()).hexdigest()


class LimitSource(Protocol):
    """The source of rules; LimitStore is one."""

    async def mark(self) -> TableVersion:
        """Return the version of the table of rules."""
        ...

    async def all(self) -> list[Rule]:
        """Return every rule."""
        ...


class LimitWatch:
    """A watch that keeps a book up to date with the database. While that does not answer, the last known rules hold."""

    def __init__(self, source: LimitSource, book: LimitBook) -> None:
        self._source = source
        self._book = book
        self._seen: TableVersion | None = None
        self._last_logged: str | None = None

    async def follow(self) -> None:
        """Refresh every `limits.poll_s`, for ever."""
        while True:
            await asyncio.sleep(self._book.section.poll_s)
            try:
                await self.refresh()
            except Exception:  # noqa: BLE001 - the loop must outlive any one step
                _log.exception("looking for limits failed; the next look follows")

    async def refresh(self) -> None:
        """Adopt the stored rules; the whole table is read only when it has changed."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                mark = await self._source.mark()
                if mark == self._seen:
                    return
                # Read after the mark: what changes in between is read again at the next look.
                rules = await self._source.all()
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            # The driver's message may hold the address.
            self._log_once(f"limits cannot be looked up, so they stay as they are: {type(error).__name__}")
            return
        self._last_logged = None
        self._book.replace(rules)
        self._seen = mark

    def _log_once(self, message: str) -> None:
        """Log a message unless it repeats the last one, as refreshes come every few seconds."""
        if message != self._last_logged:
            self._last_logged = message
            _log.warning("%s", message)
