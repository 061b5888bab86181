"""The `idempotency` section of the configuration: how long answers are kept, and how many."""

from pydantic import Field

from settings.types import Finite, Section


class IdempotencySection(Section):
    """Requests with an Idempotency-Key: the storage of their answers in the database."""

    keep_h: int = Field(default=24, ge=1, le=168, description="How long an answer is kept, and so stays repeatable.")
    max_answer_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=1_024,
        le=16 * 1024 * 1024,
        description="A larger answer is not kept; its repeat gets 422. A streamed token takes about 300 bytes.",
    )
    max_keys_per_team: int = Field(
        default=100_000,
        ge=1,
        le=10_000_000,
        description="Live keys of one team; more are refused (429) until old ones expire.",
    )
    claim_s: Finite = Field(
        default=60.0,
        ge=1.0,
        le=3_600.0,
        description="Lease of a process on its keys; renewed three times in it.",
    )
    timeout_s: Finite = Field(
        default=2.0,
        ge=0.05,
        le=60.0,
        description="How long the database is waited for; later the request is refused (503).",
    )
