"""Cases that share what a test starts.

`pytest.mark.parametrize` starts a gateway anew for each case. Where no case leaves anything behind, as with bad input that
must change nothing, one gateway answers them all, which is also the harder test.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

Test = Callable[..., Awaitable[None]]


def in_turn(names: str, cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Runs the test's body for each case, in order; a failure tells its case. `names` are separated by commas."""
    given = [name.strip() for name in names.split(",")]
    kept = list(cases)
    assert kept, "no case is no test"

    def wrap(test: Test) -> Test:
        @functools.wraps(test)
        async def all_in_turn(**fixtures: Any) -> None:
            for case in kept:
                values = case if len(given) > 1 else (case,)
                try:
                    await test(**fixtures, **dict(zip(given, values, strict=True)))
                except BaseException as failure:
                    failure.add_note(f"case: {case!r}")
                    raise

        asked = inspect.signature(test)
        left = [each for name, each in asked.parameters.items() if name not in given]
        all_in_turn.__signature__ = asked.replace(parameters=left)  # type: ignore[attr-defined]
        return all_in_turn

    return wrap
