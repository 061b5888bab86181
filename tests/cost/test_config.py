"""The `cost` section."""

from typing import Any

import pytest
from pydantic import ValidationError

from cost.config import CostSection


def test_it_works_without_a_word() -> None:
    """The defaults are valid and survive a kill -9."""
    assert CostSection().journal_sync == "process"


@pytest.mark.parametrize("bad", [{"journal_sink": "power"}, {"journal_sync": "never"}, {"max_journal_bytes": 1}])
def test_unknown_keys_and_bad_values_are_refused(bad: dict[str, Any]) -> None:
    """A misspelt key or an impossible value does not start."""
    with pytest.raises(ValidationError):
        CostSection.model_validate(bad)
