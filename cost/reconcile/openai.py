"""Reader of OpenAI's `/v1/organization/usage/completions` (or embeddings) and `/v1/organization/costs`, and of the tables of the
same that its dashboard downloads.

Its buckets are inclusive: `input_tokens` contains what was read from and written to the cache. Its dollars are floats,
and newer ones texts; either is read as it is written.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from cost.meters import MEDIA
from cost.reconcile.statement import (
    Bucket,
    CostLine,
    Node,
    Statement,
    UsageLine,
    bucket,
    covered_days,
    digest_of,
    read_pages,
    whole_number,
)

_USAGE: Final = "usage"
_COSTS: Final = "costs"
_US: Final = 1_000_000
_LAST_SECOND: Final = 253_402_300_799
_USAGE_OBJECT: Final = re.compile(r"organization\.usage\.(\w+)\.result")
_COUNTED: Final = frozenset({"completions", "embeddings", "moderations"})
_DIMENSIONS: Final = ("object", "project_id", "user_id", "api_key_id", "model", "batch", "service_tier", "line_item")

# What follows the model in a cost's line item (`gpt-4o-2024-08-06, cached input`).
_METERS: Final = {
    "input": "input",
    "cached input": "cached_input",
    "input cached": "cached_input",
    "input (cached)": "cached_input",
    "cache write": "cache_write",
    "cache writes": "cache_write",
    "output": "output",
    **{f"{medium} {side}": side for medium in ("text", *sorted(MEDIA)) for side in ("input", "output")},
    **{f"cached {medium} input": "cached_input" for medium in ("text", *sorted(MEDIA))},
    **{f"{medium} cached input": "cached_input" for medium in ("text", *sorted(MEDIA))},
}


def read_openai(files: Sequence[tuple[str, bytes]]) -> Statement:
    """Read the statement in these files, given as names and contents. Raises BadExport."""
    pages = read_pages(files, _bucket, _kind, _row)
    usage_days = covered_days(pages, _USAGE, _dimensions)
    cost_days = covered_days(pages, _COSTS, _dimensions)
    results = [(page.kind, each.day_us, result) for page in pages for each in page.buckets for result in each.results]
    uncounted = {_usage_type(result) for kind, _, result in results if kind == _USAGE} - _COUNTED
    return Statement(
        provider="openai",
        usage=tuple(
            _usage(day, each) for kind, day, each in results if kind == _USAGE and _usage_type(each) in _COUNTED
        ),
        costs=tuple(_cost(day, each) for kind, day, each in results if kind == _COSTS),
        usage_days=usage_days,
        cost_days=cost_days,
        notes=tuple(f"usage of {name} is not counted in tokens and was left out" for name in sorted(uncounted)),
        digest=digest_of(files),
    )


def _bucket(node: Node) -> Bucket:
    start, end = (_second(node, name) for name in ("start_time", "end_time"))
    return bucket(node, start * _US, end * _US)


def _row(row: Node) -> dict[str, Any]:
    """Return a row of the dashboard's table as a bucket. A day without figures is a row without them."""
    cells: dict[str, str] = row.value
    times = {name: whole_number(cells.get(name)) for name in ("start_time", "end_time")}
    named = {name: cells.get(name) for name in _DIMENSIONS[1:]}
    if "amount_value" in cells:
        amount = {"value": cells["amount_value"], "currency": cells.get("amount_currency", "")}
        return {**times, "results": [{"object": "organization.costs.result", "amount": amount, **named}]}
    if not cells.keys() & {"input_tokens", "output_tokens", "num_model_requests"}:
        return {**times, "results": []}
    if "input_tokens" not in cells:
        row.fail("input_tokens is expected here, or amount_value: a table of completions, of embeddings or of costs")
    counts = {
        name: whole_number(cells[name]) for name in cells if name.endswith("_tokens") or name == "num_model_requests"
    }
    return {**times, "results": [{"object": "organization.usage.completions.result", **counts, **named}]}


def _second(node: Node, name: str) -> int:
    found = node.member(name)
    if type(found.value) is not int or not 0 <= found.value <= _LAST_SECOND:
        found.fail("a Unix time in whole seconds is expected here")
    return int(found.value)


def _kind(result: Node) -> str:
    name = result.text("object")
    if name == "organization.costs.result" or (not name and result.member("amount").value is not None):
        return _COSTS
    if _USAGE_OBJECT.fullmatch(name) or (not name and result.member("input_tokens").value is not None):
        return _USAGE
    return result.member("object").fail(
        "organization.usage.completions.result or organization.costs.result is expected"
    )


def _usage_type(result: Node) -> str:
    found = _USAGE_OBJECT.fullmatch(result.text("object"))
    return found[1] if found else "completions"


def _dimensions(result: Node) -> tuple[Any, ...]:
    # As text: whatever stands there can then be a part of a key.
    return tuple(str(result.member(name).value) for name in _DIMENSIONS)


def _usage(day_us: int, result: Node) -> UsageLine:
    cached, written = result.count("input_cached_tokens"), result.count("input_cache_write_tokens")
    fresh = result.count("input_tokens") - cached - written
    if fresh < 0:
        result.fail("more tokens came from and went to the cache than input_tokens has")
    return UsageLine(
        day_us=day_us,
        model=result.text("model"),
        key=_key(result),
        tokens=(fresh, cached, written, 0, result.count("output_tokens")),
        requests=result.count("num_model_requests"),
    )


def _cost(day_us: int, result: Node) -> CostLine:
    amount = result.member("amount")
    if amount.text("currency").lower() not in {"usd", ""}:
        amount.member("currency").fail("only US dollars can be reconciled")
    item = result.text("line_item")
    model, _, meter = item.rpartition(", ")
    named = bool(model) and meter.lower() in _METERS
    return CostLine(
        day_us=day_us,
        model=model if named else "",
        key=_key(result),
        meter=_METERS[meter.lower()] if named else "",
        amount_usd=amount.amount("value"),
        charge="" if named else item,
    )


def _key(result: Node) -> str:
    """Return the API key's id, else the project's: a `--map` can name either."""
    return next(_nonempty(result, "api_key_id", "project_id"), "")


def _nonempty(result: Node, *names: str) -> Iterator[str]:
    yield from (text for text in map(result.text, names) if text)
