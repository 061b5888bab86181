"""/dashboard/finance/prices: each target's price with its source and history; admins of the operating organisation
enter prices.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Depends
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from api.prices import change as changes
from api.prices.listing import BadPrice, checked_prices, exact, today
from api.web.gateway import Gateway
from api.web.patience import patience
from api.web.reading import reading
from cost.errors import PriceError, UnknownPrice
from cost.meters import METER_NAMES, METERS, PRICED_PER_TOKEN
from cost.price_book.book import DatedPrice, PriceBook
from cost.price_book.store import MOST_NOTE_CHARACTERS, KnownPrice, PriceStore
from cost.prices import Price, usd
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.forms import Form, FormError
from dashboards.web.view import PageRequest
from proxy.errors import BadRequest, ModelNotFound, PriceNotFound, PricesUnavailable

router: Final = APIRouter(include_in_schema=False)

PATH: Final = "/dashboard/finance/prices"
_SOURCES: Final[Mapping[str, str]] = {
    "config": "configuration",
    "litellm": "litellm's table",
    "override": "entered here",
    "correction": "correction",
}
_METER_LABELS: Final = {each.name: each.price_label for each in METERS if each.in_tokens}
_SELDOM: Final = frozenset(each.name for each in METERS if each.follows)
"""Meters that mostly cost what another one does."""
_FIGURES: Final = tuple(
    Column(meter, label, note="US dollars per million tokens", sortable=False)
    for meter, label in _METER_LABELS.items()
    if meter not in _SELDOM
)
_FIELDS: Final = (
    *(
        (
            each.name,
            each.field_label or each.price_label,
            f"{each.field_hint or f'as {each.within}'}, when empty" if each.within else "needed",
        )
        for each in PRICED_PER_TOKEN
    ),
    ("request", "Each request", "US dollars for one, not for a million"),
    ("batch_discount", "Batch discount", "a share, such as 0.5"),
)
"""Field, label, hint. Prices of long prompts have too many figures for a form: they are entered by command."""
_PATIENCE_S: Final = 5.0
_BOOK: Final = (
    Column("target", "Model", "link"),
    Column("state", "State", "badge"),
    *_FIGURES,
    Column("further", "Other", sortable=False),
    Column("source", "Where it is from"),
    Column("from_us", "In effect from", "day"),
    Column("version", "Version", "code"),
    Column("provider", "Provider", usual=False),
)
_HISTORY: Final = (
    Column("version", "Version", "code"),
    Column("state", "State", "badge"),
    *(
        Column(meter, label, note="US dollars per million tokens", sortable=False, usual=meter not in _SELDOM)
        for meter, label in _METER_LABELS.items()
    ),
    Column("further", "Other", sortable=False),
    Column("source", "Where it is from"),
    Column("from_us", "Counts from", "day"),
    Column("created_us", "Known since", "time", usual=False),
    Column("withdrawn_us", "Taken back", "time"),
    Column("note", "Note"),
)


@router.get(PATH)
async def show(view: Annotated[PageRequest, Depends(allowed("finance.read"))]) -> Response:
    """List every target of the catalog with the price in effect."""
    gateway, now_us = view.gateway, view.now_us
    rows = [_target_row(gateway, target_id, now_us) for target_id in gateway.rules().catalog.targets]
    table = Table.of(
        _filled(_BOOK, rows),
        rows,
        view.query,
        name="prices",
        caption="Prices",
        sort="target",
        search=("target", "provider", "version"),
    )
    return view.csv_asked("prices", table) or view.page(
        "prices/prices.html",
        title="Price book",
        table=table,
        missing=sum(row["version"] is None for row in rows),
        unpriced=gateway.config().cost.unpriced,
    )


def _filled(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    """Return the columns, of which those that no row fills are shown only when they are chosen."""
    seldom = {each.key for each in columns if rows and all(row[each.key] in {None, ""} for row in rows)}
    return tuple(msgspec.structs.replace(each, usual=each.usual and each.key not in seldom) for each in columns)


@router.post(PATH)
async def enter(view: Annotated[PageRequest, Depends(allowed("prices.change"))]) -> Response:
    """Enter a price that overrides the configured ones, for every organisation. Every server follows within seconds."""
    gateway, form = view.gateway, await view.form()
    target = form.text("target", required=True)
    if target not in gateway.rules().catalog:
        raise ModelNotFound(f"There is no model `{target[:80]}`.", param="target")
    try:
        entered = checked_prices(_submitted_values(form))
        price, effective_us = entered.entered(today(view.now_us))
        async with _changing():
            kept = await changes.set_price(
                gateway.identity.audit, view.actor, target, price, effective_us, note=entered.note
            )
    except (BadPrice, FormError, PriceError) as error:
        field = error.field if isinstance(error, (BadPrice, FormError)) else "version"
        said = str(error).removeprefix(f"`{field}` ").rstrip(".")
        return await _one(view, target, given=form.plain, wrong=(field, f"{said[:1].upper()}{said[1:]}."))
    await gateway.finance.reprice()
    return view.redirect(_address(target), told=f"{target} has the price {kept.price.version}.")


@router.post(f"{PATH}/withdraw")
async def withdraw(view: Annotated[PageRequest, Depends(allowed("prices.change"))]) -> Response:
    """Withdraw an entered price; the next price in precedence applies again. Bookings at it stay."""
    gateway, form = view.gateway, await view.form()
    target, version = form.text("target", required=True), form.text("version", required=True)
    try:
        async with _changing():
            await changes.withdraw_price(gateway.identity.audit, view.actor, target, version)
    except UnknownPrice as error:
        raise PriceNotFound(f"{error}.", param="version") from error
    except PriceError as error:
        raise BadRequest(f"{error}.", param="version") from error
    await gateway.finance.reprice()
    return view.redirect(_address(target), told=f"{version} is taken back; what lies beneath it counts again.")


@router.get(f"{PATH}/{{target:path}}")
async def one(target: str, view: Annotated[PageRequest, Depends(allowed("finance.read"))]) -> Response:
    """Show one target: its price in effect, upcoming and overridden ones, and every version that bookings used."""
    return await _one(view, target)


async def _one(
    view: PageRequest, target: str, *, given: Mapping[str, str] | None = None, wrong: tuple[str, str] = ("", "")
) -> Response:
    """Show the target's page. `given` is a refused entry's values, `wrong` the field and message."""
    gateway, now_us = view.gateway, view.now_us
    book = gateway.finance.prices.book
    is_known = target in gateway.rules().catalog
    known = await _known_prices(gateway, target) if "\x00" not in target else []
    if not known and not is_known:
        raise ModelNotFound(f"There is no model `{target[:80]}`.", param="target")
    current = book.entry_at(target, now_us)
    rows = _history_rows(book, target, known, current, now_us)
    table = Table.of(
        _filled(_HISTORY, rows),
        rows,
        view.query,
        name="versions",
        caption="Versions",
        sort="-created_us",
        empty="No price was ever known.",
    )
    upcoming = sorted(
        (each for each in book.prices.get(target, ()) if each.effective_us > now_us), key=lambda each: each.effective_us
    )
    return view.csv_asked("prices-history", table) or view.page(
        "prices/price.html",
        title=target,
        status=400 if wrong[1] else 200,
        target=target,
        given=given or {},
        wrong={wrong[0]: wrong[1]} if wrong[1] else {},
        fields=_FIELDS,
        may_change=view.may("prices.change") and is_known,
        entered=[each for each in book.prices.get(target, ()) if each.source == "override"],
        is_known=is_known,
        current=current,
        figures=[] if current is None else _figure_rows(current.price),
        source=None if current is None else _SOURCES.get(current.source, current.source),
        upcoming=[(each, _figure_rows(each.price)) for each in upcoming],
        table=table,
    )


def _submitted_values(form: Form) -> dict[str, Any]:
    """Return the submitted values without empty fields, which are unset and not 0."""
    names = (*(name for name, _, _ in _FIELDS), "effective_from", "note")
    found = {name: form.text(name, most=MOST_NOTE_CHARACTERS) for name in names}
    return {name: value for name, value in found.items() if value}


def _address(target: str) -> str:
    return f"{PATH}/{quote(target, safe='')}"


@contextlib.asynccontextmanager
async def _changing() -> AsyncIterator[None]:
    try:
        async with patience(_PATIENCE_S):
            yield
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise PricesUnavailable("The database does not answer; nothing was changed, try again shortly.") from error


async def _known_prices(gateway: Gateway, target: str) -> list[KnownPrice]:
    async with reading(gateway, on=True):
        try:
            return await PriceStore(gateway.database).known(target)
        except PriceError as error:
            raise PricesUnavailable(f"The history cannot be read: {error}.") from error


def _target_row(gateway: Gateway, target_id: str, now_us: int) -> dict[str, Any]:
    book = gateway.finance.prices.book
    current = book.entry_at(target_id, now_us)
    later = any(each.effective_us > now_us for each in book.prices.get(target_id, ()))
    return {
        "target": target_id,
        "target_href": _address(target_id),
        "provider": gateway.rules().catalog.targets[target_id].provider,
        **_figures(None if current is None else current.price),
        "source": None if current is None else _SOURCES.get(current.source, current.source),
        "from_us": current.effective_us if current is not None and current.effective_us else None,
        "version": None if current is None else current.price.version,
        "state": _state(current, later=later),
    }


def _state(current: DatedPrice | None, *, later: bool) -> tuple[str, str]:
    if current is None:
        return "no price", "bad"
    return ("changes soon", "info") if later else ("in effect", "good")


def _history_rows(
    book: PriceBook, target: str, known: list[KnownPrice], current: DatedPrice | None, now_us: int
) -> list[dict[str, Any]]:
    """Return every version, marked as in effect, upcoming, overridden, or past."""
    in_book = {each.price.version: each for each in book.prices.get(target, ())}
    rows = [
        {
            "version": each.price.version,
            **_figures(each.price),
            "source": _SOURCES.get(each.source, each.source),
            "from_us": each.effective_us or None,
            "created_us": each.created_us,
            "withdrawn_us": each.withdrawn_us,
            "note": each.note or None,
            "state": _version_state(
                each.price.version, in_book, current, now_us, taken_back=each.withdrawn_us is not None
            ),
        }
        for each in known
    ]
    listed = {each.price.version for each in known}
    for version, each in in_book.items():
        if version not in listed:
            rows.append(
                {
                    "version": version,
                    **_figures(each.price),
                    "source": _SOURCES.get(each.source, each.source),
                    "from_us": each.effective_us or None,
                    "created_us": None,
                    "withdrawn_us": None,
                    "note": each.note or None,
                    "state": _version_state(version, in_book, current, now_us, taken_back=False),
                }
            )
    return rows


def _version_state(
    version: str, in_book: Mapping[str, DatedPrice], current: DatedPrice | None, now_us: int, *, taken_back: bool
) -> tuple[str, str]:
    if taken_back:
        return "taken back", "quiet"
    if current is not None and version == current.price.version:
        return "in effect", "good"
    if version not in in_book:
        return "of the past", "quiet"
    return ("to come", "info") if in_book[version].effective_us > now_us else ("beneath another", "quiet")


def _figures(price: Price | None) -> dict[str, str | None]:
    """Return exact dollars per million tokens."""
    if price is None:
        return {**dict.fromkeys(_METER_LABELS), "further": None}
    figures = {name: _dollars(amount) for name, amount in zip(METER_NAMES, price.figures(), strict=True)}
    return {**{name: figures[name] for name in _METER_LABELS}, "further": "; ".join(_further(price)) or None}


def _further(price: Price) -> list[str]:
    told = []
    if price.request_nanousd:
        told.append(f"${_dollars(price.request_nanousd)} a request")
    told += [f"${exact(each.usd)} a {each.unit}" for each in price.units]
    for each in price.long_prompts:
        inner = each.price
        told.append(
            f"above {each.above_tokens:,} tokens {_dollars(inner.input_nanousd)} in, {_dollars(inner.output_nanousd)} out"
        )
    for terms, other in (("batch", price.batch), ("flex", price.flex), ("priority", price.priority)):
        if other is not None:
            told.append(f"{terms} {_dollars(other.input_nanousd)} in, {_dollars(other.output_nanousd)} out")
    return told


def _figure_rows(price: Price) -> list[tuple[str, str]]:
    figures = _figures(price)
    rows = [(label, f"${figures[meter]}") for meter, label in _METER_LABELS.items()]
    return [*rows, *(("Other", each) for each in _further(price))]


def _dollars(amount_nanousd: int) -> str:
    """Return exact dollars, with at least two decimals."""
    whole, _, cents = exact(usd(amount_nanousd)).partition(".")
    return f"{whole}.{cents:0<2}"
