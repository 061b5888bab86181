"""Reader of Anthropic's `/v1/organizations/usage_report/messages` and `/v1/organizations/cost_report`, and of the tables of the same
that its console downloads.

Its cache reads and writes come on top of the uncached input. Its amounts are texts, in cents.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from cost.reconcile.statement import (
    EXACT,
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
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_USAGE_MARKS: Final = ("uncached_input_tokens", "output_tokens", "cache_read_input_tokens")
_DIMENSIONS: Final = (
    "api_key_id",
    "workspace_id",
    "account_id",
    "service_account_id",
    "model",
    "service_tier",
    "context_window",
    "inference_geo",
    "speed",
    "cost_type",
    "token_type",
    "description",
)
_METERS: Final = {
    "uncached_input_tokens": "input",
    "cache_read_input_tokens": "cached_input",
    "cache_creation.ephemeral_5m_input_tokens": "cache_write",
    "cache_creation.ephemeral_1h_input_tokens": "cache_write_1h",
    "output_tokens": "output",
}


_TOKENS_OF_COLUMNS: Final = {
    "uncached_input_tokens": "usage_input_tokens_no_cache",
    "cache_read_input_tokens": "usage_input_tokens_cache_read",
    "output_tokens": "usage_output_tokens",
}
_CREATED_OF_COLUMNS: Final = {
    "ephemeral_5m_input_tokens": "usage_input_tokens_cache_write_5m",
    "ephemeral_1h_input_tokens": "usage_input_tokens_cache_write_1h",
}
_TYPES_OF_CELLS: Final = {
    "input_no_cache": "uncached_input_tokens",
    "input_cache_read": "cache_read_input_tokens",
    "input_cache_write_5m": "cache_creation.ephemeral_5m_input_tokens",
    "input_cache_write_1h": "cache_creation.ephemeral_1h_input_tokens",
    "output": "output_tokens",
}


def read_anthropic(files: Sequence[tuple[str, bytes]]) -> Statement:
    """Read the statement in these files, given as names and contents. Raises BadExport."""
    pages = read_pages(files, _bucket, _kind, _row)
    usage_days = covered_days(pages, _USAGE, _dimensions)
    cost_days = covered_days(pages, _COSTS, _dimensions)
    results = [(page.kind, each.day_us, result) for page in pages for each in page.buckets for result in each.results]
    return Statement(
        provider="anthropic",
        usage=tuple(_usage(day, each) for kind, day, each in results if kind == _USAGE),
        costs=tuple(_cost(day, each) for kind, day, each in results if kind == _COSTS),
        usage_days=usage_days,
        cost_days=cost_days,
        notes=("Anthropic's cost report does not contain the priority tier",) if cost_days else (),
        digest=digest_of(files),
    )


def _bucket(node: Node) -> Bucket:
    return bucket(node, *(_moment_us(node, name) for name in ("starting_at", "ending_at")))


def _row(row: Node) -> dict[str, Any]:
    """Return a row of the console's table as a bucket of its day."""
    cells: dict[str, str] = row.value
    try:
        day = date.fromisoformat(cells.get("usage_date_utc", ""))
    except ValueError:
        row.member("usage_date_utc").fail("a day such as 2026-11-20 is expected here: a table of usage or of costs")
    times = {"starting_at": f"{day}T00:00:00Z", "ending_at": f"{day + timedelta(days=1)}T00:00:00Z"}
    named: dict[str, Any] = {name: cells.get(name) for name in ("context_window", "inference_geo", "speed")}
    named |= {"workspace_id": cells.get("workspace"), "service_tier": cells.get("usage_type")}
    if "cost_usd" in cells:
        kind = cells.get("cost_type", "")
        return {**times, "results": [{
            **named,
            # The API's amounts are in cents.
            "amount": str(row.amount("cost_usd").scaleb(2, EXACT)),
            "currency": "USD",
            "cost_type": "tokens" if kind == "token" else kind,
            "token_type": _TYPES_OF_CELLS.get(cells.get("token_type", ""), ""),
            "model": cells.get("model"),
        }]}  # fmt: skip
    counts = {name: whole_number(cells.get(column)) for name, column in _TOKENS_OF_COLUMNS.items()}
    created = {name: whole_number(cells.get(column)) for name, column in _CREATED_OF_COLUMNS.items()}
    told = {"model": cells.get("model_version"), "api_key_id": cells.get("api_key"), "cache_creation": created}
    return {**times, "results": [{**named, **counts, **told}]}


def _moment_us(node: Node, name: str) -> int:
    found = node.member(name)
    try:
        moment = datetime.fromisoformat(node.text(name))
    except ValueError:
        found.fail("a moment such as 2026-11-20T00:00:00Z is expected here")
    if moment.tzinfo is None:
        found.fail("a moment needs its time zone")
    since = moment - _EPOCH
    if since.days < 0:
        found.fail("a moment after 1970 is expected here")
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _kind(result: Node) -> str:
    if result.member("amount").value is not None:
        return _COSTS
    if any(result.member(name).value is not None for name in _USAGE_MARKS):
        return _USAGE
    return result.fail("a result of usage_report/messages or of cost_report is expected here")


def _dimensions(result: Node) -> tuple[Any, ...]:
    return tuple(str(result.member(name).value) for name in _DIMENSIONS)


def _usage(day_us: int, result: Node) -> UsageLine:
    creation = result.member("cache_creation")
    told = creation.value is not None
    return UsageLine(
        day_us=day_us,
        model=result.text("model"),
        key=result.text("api_key_id"),
        tokens=(
            result.count("uncached_input_tokens"),
            result.count("cache_read_input_tokens"),
            creation.count("ephemeral_5m_input_tokens") if told else 0,
            creation.count("ephemeral_1h_input_tokens") if told else 0,
            result.count("output_tokens"),
        ),
        requests=0,
    )


def _cost(day_us: int, result: Node) -> CostLine:
    if result.text("currency").lower() not in {"usd", ""}:
        result.member("currency").fail("only US dollars can be reconciled")
    kind, model = result.text("cost_type"), result.text("model")
    # A report that was not grouped has neither a type nor a model: then it is the whole day.
    charge = "" if kind in {"tokens", ""} else kind
    return CostLine(
        day_us=day_us,
        model="" if charge else model,
        # It has no keys; a workspace is all it can be grouped by.
        key="",
        meter="" if charge else _METERS.get(result.text("token_type"), ""),
        amount_usd=result.amount("amount").scaleb(-2, EXACT),
        charge=charge,
    )
