"""A child's word to the supervisor: it serves, it cannot, or it should be started again later."""

import errno
import os
from collections.abc import Callable

import pytest

from accounts.errors import DirectoryUnavailable
from gateway.configuration.file import ConfigError, Problem
from gateway.process.start_report import CANNOT_SERVE, SERVES, TRY_AGAIN, StartReport


def _word(start: Callable[[], int]) -> tuple[int, bytes]:
    told, tells = os.pipe()
    try:
        return StartReport(tells).run(start), os.read(told, 65_536)
    finally:
        os.close(told)


def _raises(error: Exception) -> Callable[[], int]:
    def start() -> int:
        raise error

    return start


def test_what_waiting_does_not_mend_has_a_status_of_its_own() -> None:
    """And its sentence goes to the supervisor, cut where it is endless."""
    refused = ConfigError([Problem("x.yaml", 3, "server.port", "must be a number")])
    assert _word(_raises(refused)) == (CANNOT_SERVE, b"x.yaml:3: server.port: must be a number")
    absent = ModuleNotFoundError("No module named 'obstore'", name="obstore")
    status, said = _word(_raises(absent))
    assert (status, b"obstore" in said) == (CANNOT_SERVE, True)
    assert len(_word(_raises(PermissionError(errno.EACCES, "x" * 100_000, "y")))[1]) <= 4_096


def test_what_comes_back_has_another() -> None:
    """A database that refuses connections is tried again."""
    status, said = _word(_raises(ConnectionRefusedError(errno.ECONNREFUSED, "refused")))
    assert (status, said.startswith(b"the database cannot be reached")) == (TRY_AGAIN, True)


def test_what_comes_back_is_found_behind_others_words() -> None:
    """Accounts that cannot be read because the database is away are tried again, too; a fault of ours that it led to as well."""
    for outer in (DirectoryUnavailable("no accounts"), RuntimeError("nothing works")):
        outer.__cause__ = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        status, said = _word(_raises(outer))
        assert (status, said.startswith(b"the database cannot be reached")) == (TRY_AGAIN, True)


def test_a_fault_of_the_program_is_no_sentence() -> None:
    """Its traceback is what helps."""
    told, tells = os.pipe()
    with pytest.raises(KeyError):
        StartReport(tells).run(_raises(KeyError("x")))
    os.close(told)
    os.close(tells)


def test_after_the_start_nothing_is_told() -> None:
    """A failure of one that served is its crash; the pipe's number may be another file's by then."""
    told, tells = os.pipe()
    report = StartReport(tells)

    def start() -> int:
        report.serves()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

    with pytest.raises(ConnectionRefusedError):
        report.run(start)
    assert os.read(told, 100) == SERVES
    os.close(told)
