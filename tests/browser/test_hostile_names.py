"""Names that want to be code: in every field that somebody can name a thing in, they stay text."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser

from tests.browser.serving import copied, serving
from tests.browser.site import Site, Visitor, visiting
from tests.browser.test_every_page import crawl

PAYLOADS = (
    "<img src=x onerror=window.hit=1>",
    '"><script>window.hit=2</script>',
    "';window.hit=3;//",
    "{{7*191}}${7*191}<%=7*191%>",
    '" autofocus onfocus=window.hit=4 x="',
    "javascript:window.hit=5",
    "</title></textarea></style><svg onload=window.hit=6>",
    "[click](javascript:window.hit=7)",
    '<a href="https://evil.example/">x</a><meta http-equiv=refresh content=0;url=https://evil.example/>',
    "=HYPERLINK(1+1)",
)
"""Each sets `window.hit`, or wants to lead away, or to be computed."""

# Where names stand that people, callers, upstreams and configurations choose. The stores refuse most of these already:
# they are written past them, as somebody with the database could, or an older release did.
_NAMED = {
    "organisation": ("name",),
    "team": ("name",),
    "api_key": ("name",),
    "person": ("name",),
    "session": ("agent", "address"),
    "budget": ("webhook",),
    "audit_entry": ("actor_name", "object_id", "reason", "address"),
    "ledger_entry": ("tag", "alias", "deployment_id", "provider", "reason", "target_id"),
    "rollup_day": ("tag", "provider", "target_id"),
    "rollup_hour": ("tag", "provider", "target_id"),
    "rollup_team_model_day": ("provider", "target_id"),
    "rollup_model_day": ("provider", "target_id"),
    "price_version": ("note",),
    "weighing": ("prompt",),
}


_ALARM = "Object.defineProperty(window, 'hit', {set(value) { console.error(`payload ${value} ran`); }});"
_COMPUTED = str(7 * 191)


class _Look:
    """Looks at each page for what a payload did, and counts those that show one."""

    def __init__(self) -> None:
        self.shown = 0

    async def __call__(self, visitor: Visitor) -> list[str]:
        await visitor.settled()
        found, visitor.wrong = visitor.wrong, []
        text = await visitor.text()
        self.shown += "window.hit" in text
        if _COMPUTED in text:
            found.append(f"{visitor.page.url}: a template computed a name")
        links = await visitor.page.eval_on_selector_all("a[href]", "all => all.map((each) => each.href)")
        return found + [
            f"{visitor.page.url} leads to {each}" for each in links if not each.startswith(visitor.site.url)
        ]


def _spoil(database: Path) -> None:
    """Every third row of each table gets a payload in each of these columns."""
    with sqlite3.connect(database) as connection:
        for table, columns in _NAMED.items():
            for number, column in enumerate(columns):
                for place, payload in enumerate(PAYLOADS):
                    text = payload if table != "weighing" else json.dumps({"text": payload, "system": payload})
                    # No two rows may have become one: where a name is part of a key, it keeps its row's number.
                    value = f"{text} #" if table.startswith("rollup") else text
                    suffix = " || rowid" if table.startswith("rollup") else ""
                    connection.execute(
                        f"UPDATE {table} SET {column} = ?{suffix} WHERE (rowid + ?) % {2 * len(PAYLOADS)} = ?",  # noqa: S608
                        (value, number, place),
                    )


@pytest.fixture(scope="module")
def spoiled(history: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = copied(history, tmp_path_factory.mktemp("spoiled"))
    _spoil(folder / "sample.sqlite")
    with serving(folder) as found:
        yield found


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("email", ["ada@northwind.example", "tess@northwind.example"])
async def test_hostile_names_stay_text(browser: Browser, spoiled: Site, email: str) -> None:
    """On every page: nothing runs, nothing is asked elsewhere, nothing leads away, no template computes."""
    async with visiting(browser, spoiled, email) as visitor:
        await visitor.context.add_init_script(_ALARM)
        look = _Look()
        opened, wrong = await crawl(visitor, look)
        # A target that is in the books and not in the configuration has no page, and says so.
        wrong = [each for each in wrong if " 404" not in each]
        assert not wrong, "\n".join(dict.fromkeys(wrong))
        assert len(opened) > 10
        assert look.shown > 5
