"""The `batch` section of the configuration: what the batch tier accepts, keeps and does at once."""

from pathlib import Path

from pydantic import Field

from settings.types import Finite, Section


class BatchSection(Section):
    """The batch tier of this gateway."""

    enabled: bool = Field(
        default=True, description="Whether files and batches are accepted, and lines of batches answered."
    )
    folder: Path | None = Field(
        default=None,
        description="Where files are kept; `files` in the data directory when not set. Hosts that share a database have to "
        "share this folder too.",
    )
    max_file_bytes: int = Field(
        default=200_000_000, ge=1_000, le=1_000_000_000, description="The largest file, in bytes."
    )
    max_stored_bytes: int = Field(
        default=20_000_000_000, ge=1_000, le=10**15, description="What one team's files may come to together, in bytes."
    )
    max_lines: int = Field(default=50_000, ge=1, le=1_000_000, description="The most requests in one batch.")
    max_queued_tokens: int = Field(
        default=2_000_000_000,
        ge=1,
        le=10**15,
        description="Tokens, of prompts and of the longest answers allowed, that one team's batches may have waiting. A batch "
        "that would exceed it fails when it is validated.",
    )
    at_once: int = Field(
        default=64, ge=1, le=10_000, description="Lines that one process answers at once when a deadline presses."
    )
    lease_s: Finite = Field(
        default=30.0,
        ge=0.5,
        le=3_600,
        description="How long a line belongs to a process that says nothing more. It is renewed three times as often; after "
        "it another process begins the line again.",
    )
    tries: int = Field(
        default=8,
        ge=1,
        le=1_000,
        description="How often a line is begun that fails in a way that may pass, before it has failed.",
    )
    flex: bool = Field(
        default=False,
        description="Whether lines of chats and responses ask for the service tier flex while their batch has time to spare. It "
        "reaches providers that sell it, at its price.",
    )
    providers: bool = Field(
        default=False,
        description="Whether lines are handed over to providers' own batch APIs, at the price of a batch, where that is the "
        "cheapest way that still makes it. It reaches deployments with a `batch_api`.",
    )
    provider_poll_s: Finite = Field(
        default=60.0, ge=0.05, le=3_600, description="How often a batch at a provider is looked at."
    )
    poll_s: Finite = Field(default=1.0, ge=0.05, le=60, description="How often a process looks for batches to work on.")
    keep_days: int = Field(
        default=30, ge=1, le=3_650, description="How long an ended batch is kept, and files whose upload did not say."
    )
    callback_networks: tuple[str, ...] = Field(
        default=(),
        max_length=100,
        description="Private networks that callbacks may go to, such as `10.1.0.0/16`. Every other address that is not public is "
        "refused.",
    )
