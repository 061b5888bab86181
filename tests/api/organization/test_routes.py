"""OpenAI's organisation API, driven by OpenAI's own client and read by hand."""

import itertools
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from cost.times import DAY_US
from tests.api.finance import DAY_S, SCRIPTED, Finance, running_finance
from tests.cost.reports.two_organisations import DAY, booked
from tests.running_gateway import model

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETIONS = "/v1/organization/usage/completions"
EMBEDDINGS = "/v1/organization/usage/embeddings"
COSTS = "/v1/organization/costs"
TWO_DAYS: dict[str, int] = {"start_time": DAY_S, "end_time": DAY_S + 2 * 86_400}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def finance(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Finance]:
    """One for all who only read."""
    async with running_finance(tmp_path_factory.mktemp("shared")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def own(tmp_path: Path) -> AsyncIterator[Finance]:
    """For one who changes something."""
    async with running_finance(tmp_path) as running:
        yield running


def client(finance: Finance, who: str) -> openai.AsyncOpenAI:
    key = finance.keys[who]
    return openai.AsyncOpenAI(admin_api_key=key, api_key=key, base_url=finance.gateway.base_url, max_retries=0)


def results(body: Any) -> list[Any]:
    """All results of a page, whatever their buckets."""
    return [result for bucket in body["data"] for result in bucket["results"]]


async def test_openais_own_client_reads_our_usage(finance: Finance) -> None:
    """Its typed models fit: buckets of days, groups by project, key, model and batch, tokens that hold cached ones."""
    async with client(finance, "finance") as admin:
        page = await admin.admin.organization.usage.completions(
            start_time=DAY_S, end_time=DAY_S + 2 * 86_400, group_by=["project_id", "model", "batch"]
        )
    assert (page.object, page.has_more, page.next_page) == ("page", False, None)
    assert [(each.start_time, each.end_time) for each in page.data] == [
        (DAY_S, DAY_S + 86_400),
        (DAY_S + 86_400, DAY_S + 172_800),
    ]
    found: list[Any] = [result for bucket in page.data for result in bucket.results]
    assert [
        (each.project_id, each.model, each.batch, each.num_model_requests, each.input_tokens) for each in found
    ] == [
        ("team_x", "large", False, 1, 800),
        ("team_x", "small", False, 2, 1_600),
        ("team_y", "small", False, 1, 800),
        ("team_x", "small", True, 1, 800),
    ]
    first = found[0]
    assert first.object == "organization.usage.completions.result"
    assert (first.input_cached_tokens, first.input_uncached_tokens, first.output_tokens) == (300, 500, 200)
    assert (first.user_id, first.api_key_id, first.service_tier, first.input_audio_tokens) == (None, None, None, None)


async def test_openais_own_client_reads_our_costs(finance: Finance) -> None:
    """Line items are a model and a meter, whose amounts add up to the books to the nano-dollar, idle GPUs included."""
    async with client(finance, "finance") as admin:
        page = await admin.admin.organization.usage.costs(
            start_time=DAY_S, end_time=DAY_S + 2 * 86_400, group_by=["line_item", "project_id"], limit=180
        )
    found: list[Any] = [result for bucket in page.data for result in bucket.results]
    day: Any = page.data[0].results
    assert [(each.line_item, each.project_id, each.quantity) for each in day[:4]] == [
        ("h100, other", None, None),
        ("large, input", "team_x", 500),
        ("large, cached input", "team_x", 300),
        ("large, output", "team_x", 200),
    ]
    assert {each.quantity_unit for each in day[1:4]} == {"tokens"}
    assert all(each.object == "organization.costs.result" and each.amount.currency == "usd" for each in found)
    exact = sum(Decimal(each.amount.value_decimal) for each in found)
    assert exact == Decimal("0.074000004")
    assert exact == Decimal((await finance.totals("acme")).cost_nanousd) / 10**9


async def test_amounts_are_exact_numbers(finance: Finance) -> None:
    """Not a float's neighbour: the JSON number is the amount, and so is the text beside it."""
    body = (await finance.get("finance", COSTS, TWO_DAYS)).body
    assert [each["amount"] for each in results(body)] == [
        {"value": Decimal("0.073000003"), "currency": "usd", "value_decimal": "0.073000003"},
        {"value": Decimal("0.001000001"), "currency": "usd", "value_decimal": "0.001000001"},
    ]
    assert set(results(body)[0]) == {
        "object", "amount", "line_item", "project_id", "api_key_id", "quantity", "quantity_unit",
    }  # fmt: skip


async def test_members_see_their_own_team(finance: Finance) -> None:
    """In each of the routes, whatever project they ask for."""
    for path in (COMPLETIONS, COSTS):
        body = (await finance.get("member x", path, {**TWO_DAYS, "group_by": "project_id"})).body
        assert {each["project_id"] for each in results(body)} == {"team_x"}
        foreign = [("start_time", str(DAY_S)), ("project_ids[]", "team_y"), ("project_ids[]", "team_r")]
        assert results((await finance.get("member x", path, foreign)).body) == []
    own = results((await finance.get("member x", COMPLETIONS, TWO_DAYS)).body)
    assert [each["num_model_requests"] for each in own] == [3, 1]


async def test_filters(finance: Finance) -> None:
    """Batch or not, models, keys; both spellings."""
    for query, requests in (
        ({"batch": "true"}, [1]),
        ({"batch": "false"}, [4]),
        ({"models": "large"}, [1]),
        ({"models[]": "nothing"}, []),
        ({"api_key_ids": "key_a2"}, [1]),
        ({"project_ids": "team_y"}, [1]),
    ):
        body = (await finance.get("finance", COMPLETIONS, {**TWO_DAYS, **query})).body
        assert [each["num_model_requests"] for each in results(body)] == requests
    grouped = (await finance.get("finance", COMPLETIONS, {**TWO_DAYS, "group_by": "service_tier,user_id"})).body
    assert [(each["service_tier"], each["user_id"], each["batch"]) for each in results(grouped)] == [
        ("interactive", None, None),
        ("batch", None, None),
    ]


@pytest.mark.parametrize("width", ["1m", "1h", "1d"])
async def test_pages_of_buckets(finance: Finance, width: str) -> None:
    """Each page has as many buckets as asked; together they are the whole range without a gap, and nothing twice."""
    span = {"1m": 3_600, "1h": 86_400, "1d": 5 * 86_400}[width]
    start = DAY_S + 12 * 3_600 - 1_800 if width == "1m" else DAY_S
    query: dict[str, Any] = {"start_time": start, "end_time": start + span, "bucket_width": width}
    whole = (await finance.get("finance", COMPLETIONS, {**query, "limit": 31})).body
    buckets, page = [], None
    while True:
        body = (
            await finance.get("finance", COMPLETIONS, {**query, "limit": 9, **({"page": page} if page else {})})
        ).body
        buckets += body["data"]
        page = body["next_page"]
        assert body["has_more"] is (page is not None)
        if page is None:
            break
        assert len(body["data"]) == 9
    assert buckets[: len(whole["data"])] == whole["data"]
    assert buckets[0]["start_time"] == start
    assert buckets[-1]["end_time"] == start + span
    assert all(one["end_time"] == other["start_time"] for one, other in itertools.pairwise(buckets))
    requests = sum(each["num_model_requests"] for each in results({"data": buckets}))
    assert requests == {"1m": 2, "1h": 4, "1d": 5}[width]


async def test_defaults(finance: Finance) -> None:
    """Seven days, 24 hours or 60 minutes a page; without an end, up to now."""
    for width, count in (("1d", 7), ("1h", 24), ("1m", 60)):
        body = (await finance.get("finance", COMPLETIONS, {"start_time": DAY_S, "bucket_width": width})).body
        assert (len(body["data"]), body["has_more"]) == (count, True)
    assert len((await finance.get("finance", COSTS, {"start_time": DAY_S})).body["data"]) == 7


async def test_a_range_may_begin_within_a_day(finance: Finance) -> None:
    """The first bucket is then shorter, rounded to the hour, and says so; costs are of whole days."""
    query = {"start_time": DAY_S + 12 * 3_600 + 100, "end_time": DAY_S + 86_400 + 10}
    body = (await finance.get("member x", COMPLETIONS, query)).body
    assert [(each["start_time"], each["end_time"]) for each in body["data"]] == [
        (DAY_S + 12 * 3_600, DAY_S + 86_400),
        (DAY_S + 86_400, DAY_S + 86_400 + 3_600),
    ]
    assert [each["num_model_requests"] for each in results(body)] == [2, 1]
    costs = (await finance.get("member x", COSTS, query)).body
    assert [(each["start_time"], each["end_time"]) for each in costs["data"]] == [
        (DAY_S, DAY_S + 86_400),
        (DAY_S + 86_400, DAY_S + 172_800),
    ]


async def test_a_page_has_only_whole_buckets(own: Finance) -> None:
    """More groups than a page holds make it shorter in buckets; a bucket that is too full alone is refused."""
    days = [2, 10_001]
    await own.keep(
        [
            booked(f"d{day}_{number}", team_id="team_x", key_id=f"key_{number}", at_us=DAY + (10 + day) * DAY_US)
            for day, count in enumerate(days)
            for number in range(count)
        ]
    )
    start = DAY_S + 10 * 86_400
    query: dict[str, Any] = {"start_time": start, "end_time": start + 2 * 86_400, "group_by": "api_key_id"}
    first = (await own.get("finance", COSTS, query)).body
    assert [len(each["results"]) for each in first["data"]] == [2]
    assert first["has_more"] is True
    second = await own.get("finance", COSTS, {**query, "page": first["next_page"]})
    assert second.refusal == (400, None, "group_by")


@pytest_asyncio.fixture(loop_scope="module")
async def embedded(tmp_path: Path) -> AsyncIterator[Finance]:
    """Two targets that embed, one of them unused, and one that embedded once and is in the catalog no more."""
    some = model("bge", SCRIPTED, capabilities=["embeddings"])
    async with running_finance(tmp_path, some, {**some, "model_id": "e5"}) as running:
        vectors: dict[str, Any] = {"input_tokens": 50, "cached_input_tokens": 0, "output_tokens": 0}
        await running.keep(
            [
                booked("v1", team_id="team_x", target_id="bge", **vectors),
                booked("v2", team_id="team_x", target_id="bge", tier="batch", **vectors),
                booked("v3", team_id="team_y", key_id="key_b", target_id="bge", **vectors),
                booked("v4", team_id="team_x", target_id="removed", **vectors),
                booked("v5", organisation_id="rival", team_id="team_q", target_id="bge", **vectors),
            ]
        )
        yield running


async def test_embeddings_are_a_usage_of_their_own(embedded: Finance) -> None:
    """OpenAI's own client reads them, and each token is in one of the two usages: those of removed targets, too."""
    async with client(embedded, "finance") as admin:
        page = await admin.admin.organization.usage.embeddings(
            start_time=DAY_S, end_time=DAY_S + 2 * 86_400, group_by=["project_id", "model"]
        )
        chats = await admin.admin.organization.usage.completions(
            start_time=DAY_S, end_time=DAY_S + 2 * 86_400, group_by=["model"]
        )
    found: list[Any] = [result for bucket in page.data for result in bucket.results]
    assert [(each.project_id, each.model, each.num_model_requests, each.input_tokens) for each in found] == [
        ("team_x", "bge", 2, 100),
        ("team_y", "bge", 1, 50),
    ]
    assert found[0].object == "organization.usage.embeddings.result"
    assert (found[0].user_id, found[0].api_key_id) == (None, None)
    answered: list[Any] = [result for bucket in chats.data for result in bucket.results]
    assert {each.model for each in answered} == {"large", "small", "removed"}
    tokens = sum(each.input_tokens for each in [*found, *answered])
    assert tokens == (await embedded.totals("acme")).input_tokens


@pytest.mark.parametrize("width", ["1m", "1h", "1d"])
async def test_embeddings_are_filtered_like_completions(embedded: Finance, width: str) -> None:
    """Whatever the buckets: a model that answers has no embeddings, one that embeds no completions; members see theirs."""
    start = DAY_S + 12 * 3_600
    query: dict[str, Any] = {"start_time": start, "end_time": start + 3_600, "bucket_width": width, "limit": 1}
    for who, path, asked, requests in (
        ("finance", EMBEDDINGS, {}, [3]),
        ("finance", EMBEDDINGS, {"models": "bge,small"}, [3]),
        ("finance", EMBEDDINGS, {"models": "small"}, []),
        ("finance", EMBEDDINGS, {"models": "e5"}, []),
        ("finance", EMBEDDINGS, {"api_key_ids": "key_b"}, [1]),
        ("finance", COMPLETIONS, {"models": "bge"}, []),
        ("finance", COMPLETIONS, {"models": "removed,bge"}, [1]),
        ("member x", EMBEDDINGS, {}, [2]),
        ("member y", EMBEDDINGS, {"project_ids": "team_x"}, []),
        ("rival finance", EMBEDDINGS, {"group_by": "project_id"}, [1]),
    ):
        body = (await embedded.get(who, path, {**query, **asked})).body
        assert [each["num_model_requests"] for each in results(body)] == requests, (who, path, asked)


async def test_without_targets_that_embed_the_buckets_are_empty(finance: Finance) -> None:
    """And no completion is taken for an embedding."""
    async with client(finance, "member x") as admin:
        page = await admin.admin.organization.usage.embeddings(start_time=DAY_S, limit=3, group_by=["model"])
    assert [each.results for each in page.data] == [[], [], []]
    assert page.has_more is True


async def test_what_is_not_sound_is_refused(finance: Finance) -> None:
    """With the parameter that is wrong, in OpenAI's shape."""
    refused: list[tuple[str, dict[str, Any], str]] = [
        (COMPLETIONS, {}, "start_time"),
        (COMPLETIONS, {"start_time": DAY_S * 1_000}, "start_time"),
        (COMPLETIONS, {"start_time": "yesterday"}, "start_time"),
        (COMPLETIONS, {"start_time": DAY_S, "end_time": DAY_S}, "end_time"),
        (COMPLETIONS, {"start_time": DAY_S, "bucket_width": "1w"}, "bucket_width"),
        (COMPLETIONS, {"start_time": DAY_S, "limit": 32}, "limit"),
        (COMPLETIONS, {"start_time": DAY_S, "bucket_width": "1h", "limit": 169}, "limit"),
        (COMPLETIONS, {"start_time": DAY_S, "bucket_width": "1m", "limit": 1_441}, "limit"),
        (COMPLETIONS, {"start_time": DAY_S, "group_by": "line_item"}, "group_by"),
        (COMPLETIONS, {"start_time": DAY_S, "user_ids": "u"}, "user_ids"),
        (COMPLETIONS, {"start_time": DAY_S, "batch": "perhaps"}, "batch"),
        (COMPLETIONS, {"start_time": DAY_S, "page": "page_x"}, "page"),
        (EMBEDDINGS, {"start_time": DAY_S, "group_by": "batch"}, "group_by"),
        (COSTS, {"start_time": DAY_S, "bucket_width": "1h"}, "bucket_width"),
        (COSTS, {"start_time": DAY_S, "limit": 181}, "limit"),
        (COSTS, {"start_time": DAY_S, "models": "small"}, "models"),
    ]
    for path, query, param in refused:
        assert (await finance.get("finance", path, query)).refusal == (400, None, param), query
    mine = (await finance.get("member x", COMPLETIONS, {"start_time": DAY_S, "limit": 1})).body["next_page"]
    stolen = await finance.get("member y", COMPLETIONS, {"start_time": DAY_S, "limit": 1, "page": mine})
    assert stolen.refusal == (400, None, "page")
