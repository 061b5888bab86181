"""A gateway over thirty days of a made-up company, and Chromium in front of it."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.browser.serving import copied, serving, write_history
from tests.browser.site import AXE, CHROMIUM_FLAGS, Site, chromium
from tests.once import folder_once

_REQUESTS = 1_000


def _missing() -> str | None:
    if chromium() is None:
        return "there is no Chromium on this machine (apt-get install chromium)"
    if not AXE.exists():
        return "axe-core is not installed: `make build/browser/.ready`"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One loop for all, since they share a browser. Where there is none they say so; under CI there has to be one."""
    missing = None if os.environ.get("CI") else _missing()
    here = str(Path(__file__).parent) + os.sep
    for item in items:
        if str(item.path).startswith(here) and item.path.name != "test_site.py":
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            if missing is not None:
                item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the database, the configuration and the pepper."""
    return folder_once(tmp_path_factory, "history", lambda folder: write_history(folder, _REQUESTS))


@pytest.fixture(scope="session")
def site(history: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A gateway that all tests share: what one of them changes is its own."""
    with serving(copied(history, tmp_path_factory.mktemp("site"))) as found:
        yield found


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Chromium without a window."""
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_FLAGS))
        try:
            yield started
        finally:
            await started.close()
