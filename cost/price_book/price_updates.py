"""Watcher of the prices in effect in this process: the configured ones beneath overrides, polled every few seconds."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from cost.errors import PriceError
from cost.price_book.book import DatedPrice, PriceBook, price_book
from cost.prices import Price
from cost.times import wall_us

_log: Final = logging.getLogger("weighbridge.prices")

_SOONEST_S: Final = 0.01
_PATIENCE_S: Final = 5.0
"""Timeout of a look in seconds, so that a start does not wait longer for a silent database."""


class PriceSource(Protocol):
    """Storage of overrides and versions; PriceStore is one."""

    async def overrides(self) -> list[DatedPrice]:
        """Return overrides that were not withdrawn, in the order they were entered. Raises PriceError."""
        ...

    async def remember_all(self, prices: Iterable[DatedPrice]) -> list[DatedPrice]:
        """Keep versions for good; return them in the order given, under the names that they got."""
        ...


class PriceWatch:
    """The watch that keeps the book up to date, and each version in it at the same figures for good."""

    def __init__(
        self,
        source: PriceSource,
        configured: PriceBook,
        changed: Callable[[], None] = lambda: None,
        now_us: Callable[[], int] = wall_us,
    ) -> None:
        """Watch `source` over the configured prices. `changed` is called after other prices came into effect."""
        self._source = source
        self._configured = configured
        self._changed = changed
        self._now_us = now_us
        self._overrides: list[DatedPrice] = []
        self._names: dict[tuple[str, str], dict[str, str]] = {}
        """Per target and version: the stored name by digest of the figures."""
        self._remembered = False
        self._refreshing = asyncio.Lock()
        self._wakeup = asyncio.Event()
        self._last_logged: str | None = None
        self.book = self.with_configured(configured)
        self._in_effect = self._effective()

    def with_configured(self, configured: PriceBook) -> PriceBook:
        """Return the book as it would be with another configuration; nothing changes."""
        return price_book([*(self._with_stored_name(each) for each in configured.entries()), *self._overrides])

    def adopt(self, configured: PriceBook) -> None:
        """Switch to another configuration, whose catalog is in use from now on."""
        self._configured, self._remembered = configured, False
        self.book = self.with_configured(configured)
        self._in_effect = self._effective()
        self._wakeup.set()

    async def follow(self, poll_s: float) -> None:
        """Refresh forever: every `poll_s` seconds, when a price begins, and after a change of the configuration."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s(poll_s)):
                    await self._wakeup.wait()
            self._wakeup.clear()
            try:
                await self.refresh()
            except Exception:  # noqa: BLE001 - the loop must outlive any one step
                _log.exception("looking for prices failed; the next look follows")

    def _wait_s(self, poll_s: float) -> float:
        now_us = self._now_us()
        change_us = self.book.next_change_us(now_us)
        return poll_s if change_us is None else min(poll_s, max(_SOONEST_S, (change_us - now_us) / 1_000_000))

    async def refresh(self) -> None:
        """Update the book. When the database does not answer, only dates that passed take effect."""
        async with self._refreshing:
            await self._read_overrides()
            self.book = self.with_configured(self._configured)
            before, effective = self._in_effect, self._effective()
            if effective == before:
                return
            for target_id in sorted(before.keys() | effective.keys()):
                price = effective.get(target_id)
                if price != before.get(target_id):
                    _log.warning("price of %s: %s", target_id, "unknown" if price is None else f"now {price.version}")
            self._changed()
            # Last, so that a change whose callback failed is tried again.
            self._in_effect = effective

    async def _read_overrides(self) -> None:
        configured = self._configured
        try:
            async with asyncio.timeout(_PATIENCE_S):
                self._overrides = await self._source.overrides()
                if not self._remembered:
                    self._keep_names(configured, await self._source.remember_all(configured.entries()))
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            # The driver's message may contain the database's address.
            self._log_once(f"prices cannot be looked up, so they stay as they are: {type(error).__name__}")
        except PriceError as error:
            self._log_once(f"prices stay as they are: {error}")
        else:
            self._last_logged = None

    def _keep_names(self, configured: PriceBook, kept: list[DatedPrice]) -> None:
        for each, known in zip(configured.entries(), kept, strict=True):
            names = self._names.setdefault((each.target_id, each.price.version), {})
            names[each.price.digest()] = known.price.version
        # The configuration may have changed while the database answered.
        self._remembered = configured is self._configured

    def _with_stored_name(self, each: DatedPrice) -> DatedPrice:
        """Return the price under its stored name; a name that stands for other figures gets the suffix it will have."""
        names = self._names.get((each.target_id, each.price.version))
        if names is None:
            return each
        digest = each.price.digest()
        name = names.get(digest, f"{each.price.version}~{digest}")
        return msgspec.structs.replace(each, price=each.price.named(name))

    def _effective(self) -> dict[str, Price]:
        now_us = self._now_us()
        found = ((target_id, self.book.at(target_id, now_us)) for target_id in self.book.prices)
        return {target_id: price for target_id, price in found if price is not None}

    def _log_once(self, message: str) -> None:
        """Log a message once, not at every look."""
        if message != self._last_logged:
            self._last_logged = message
            _log.warning("%s", message)
