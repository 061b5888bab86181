"""A month that goes into files by the gateway's own turn: pages and API tell the same sums afterwards, or say what is missing."""

import asyncio
import re
from pathlib import Path
from typing import Any, Final

import pytest

from cost.ledger.store import LedgerStore
from cost.ledger.verify import check
from cost.times import DAY_US, day_of, next_month, start_of, wall_us
from gateway.ledger_places import open_archive
from tests.cost.ledger.test_archiving import attempts, files_in, rows_of, sign
from tests.running_gateway import PEPPER, model, running_gateway
from tests.signed_in import Browser, signed_in

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

_SCRIPTED: Final[Any] = [{"kind": "scripted", "upstream_model": "ok"}]
_TURN_S: Final = 200.0
"""A look is a minute after a start; the child starts on a busy machine."""
_MADE: Final = re.compile(r'name="csrf" value="[^"]+"|nonce="[^"]+"')
"""What a page has anew each time."""


def _month_before(months: int) -> int:
    """The beginning of a UTC month, so many before the present one."""
    start_us = start_of(day_of(wall_us()).replace(day=1))
    for _ in range(months):
        start_us = start_of(day_of(start_us - DAY_US).replace(day=1))
    return start_us


async def _told(browser: Browser, paths: list[str]) -> dict[str, tuple[int, str]]:
    return {path: (answer.status, _MADE.sub("", answer.text)) for path in paths for answer in [await browser.get(path)]}


async def test_the_sums_are_the_same_and_what_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child has the gateway's own database and configuration; `ledger verify` sums the files."""
    month_us = _month_before(4)
    month, first = f"{day_of(month_us):%Y-%m}", str(day_of(month_us))
    last = str(day_of(next_month(month_us) - DAY_US))
    paths = [
        f"/dashboard/finance/exports/usage?from={first}&to={last}&group_by=day",
        f"/dashboard/finance/exports/usage?from={first}&to={last}&group_by=team",
        f"/dashboard/finance/exports/costs.json?from={first}&to={last}",
        f"/dashboard/finance/exports/focus.csv?from={first}&to={last}",
        f"/dashboard/finance/showback?month={month}",
    ]
    for name in ("WEIGHBRIDGE_CONFIG", "DATABASE_URL", "WEIGHBRIDGE_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("WEIGHBRIDGE_PEPPER", PEPPER)
    kept = tmp_path / "kept"
    archive = {"archive": {"keep_months": 1, "to": str(kept)}}
    async with (
        running_gateway(tmp_path, [model("small", _SCRIPTED)], cost=archive) as running,
        signed_in(running, role="finance") as browser,
    ):
        await LedgerStore(running.engine).insert(attempts(40, month_us, month_us + 2 * DAY_US))
        await sign(running.engine, "default", month_us)
        before = await _told(browser, paths)
        async with asyncio.timeout(_TURN_S):
            while not files_in(kept) or await rows_of(running.engine):  # noqa: ASYNC110 - a child tells nobody
                await asyncio.sleep(0.5)
        after = await _told(browser, paths)
        checked = await check(
            running.engine, month_us, next_month(month_us), now_us=wall_us(), open_archive=open_archive
        )
    assert {status for status, _ in before.values()} == {200}
    assert after == before
    assert (checked.differences, checked.unread) == (0, ())
    assert checked.archived > 40
