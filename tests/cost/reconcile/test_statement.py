"""Reading exports: every oddity is either understood or refused with its place; nothing is guessed."""

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from cost.reconcile.openai import read_openai
from cost.reconcile.statement import BadExport, Bucket, Node, read_pages
from cost.times import day_of, start_of
from tests.cost.reconcile.exports import (
    DAY_S,
    DAY_US,
    file_of,
    lines_of,
    openai_bucket,
    openai_cost,
    openai_usage,
    page,
)

USAGE = openai_usage("gpt-4o", 10, 5)


def test_a_page_a_list_of_pages_and_json_lines_say_the_same() -> None:
    """However pages are kept in a file, they are read alike."""
    first, second = page(openai_bucket(USAGE), has_more=True), page(openai_bucket(USAGE, day=1))
    as_list, as_lines = read_openai([file_of([first, second])]), read_openai([lines_of([first, second])])
    in_lists = read_openai([lines_of([[first], [second]])])
    assert as_list.usage == as_lines.usage == in_lists.usage
    assert as_list.usage_days == {DAY_US: 86_400_000_000, DAY_US + 86_400_000_000: 86_400_000_000}


def test_a_byte_order_mark_and_blank_lines_do_not_matter() -> None:
    """What Windows tools leave in a file is passed over."""
    data = b"\xef\xbb\xbf" + json.dumps(page(openai_bucket(USAGE))).encode() + b"\n\n"
    assert len(read_openai([("export.json", data)]).usage) == 1


def test_both_kinds_may_come_in_one_file_or_in_two() -> None:
    """Usage and costs are told apart by what they are."""
    usage, costs = page(openai_bucket(USAGE)), page(openai_bucket(openai_cost("gpt-4o, input", 0.06)))
    one, two = read_openai([file_of([usage, costs])]), read_openai([file_of(usage), file_of(costs)])
    assert (one.usage, one.costs) == (two.usage, two.costs)
    assert len(one.usage) == len(one.costs) == 1


def test_an_empty_bucket_tells_that_there_was_nothing() -> None:
    """A day without results is a day of the file."""
    told = read_openai([file_of(page(openai_bucket(USAGE), openai_bucket(day=1)))])
    assert set(told.usage_days) == {DAY_US, DAY_US + 86_400_000_000}
    assert told.cost_days == {}


def test_the_digest_is_of_the_contents() -> None:
    """Names and order do not matter to it; a byte does."""
    one, other = file_of(page(openai_bucket(USAGE)), "a"), file_of(page(openai_bucket(day=1)), "b")
    assert read_openai([one, other]).digest == read_openai([("c", other[1]), ("d", one[1])]).digest
    assert read_openai([one]).digest != read_openai([("a", one[1] + b" ")]).digest


def test_hours_make_a_whole_day() -> None:
    """Buckets of an hour add up; a day that lacks one is not whole."""
    hours = [
        {"object": "bucket", "start_time": DAY_S + h * 3600, "end_time": DAY_S + h * 3600 + 3600, "results": [USAGE]}
        for h in range(24)
    ]
    assert read_openai([file_of(page(*hours))]).usage_days == {DAY_US: 86_400_000_000}
    assert read_openai([file_of(page(*hours[1:]))]).usage_days == {DAY_US: 23 * 3_600_000_000}


def _changed(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(page(openai_bucket(USAGE))))
    change(made)
    return made


