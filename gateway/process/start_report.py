"""What a child tells the supervisor of its start: that it serves, or why it cannot, and whether waiting may mend that."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final

from gateway.expected_errors import expected, mends_itself

CANNOT_SERVE: Final = 78
"""The exit status of a child that no waiting helps: sysexits' EX_CONFIG."""
TRY_AGAIN: Final = 75
"""The exit status of a child that may serve when it is started again later: sysexits' EX_TEMPFAIL."""
SERVES: Final = b"\n"
_MOST_BYTES: Final = 4_000
"""So much goes through a pipe at once."""

_MOST_CAUSES: Final = 10


class StartReport:
    """The child's end of the pipe, which takes one word: the sentence of a failure, or that it serves."""

    def __init__(self, ready_fd: int | None) -> None:
        self._fd = ready_fd

    def serves(self) -> None:
        """Tell that this process serves; the start is over."""
        self._tell(SERVES)

    def run(self, start: Callable[[], int]) -> int:
        """Run the process and return its exit status. A failure of its start that people can mend or wait out is told to the supervisor; others are raised."""
        try:
            return start()
        except Exception as error:
            # What went away first may have been told of in others' words: the books cannot be opened, nobody can be looked up.
            away = next((each for each in _causes(error) if mends_itself(each)), None)
            told = _sentence(error if away is None else away)
            if told is None or self._fd is None:
                raise
            self._tell(told.encode()[:_MOST_BYTES])
            return CANNOT_SERVE if away is None else TRY_AGAIN

    def _tell(self, word: bytes) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            # A supervisor that is gone is noticed elsewhere.
            with contextlib.suppress(OSError):
                os.write(fd, word)
            os.close(fd)


def _causes(error: BaseException) -> Iterator[Exception]:
    found: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if not isinstance(found, Exception):
            return
        yield found
        found = found.__cause__


def _sentence(error: Exception) -> str | None:
    if isinstance(error, ModuleNotFoundError):
        return f"a package is missing ({error.name}): install weighbridge again, with its extras"
    return expected(error)
