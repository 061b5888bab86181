"""The `idempotency` section."""

from typing import Any

import pytest
from pydantic import ValidationError

from proxy.admit.idempotency.idempotency_config import IdempotencySection


def test_answers_are_kept_for_a_day() -> None:
    """That is what callers are promised."""
    assert IdempotencySection().keep_h == 24


@pytest.mark.parametrize(
    "fields",
    [{"keep_h": 0}, {"max_answer_bytes": 10**9}, {"claim_s": float("inf")}, {"timeout_s": 0}, {"keep_d": 1}],
)
def test_what_cannot_be_meant_is_refused(fields: dict[str, Any]) -> None:
    """Everything has a limit, and a slip of the pen is no setting."""
    with pytest.raises(ValidationError):
        IdempotencySection(**fields)