def _result(**fields: Any) -> dict[str, Any]:
    return page(openai_bucket({**USAGE, **fields}))


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (3, "$: a page"),
        ([1], "$[0]: a page"),
        ({"data": {}}, "$: a page"),
        (page({"start_time": 0}), "$.data[0].end_time: a Unix time"),
        (page({"start_time": "0", "end_time": 1, "results": []}), "$.data[0].start_time: a Unix time"),
        (page({"start_time": 1, "end_time": 1, "results": []}), "$.data[0]: the bucket ends before"),
        (page({"start_time": 0, "end_time": 86_401, "results": []}), "longer than a UTC day"),
        (page({"start_time": 3600, "end_time": 90_000, "results": []}), "longer than a UTC day"),
        (page({"start_time": 0, "end_time": 86_400, "results": None}), "$.data[0].results: a list"),
        (_result(input_tokens=-1), "$.data[0].results[0].input_tokens: a whole number"),
        (_result(input_tokens=1.5), "input_tokens: a whole number"),
        (_result(input_tokens=True), "input_tokens: a whole number"),
        (_result(input_tokens="10"), "input_tokens: a whole number"),
        (_result(input_tokens=10**30), "input_tokens: a whole number"),
        (_result(model=["gpt-4o"]), "model: a text"),
        (_result(model="m" * 201), "model: a name of at most"),
        (_result(model="m\0"), "model: a name of at most"),
        (_result(model="m\n"), "model: a name of at most"),
        (_result(model="\x1b[31mm"), "model: a name of at most"),
        (_result(model="\ud800"), "model: a name of at most"),
        (_result(input_cached_tokens=11), "more tokens came from and went to the cache"),
        (_result(object="organization.invites"), "object: organization.usage"),
        (_changed(lambda made: made.update(has_more=True)), "has_more is true"),
        (page(openai_bucket(USAGE, openai_cost("x", 1))), "costs among usage"),
        ([page(openai_bucket(USAGE)), page(openai_bucket(USAGE))], "$[1].data[0].results[0]: this is told on another"),
        (page(openai_bucket(openai_cost("x", None))), "amount.value: an amount"),
        (page(openai_bucket(openai_cost("x", "a lot"))), "amount.value: an amount"),
        (page(openai_bucket(openai_cost("x", True))), "amount.value: an amount"),
        (page(openai_bucket(openai_cost("x", "NaN"))), "amount.value: this is no amount"),
        (page(openai_bucket(openai_cost("x", "1e99"))), "amount.value: this is no amount"),
        (page(openai_bucket(openai_cost("x", "1e-99"))), "amount.value: this is no amount"),
        (
            page(openai_bucket({**openai_cost("x", 1), "amount": {"value": 1, "currency": "eur"}})),
            "amount.currency: only US dollars",
        ),
    ],
)
def test_what_no_provider_exports_is_refused_by_place(value: Any, place: str) -> None:
    """The message names the file and where in it."""
    with pytest.raises(BadExport, match=r"^export\.json: ") as refused:
        read_openai([file_of(value)])
    assert place in str(refused.value)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "line 1, column 1"),
        (b'{"data": [}', "line 1, column 11"),
        (b'{"data":\n oops}', "line 2, column 2"),
        (b"\xff\xfe", "byte 0: not UTF-8"),
        (b'{"data": [], "a": NaN}', "NaN is no number"),
        (b'{"data": [], "a": 1e99999999999999999999}', "not JSON that anybody exports"),
        (b"[" * 200_000, "not JSON that anybody exports"),
        (b'{"data": []}\n{"data": [}', "line 2, column 11"),
        (b'{"data": []}\n{"data": 4}', "line 2: $: a page"),
        (b'{"data": []}\n{"data": [], "a": -Infinity}', "line 2: not JSON"),
        (b" " * (64 * 1024 * 1024 + 1), "larger than 64 MB"),
    ],
    ids=range(11),
)
def test_what_is_no_json_is_refused_by_line(data: bytes, told: str) -> None:
    """The message names the line and the column."""
    with pytest.raises(BadExport) as refused:
        read_openai([("export.json", data)])
    assert told in str(refused.value)


def test_widths_that_overlap_are_refused() -> None:
    """An hour that is in a day's bucket too would count twice."""
    hour = {"object": "bucket", "start_time": DAY_S, "end_time": DAY_S + 3600, "results": [openai_usage("x", 1, 1)]}
    with pytest.raises(BadExport, match="overlap"):
        read_openai([file_of([page(openai_bucket(USAGE)), page(hour)])])


def test_too_many_results_are_refused() -> None:
    """A limit stands on all the files together."""
    files = [file_of(page(openai_bucket(USAGE)), "a"), file_of(page(openai_bucket(USAGE, day=1)), "b")]

    def bucket_of(node: Node) -> Bucket:
        return Bucket(0, 1, tuple(node.member("results").items()))

    assert len(read_pages(files, bucket_of, lambda _result: "usage", lambda _row: {}, max_rows=2)) == 2
    with pytest.raises(BadExport, match="more than 1 results"):
        read_pages(files, bucket_of, lambda _result: "usage", lambda _row: {}, max_rows=1)


def test_the_next_page_may_be_in_the_same_file_only() -> None:
    """A page that says there is more is followed by it; two exports in two files each end."""
    first, second = page(openai_bucket(USAGE), has_more=True), page(openai_bucket(day=1))
    assert len(read_openai([file_of([first, second])]).usage_days) == 2
    with pytest.raises(BadExport, match="has_more"):
        read_openai([file_of(first, "a"), file_of(second, "b")])


def test_days_and_their_starts() -> None:
    """A day and its first microsecond say the same."""
    assert day_of(DAY_US).isoformat() == "2026-11-20"
    assert start_of(day_of(DAY_US)) == DAY_US


def test_fractions_are_read_as_written() -> None:
    """What a float would have made of it is nowhere."""
    text = b'{"data": [{"start_time": 0, "end_time": 60, "results": [{"object": "organization.costs.result", '
    text += b'"amount": {"value": 0.30000000000000004, "currency": "usd"}}]}]}'
    assert read_openai([("export.json", text)]).costs[0].amount_usd == Decimal("0.30000000000000004")
