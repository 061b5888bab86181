"""GET /v1/focus over a socket: exact, in one's own scope, and refused where it is not sound."""

import csv
import io
from collections.abc import AsyncIterator
from decimal import Decimal

import pytest
import pytest_asyncio

from cost.prices import usd
from cost.reports.focus import COLUMNS
from cost.reports.scope import ReadScope
from cost.reports.usage import UsageQuery, UsageReader
from cost.times import DAY_US
from tests.api.finance import Answer, Finance, running_finance
from tests.cost.reports.two_organisations import DAY

pytestmark = pytest.mark.asyncio(loop_scope="module")

DAYS = {"start": "2026-04-05", "end": "2026-04-07"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def finance(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Finance]:
    """One for all who only read."""
    async with running_finance(tmp_path_factory.mktemp("shared")) as running:
        yield running


def rows(answer: Answer) -> list[dict[str, str]]:
    assert answer.status == 200, answer.text
    return list(csv.DictReader(io.StringIO(answer.text, newline=""), strict=True))


async def booked(finance: Finance, organisation_id: str, team_id: str | None) -> Decimal:
    scope = ReadScope(organisation_id=organisation_id, team_id=team_id)
    query = UsageQuery(scope=scope, start_us=DAY, end_us=DAY + 2 * DAY_US)
    totals = (await UsageReader(finance.gateway.engine).page(query)).totals
    assert totals is not None
    return usd(totals.cost_nanousd)


@pytest.mark.parametrize(
    ("who", "organisation_id", "team_id"),
    [
        ("finance", "acme", None),
        ("admin", "acme", None),
        ("member x", "acme", "team_x"),
        ("member y", "acme", "team_y"),
        ("rival finance", "rival", None),
    ],
)
async def test_everybody_gets_what_is_theirs(
    finance: Finance, who: str, organisation_id: str, team_id: str | None
) -> None:
    """The sum is what the usage report says for the same scope; a member has no other team and no idle GPUs."""
    for query in (DAYS, {**DAYS, "granularity": "hour"}):
        found = rows(await finance.get(who, "/v1/focus", query))
        assert sum(Decimal(row["BilledCost"]) for row in found) == await booked(finance, organisation_id, team_id)
        assert {row["BillingAccountId"] for row in found} == {organisation_id}
        assert team_id is None or {row["SubAccountId"] for row in found} == {team_id}


async def test_the_reply_is_a_file(finance: Finance) -> None:
    """It has its heading also without a row, a name, and the type that it says."""
    answer = await finance.get("finance", "/v1/focus", DAYS, accept="text/csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8; header=present"
    assert answer.headers["content-disposition"] == 'attachment; filename="focus-2026-04-05-2026-04-07.csv"'
    empty = await finance.get("finance", "/v1/focus", {"start": "2020-01-01", "end": "2020-02-01"})
    assert empty.text == ",".join(COLUMNS) + "\r\n"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({}, "start"),
        ({"start": "2026-04-05"}, "end"),
        ({**DAYS, "start": "yesterday"}, "start"),
        ({**DAYS, "end": "2026-04-05"}, "end"),
        ({**DAYS, "end": "2036-04-05"}, "end"),
        ({**DAYS, "end": "2026-06-05", "granularity": "hour"}, "end"),
        ({**DAYS, "granularity": "minute"}, "granularity"),
        ({**DAYS, "team_id": "team_y"}, "team_id"),
    ],
)
async def test_what_is_refused(finance: Finance, query: dict[str, str], param: str) -> None:
    """Each mistake is told by its parameter."""
    status, _, told = (await finance.get("finance", "/v1/focus", query)).refusal
    assert (status, told) == (400, param)


async def test_nobody_else_reads_it(finance: Finance) -> None:
    """Neither without a key nor with a revoked one."""
    assert (await finance.get(None, "/v1/focus", DAYS)).status == 401
    assert (await finance.get("revoked", "/v1/focus", DAYS)).status == 401
    assert (await finance.get("finance", "/v1/focus", DAYS, accept="application/json")).status == 406
