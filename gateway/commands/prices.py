"""`weighbridge prices`: what targets cost and why, prices that operators enter, and what was booked at a wrong one."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cost.meters import METERS
from cost.times import wall_us
from gateway.commands.shared import ConfigOption, JsonOption, fail, open_engine, print_json, read_config
from gateway.table import counted, print_table

if TYPE_CHECKING:
    from cost.price_book.book import PriceBook
    from cost.price_book.correction import Correction
    from cost.price_book.price_config import EnteredPrices
    from gateway.configuration.gateway_config import GatewayConfig

prices_app = typer.Typer(
    help="What models cost: configured, from litellm's table, or entered here.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
TargetArgument = Annotated[str, typer.Argument(metavar="TARGET", help="The model's model_id.")]
_USD = "USD"
InputOption = Annotated[str | None, typer.Option("--input", metavar=_USD, help="For a million prompt tokens.")]
OutputOption = Annotated[str | None, typer.Option("--output", metavar=_USD, help="For a million generated tokens.")]
CachedOption = Annotated[
    str | None, typer.Option("--cached-input", metavar=_USD, help="For a million tokens read from the cache.")
]
WriteOption = Annotated[
    str | None, typer.Option("--cache-write", metavar=_USD, help="For a million tokens written to the cache.")
]
Write1hOption = Annotated[
    str | None, typer.Option("--cache-write-1h", metavar=_USD, help="For a million written to be kept for an hour.")
]
ReasoningOption = Annotated[
    str | None, typer.Option("--reasoning", metavar=_USD, help="For a million reasoning tokens.")
]
RequestOption = Annotated[str | None, typer.Option("--request", metavar=_USD, help="For one request.")]
DiscountOption = Annotated[
    str | None, typer.Option("--batch-discount", metavar="SHARE", help="What a batch costs less, such as 0.5.")
]
FiguresOption = Annotated[
    str | None,
    typer.Option(
        "--figures",
        metavar="JSON",
        help="In place of the options above: a whole price as the configuration has it, with long_prompts and batch.",
    ),
]
_DAY = ["%Y-%m-%d"]
_METERS = ("input", "cached_input", "cache_write", "output")
_FURTHER = {each.name: each.within for each in METERS if each.follows}
"""Meters that are told where they do not cost what the one does that they are within."""
_METER_HEADINGS = tuple(meter.replace("_", " ") for meter in _METERS)


@prices_app.command("list")
async def list_prices(
    at: Annotated[
        datetime | None, typer.Option("--at", formats=_DAY, metavar="DAY", help="As of this day's beginning, UTC.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also the prices that are past, to come, or beneath another.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what each target costs, since when, and who said so."""
    from api.prices.listing import entry_told, prices_as_json
    from cost.times import start_of

    settings = read_config(config)
    book = await _book(settings)
    at_us = wall_us() if at is None else start_of(at.date())
    listed = []
    for model in settings.providers.models:
        now = prices_as_json(book, model.model_id, at_us)
        listed.append({**now, "in_effect": now["version"] is not None})
        if everything:
            current = book.entry_at(model.model_id, at_us)
            others = (each for each in book.prices.get(model.model_id, ()) if each is not current)
            listed += [{"target": model.model_id, **entry_told(each), "in_effect": False} for each in others]
    if as_json:
        print_json(listed)
    else:
        _print_prices(listed, everything=everything)


@prices_app.command("history")
async def price_history(target: TargetArgument, as_json: JsonOption = False) -> None:
    """List every version that a target's rows may say they were booked at, the newest first."""
    from api.prices.listing import day_of, figures_told
    from cost.price_book.store import PriceStore

    async with open_engine() as engine:
        known = await PriceStore(engine).known(target)
    listed = [
        {
            "version": each.price.version,
            "source": each.source,
            "effective_from": day_of(each.effective_us) if each.effective_us else None,
            "known_since": day_of(each.created_us),
            "withdrawn": None if each.withdrawn_us is None else day_of(each.withdrawn_us),
            "note": each.note,
            **figures_told(each.price),
        }
        for each in known
    ]
    if as_json:
        print_json(listed)
    elif not listed:
        typer.echo(f"nothing of {target} was booked yet", err=True)
    else:
        days = ("effective_from", "known_since", "withdrawn")
        rows = [
            [each["version"], each["source"], *(each[day] or "-" for day in days), *_figures(each), each["note"] or "-"]
            for each in listed
        ]
        headings = ["version", "source", "from", "known since", "withdrawn", *_METER_HEADINGS, "further", "note"]
        print_table(headings, rows, right=range(5, 5 + len(_METERS)))


