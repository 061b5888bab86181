"""The database at the start: waited for while it is away, and not when waiting does not help."""

import errno
import logging

import pytest

from gateway.process.prepare_database import once_it_is_there


async def test_a_database_that_is_away_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """It is tried each second, and said at first and twice a minute."""
    slept: list[float] = []
    failures = 61

    async def work() -> None:
        if len(slept) < failures:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    with caplog.at_level(logging.WARNING):
        await once_it_is_there(work, sleep)
    assert slept == [1.0] * failures
    assert [each.getMessage().endswith("trying again until it is there") for each in caplog.records] == [True] * 3


async def test_what_does_not_mend_itself_ends_the_wait() -> None:
    """A file that may not be written, or a fault of ours, is raised at once."""
    for error in (PermissionError(errno.EACCES, "no", "/data"), KeyError("x")):

        async def work(error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)):
            await once_it_is_there(work)


async def test_who_waits_with_a_bound_is_told_at_its_end() -> None:
    """What it met last is raised as it is, after as many tries as the bound has room for."""
    tries = 0

    async def work() -> None:
        nonlocal tries
        tries += 1
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

    async def sleep(_: float) -> None:
        raise AssertionError

    with pytest.raises(ConnectionRefusedError):
        await once_it_is_there(work, sleep, within_s=0.0)
    assert tries == 1
