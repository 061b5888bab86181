"""The `responses` section of the configuration: the time and the size of kept responses."""

from pydantic import Field

from settings.types import Finite, Section


class ResponsesSection(Section):
    """Responses that their callers want kept (`store`, which is so unless they say otherwise)."""

    keep_days: int = Field(
        default=30, ge=0, le=365, description="How long a response can be read and continued; 0 keeps none."
    )
    max_response_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=1_024,
        le=64 * 1024 * 1024,
        description="A larger response (with its whole input) is not kept and says `store: false`.",
    )
    max_bytes_per_team: int = Field(
        default=1024 * 1024 * 1024,
        ge=1_024,
        le=1024**4,
        description="Compressed size of a team's kept responses; the oldest go first.",
    )
    timeout_s: Finite = Field(
        default=2.0,
        ge=0.05,
        le=60.0,
        description="How long the database is waited for before a response is given unkept.",
    )
    background_at_once: int = Field(
        default=32,
        ge=0,
        le=10_000,
        description="Responses with `background` that one host makes at once; 0 makes none.",
    )
    max_background_per_team: int = Field(
        default=1_000,
        ge=1,
        le=1_000_000,
        description="Responses with `background` that one team may have waiting or in progress.",
    )
    background_lease_s: Finite = Field(
        default=15.0,
        ge=1.0,
        le=600.0,
        description="Lease of a process on a background response; after it another one begins anew.",
    )