@prices_app.command("set")
async def set_price(
    target: TargetArgument,
    *,
    input_usd: InputOption = None,
    output_usd: OutputOption = None,
    cached_input: CachedOption = None,
    cache_write: WriteOption = None,
    cache_write_1h: Write1hOption = None,
    reasoning: ReasoningOption = None,
    request: RequestOption = None,
    batch_discount: DiscountOption = None,
    figures: FiguresOption = None,
    effective_from: Annotated[
        datetime | None,
        typer.Option("--effective-from", formats=_DAY, metavar="DAY", help="The first day, UTC; today if left out."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--version", help="What the price is called; made from the date if left out.")
    ] = None,
    note: Annotated[str, typer.Option(help="Why, for those who read it later.")] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Enter a price. It comes before the configured ones; every server follows within seconds."""
    from api.prices import change as changes
    from api.prices.listing import entry_told
    from gateway.commands.audit import console, log_of, operators

    _known(read_config(config), target)
    given = _entered(
        figures,
        {
            "input": input_usd,
            "output": output_usd,
            "cached_input": cached_input,
            "cache_write": cache_write,
            "cache_write_1h": cache_write_1h,
            "reasoning": reasoning,
            "request": request,
            "batch_discount": batch_discount,
            "effective_from": None if effective_from is None else effective_from.date(),
            "version": name,
            "note": note or None,
        },
    )
    price, effective_us = given.entered(datetime.now(UTC).date())
    async with open_engine() as engine:
        actor = console(operators(config))
        kept = entry_told(await changes.set_price(log_of(engine), actor, target, price, effective_us, note=given.note))
    if as_json:
        print_json({"target": target, **kept})
    else:
        typer.echo(f"{target}: {kept['version']} from {kept['effective_from'] or 'the beginning'} on")


@prices_app.command("withdraw")
async def withdraw_price(
    target: TargetArgument,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="From `prices list --all`.")],
) -> None:
    """Take an entered price back: what lies beneath it counts again. What was booked at it stays."""
    from api.prices import change as changes
    from gateway.commands.audit import console, log_of, operators

    async with open_engine() as engine:
        await changes.withdraw_price(log_of(engine), console(operators()), target, version)
    typer.echo(f"{target}: {version} is withdrawn")


@prices_app.command("correct")
async def correct_price(
    target: TargetArgument,
    *,
    version: Annotated[
        str, typer.Option("--version", help="The version that was wrong; `unpriced` for what had no price.")
    ],
    first_day: Annotated[datetime, typer.Option("--from", formats=_DAY, metavar="DAY", help="The first day, UTC.")],
    last_day: Annotated[datetime, typer.Option("--to", formats=_DAY, metavar="DAY", help="The last day, UTC.")],
    input_usd: InputOption = None,
    output_usd: OutputOption = None,
    cached_input: CachedOption = None,
    cache_write: WriteOption = None,
    cache_write_1h: Write1hOption = None,
    reasoning: ReasoningOption = None,
    request: RequestOption = None,
    figures: FiguresOption = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="What the right price is called; made from the wrong one's if left out."),
    ] = None,
    post: Annotated[bool, typer.Option("--post", help="Post the differences; otherwise they are only shown.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Recompute bookings at a wrong price, and post the differences. No row is changed."""
    from cost.ledger.store import LedgerStore
    from cost.price_book.correction import find_correction, post_correction
    from cost.price_book.store import PriceStore
    from gateway.commands.audit import note, operators

    given = _entered(
        figures,
        {
            "input": input_usd,
            "output": output_usd,
            "cached_input": cached_input,
            "cache_write": cache_write,
            "cache_write_1h": cache_write_1h,
            "reasoning": reasoning,
            "request": request,
            "version": name,
        },
    )
    wrong = "" if version == "unpriced" else version
    price = given.price().named(name or f"corrected-{version}")

    posted: int | None = None
    async with open_engine() as engine:
        found = await find_correction(engine, target, wrong, price, first_day.date(), last_day.date())
        if post:
            posted, kept = await post_correction(LedgerStore(engine), PriceStore(engine), found)
        if posted:
            summary = {
                "target": target,
                "entries": posted,
                "as_version": kept,
                "difference_nanousd": found.total_nanousd,
            }
            await note(engine, operators(), "posting.posted", "posting", found.posting_id, summary)
    if as_json:
        print_json(_correction_told(found, posted))
    else:
        _print_correction(found, posted)


async def _book(settings: "GatewayConfig") -> "PriceBook":
    """Build the price book as a gateway has it."""
    from cost.price_book.book import price_book
    from cost.price_book.store import PriceStore
    from providers.catalog import configured_prices

    configured = configured_prices(settings.providers)
    async with open_engine() as engine:
        return price_book([*configured.entries(), *await PriceStore(engine).overrides()])


def _known(settings: "GatewayConfig", target: str) -> None:
    from settings.words import closest

    names = [model.model_id for model in settings.providers.models]
    if target not in names:
        near = closest(target, names)
        fail(f"there is no model {target!r}" + (f"; did you mean {near}?" if near else ""), 2)


def _entered(figures: str | None, options: dict[str, Any]) -> "EnteredPrices":
    from api.prices.listing import BadPrice, checked_prices, parse_prices

    given = {field: value for field, value in options.items() if value is not None}
    try:
        values = {} if figures is None else parse_prices(figures)
        twice = sorted(values.keys() & given.keys())
        if twice:
            fail(f"`{twice[0]}` is given twice: by an option and in --figures", 2)
        return checked_prices({**values, **given})
    except BadPrice as error:
        fail(f"the price is not valid: {error}", 2)


def _print_prices(listed: list[dict[str, Any]], *, everything: bool) -> None:
    headings = ["target", "version", "source", "from", *_METER_HEADINGS, "further"]
    rows = []
    for each in listed:
        if each["usd_per_million_tokens"] is None:
            rows.append([each["target"], "unpriced", "-", "-", *("-" for _ in _METERS), "-"])
            continue
        begins = each["effective_from"] or "-"
        rows.append([each["target"], each["version"], each["source"], begins, *_figures(each)])
    if everything:
        headings.insert(0, "")
        rows = [["now" if each["in_effect"] else "", *row] for each, row in zip(listed, rows, strict=True)]
    figures_at = 5 if everything else 4
    print_table(headings, rows, right=range(figures_at, figures_at + len(_METERS)))
    typer.echo("\nUS dollars per million tokens")


def _figures(each: dict[str, Any]) -> list[str]:
    """Format a row's figures by column, blank where it has none."""
    return [*(each["usd_per_million_tokens"][meter] for meter in _METERS), _further(each)]


def _further(each: dict[str, Any]) -> str:
    """Summarise in a few words what a row has no column for."""
    figures, found = each["usd_per_million_tokens"], []
    for name, whole in _FURTHER.items():
        if figures[name] != figures[whole]:
            found.append(f"{name.replace('_', ' ')} {figures[name]}")
    if each["usd_per_request"] != "0":
        found.append(f"each request {each['usd_per_request']}")
    found += [f"each {unit} {figure}" for unit, figure in each["usd_per_unit"].items()]
    found += [f"above {tier['above_tokens']:,}: {_pair(tier)}" for tier in each["long_prompts"]]
    found += [f"{terms} {_pair(each[terms])}" for terms in ("batch", "flex", "priority") if each[terms] is not None]
    return ", ".join(found) or "-"


def _pair(figures: dict[str, Any]) -> str:
    return "{input}/{output}".format_map(figures["usd_per_million_tokens"])


def _correction_told(found: "Correction", posted: int | None) -> dict[str, Any]:
    from api.prices.listing import day_of, exact
    from cost.meters import METER_NAMES
    from cost.prices import usd

    def dollars(amount: int) -> str:
        return exact(usd(amount))

    return {
        "target": found.target_id,
        "version": found.version or None,
        "first_day": found.first_day.isoformat(),
        "last_day": found.last_day.isoformat(),
        "rows": found.rows,
        "left_rows": found.left_rows,
        "difference_usd": dollars(found.total_nanousd),
        "baseline_rows": sum(each.rows for each in found.baselines),
        "baseline_difference_usd": dollars(sum(each.amounts[0] for each in found.baselines)),
        "posted": posted,
        "groups": [
            {
                "day": day_of(each.day_us),
                "organisation_id": each.organisation_id,
                "team_id": each.team_id,
                "key_id": each.key_id,
                "provider": each.provider,
                "tier": each.tier,
                "tag": each.tag,
                "pool": each.pool,
                "rows": each.rows,
                "booked_usd": dollars(sum(each.booked)),
                "right_usd": dollars(sum(each.right)),
                "difference_usd": dollars(sum(each.meters)),
                "difference_usd_by_meter": {
                    meter: dollars(amount) for meter, amount in zip(METER_NAMES, each.meters, strict=True)
                },
            }
            for each in found.differences
        ],
    }


def _print_correction(found: "Correction", posted: int | None) -> None:
    correction = _correction_told(found, posted)
    if correction["groups"]:
        names = ("day", "team_id", "key_id", "tier", "tag", "rows", "booked_usd", "right_usd", "difference_usd")
        headings = ["day", "team", "key", "tier", "tag", "attempts", "booked", "right", "difference"]
        rows = [[str(group[name]) or "-" for name in names] for group in correction["groups"]]
        print_table(headings, rows, right=(5, 6, 7, 8))
        typer.echo("")
    typer.echo(
        f"{counted(found.rows, 'attempt')} computed again, {found.left_rows:,} left as they are (an estimate, or nothing used); "
        f"difference {correction['difference_usd']} US dollars"
    )
    if found.baselines:
        typer.echo(
            f"{counted(correction['baseline_rows'], 'attempt')} compared with this price; "
            f"their baselines change by {correction['baseline_difference_usd']} US dollars"
        )
    if posted is not None:
        typer.echo(
            f"posted {counted(posted, 'entry', 'entries')}" if posted else "nothing to post: the books say so already"
        )
    elif found.differences or found.baselines:
        typer.echo("nothing is posted yet: give --post")
