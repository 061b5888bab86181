"""Prices in the database: versions that rows were booked at, and overrides. A version is never changed."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import Insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.errors import PriceError, PriceRefused, UnknownPrice
from cost.price_book.book import DatedPrice, Source
from cost.prices import MOST_VERSION_CHARACTERS, Price, from_json, to_json
from cost.tables import PriceVersion
from cost.times import wall_us

MOST_OVERRIDES: Final = 10_000
MOST_KNOWN: Final = 1_000
MOST_NOTE_CHARACTERS: Final = 1_000
_AT_ONCE: Final = 200
_TRIES: Final = 100
_SUFFIX_CHARACTERS: Final = 16

KnownSource = Source | Literal["correction"]
"""Sources of a stored price; a correction's price is remembered, and never in effect."""


class KnownPrice(msgspec.Struct, frozen=True, kw_only=True):
    """A stored price version that rows may have been booked at."""

    price: Price
    source: str
    effective_us: int
    note: str
    created_us: int
    withdrawn_us: int | None


class PriceStore:
    """The only reader and writer of the table `price_version`."""

    def __init__(self, engine: AsyncEngine, now_us: Callable[[], int] = wall_us) -> None:
        self._engine = engine
        self._now_us = now_us

    async def remember(self, target_id: str, price: Price, source: KnownSource, effective_us: int = 0) -> Price:
        """Store a version for good, and return the price as named; renamed when its name stands for other figures."""
        (kept,) = await self._remember([(target_id, price, source, effective_us)])
        return kept

    async def remember_all(self, prices: Iterable[DatedPrice]) -> list[DatedPrice]:
        """Store many versions as `remember` does; return them in the order given."""
        given = list(prices)
        kept: list[DatedPrice] = []
        for start in range(0, len(given), _AT_ONCE):
            part = given[start : start + _AT_ONCE]
            named = await self._remember(
                [(each.target_id, each.price, each.source, each.effective_us) for each in part]
            )
            kept += [msgspec.structs.replace(each, price=price) for each, price in zip(part, named, strict=True)]
        return kept

    async def overrides(self) -> list[DatedPrice]:
        """Return overrides that were not withdrawn, in the order they were entered. Raises PriceError."""
        query = (
            select(PriceVersion)
            .where(col(PriceVersion.source) == "override", col(PriceVersion.withdrawn_us).is_(None))
            .order_by(col(PriceVersion.created_us), col(PriceVersion.target_id), col(PriceVersion.version))
            .limit(MOST_OVERRIDES)
        )
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query)).mappings().all()
        return [
            DatedPrice(
                target_id=row["target_id"],
                price=_price_of_row(row),
                source="override",
                effective_us=row["effective_us"],
                note=row["note"],
            )
            for row in rows
        ]

    async def add_override(self, target_id: str, price: Price, effective_us: int, *, note: str = "") -> DatedPrice:
        """Enter a price that takes precedence over the configured ones; an identical override is returned as it is.

        A version name that is taken gets a suffix. Raises PriceRefused.
        """
        if len(note) > MOST_NOTE_CHARACTERS:
            raise PriceRefused(f"a note has at most {MOST_NOTE_CHARACTERS} characters")
        same = (each for each in await self.overrides() if each.target_id == target_id)
        for each in same:
            if each.effective_us == effective_us and each.note == note and each.price.same_figures(price):
                return each
        async with self._engine.begin() as connection:
            for number in range(_TRIES):
                named = price.named(_candidate_name(price, number))
                row = self._as_row(target_id, named, "override", effective_us, note)
                if await self._insert(connection, [row]):
                    return DatedPrice(
                        target_id=target_id, price=named, source="override", effective_us=effective_us, note=note
                    )
        raise PriceRefused(f"{target_id} has too many prices called {price.version}; choose another version")

    async def withdraw(self, target_id: str, version: str) -> None:
        """Withdraw an override: the prices beneath it count again. What was booked at it stays.

        Raises UnknownPrice, and PriceRefused for what is no override.
        """
        if "\x00" in target_id + version:
            # PostgreSQL refuses a NUL in a parameter.
            raise UnknownPrice("no name of a target or price has a NUL in it")
        here = (col(PriceVersion.target_id) == target_id) & (col(PriceVersion.version) == version)
        async with self._engine.begin() as connection:
            # Write first: on SQLite a transaction that begins with reading may not get to write.
            taken_back = await connection.execute(
                update(PriceVersion)
                .where(here, col(PriceVersion.source) == "override", col(PriceVersion.withdrawn_us).is_(None))
                .values(withdrawn_us=self._now_us())
            )
            if taken_back.rowcount:
                return
            source = (await connection.execute(select(col(PriceVersion.source)).where(here))).scalar()
        if source is None:
            raise UnknownPrice(f"{target_id} has no price {version!r}; `weighbridge prices list --all` shows them")
        if source != "override":
            raise PriceRefused(f"{version} of {target_id} comes from {source}, so it is changed there")

    async def figures(self, target_id: str, version: str) -> Price | None:
        """Return the price that rows of this version were booked at; None if it was never stored. Raises PriceError."""
        query = select(PriceVersion).where(
            col(PriceVersion.target_id) == target_id, col(PriceVersion.version) == version
        )
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).mappings().first()
        return None if row is None else _price_of_row(row)

    async def known(self, target_id: str) -> list[KnownPrice]:
        """Return every stored version of a target, newest first, at most `MOST_KNOWN`. Raises PriceError."""
        query = select(PriceVersion).where(col(PriceVersion.target_id) == target_id)
        query = query.order_by(col(PriceVersion.created_us).desc(), col(PriceVersion.version)).limit(MOST_KNOWN)
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query)).mappings().all()
        names = ("source", "effective_us", "note", "created_us", "withdrawn_us")
        return [KnownPrice(price=_price_of_row(row), **{name: row[name] for name in names}) for row in rows]

    async def _remember(self, given: Sequence[tuple[str, Price, KnownSource, int]]) -> list[Price]:
        """Insert new rows, read the stored ones, and rename prices that differ from theirs, until none does."""
        prices = [price.named(_truncated(price.version)) for _, price, _, _ in given]
        pending = list(range(len(given)))
        for number in range(1, _TRIES):
            rows = [
                self._as_row(target_id, prices[place], source, effective_us)
                for place in pending
                for target_id, _, source, effective_us in (given[place],)
            ]
            async with self._engine.begin() as connection:
                await self._insert(connection, rows)
                known = await self._figures_of(connection, {row["target_id"] for row in rows})
            pending = [
                place
                for place, row in zip(pending, rows, strict=True)
                if known[row["target_id"], row["version"]] != row["figures"]
            ]
            if not pending:
                return prices
            for place in pending:
                prices[place] = prices[place].named(_candidate_name(given[place][1], number))
        raise PriceRefused(f"{given[0][0]} has too many prices of one name")

    async def _figures_of(self, connection: AsyncConnection, targets: set[str]) -> dict[tuple[str, str], str]:
        query = select(col(PriceVersion.target_id), col(PriceVersion.version), col(PriceVersion.figures))
        rows = await connection.execute(query.where(col(PriceVersion.target_id).in_(sorted(targets))))
        return {(row.target_id, row.version): row.figures for row in rows}

    def _as_row(
        self, target_id: str, price: Price, source: KnownSource, effective_us: int, note: str = ""
    ) -> dict[str, Any]:
        return {
            "target_id": target_id,
            "version": price.version,
            "source": source,
            "effective_us": effective_us,
            "figures": to_json(price),
            "note": note,
            "created_us": self._now_us(),
            "withdrawn_us": None,
        }

    async def _insert(self, connection: AsyncConnection, rows: list[dict[str, Any]]) -> bool:
        """Insert rows, and return True if any was new. They go in key order, so that two writers never deadlock."""
        ordered = sorted(rows, key=lambda row: (row["target_id"], row["version"]))
        insert: Insert
        if self._engine.dialect.name == "sqlite":
            insert = sqlite.insert(PriceVersion).values(ordered).on_conflict_do_nothing()
        else:
            insert = postgresql.insert(PriceVersion).values(ordered).on_conflict_do_nothing()
        return (await connection.execute(insert)).rowcount > 0


def _truncated(version: str) -> str:
    return version[: MOST_VERSION_CHARACTERS - _SUFFIX_CHARACTERS]


def _candidate_name(price: Price, number: int) -> str:
    """Return the version name: as given for 0, with the figures' digest for 1, and with a number too from 2 on."""
    name = _truncated(price.version)
    if number == 0:
        return name
    return f"{name}~{price.digest()}" + ("" if number == 1 else f"-{number}")


def _price_of_row(row: Any) -> Price:
    try:
        return from_json(row["figures"])
    except ValueError as failure:
        raise PriceError(
            f"price {row['version']} of {row['target_id']} cannot be read; was it written by a newer release?"
        ) from failure
