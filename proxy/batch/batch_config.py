"""The `batch` section of the configuration: the bounds of files, batches and concurrent work."""

from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, StringConstraints, model_validator

from settings.secret_ref import SecretRef
from settings.types import Finite, Kept, Section

_ENDPOINT: Final = r"^https?://[^\s/?#@]+(/[^\s?#]*)?$"


class S3Section(Section):
    """An S3-compatible store for files, in place of a folder. It needs the extra `s3`."""

    bucket: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", description="The bucket, which has to be there.")
    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$", max_length=512)] = Field(
        default="weighbridge/files",
        description="Beginning of object names. It belongs to one database: unreferenced objects are deleted "
        "after a day.",
    )
    endpoint: str | None = Field(
        default=None,
        pattern=_ENDPOINT,
        description="The store's address, such as `http://minio:9000`; default AWS's. Buckets are named in the path.",
    )
    region: str = Field(default="us-east-1", pattern=r"^[a-z0-9-]{1,64}$", description="The region.")
    access_key_id: SecretRef | None = Field(
        default=None,
        description="The key's id, `env:NAME`. Default: `AWS_…` variables or the machine's role.",
    )
    secret_access_key: SecretRef | None = Field(
        default=None, description="Where the key's secret is found, `env:NAME`."
    )
    timeout_s: Finite = Field(
        default=30.0, gt=0, le=600, description="How long one request to the store may take, its repeats included."
    )

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key are given together, or neither is")
        return self


class BatchSection(Section):
    """The batch tier of this gateway."""

    enabled: bool = Field(
        default=True, description="Whether files and batches are accepted, and lines of batches answered."
    )
    answers: bool = Field(
        default=True,
        description="Whether this gateway answers lines. `false` where other hosts of its database do: it takes batches in, and gives "
        "results out.",
    )
    folder: Kept[Path | None] = Field(
        default=None,
        description="Where files are kept, by default `files` in the data folder. Shared by all hosts of a database.",
    )
    s3: S3Section | None = Field(
        default=None,
        description="An S3-compatible store in place of the folder, which hosts share. It needs the extra `s3`.",
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
        description="Tokens (prompts and longest answers) that one team's batches may have waiting; a larger "
        "batch fails validation.",
    )
    at_once: int = Field(
        default=64, ge=1, le=10_000, description="Lines that one process answers at once when a deadline presses."
    )
    lease_s: Finite = Field(
        default=30.0,
        ge=0.5,
        le=3_600,
        description="Lease of a process on a line; after it another process begins the line again.",
    )
    tries: int = Field(
        default=8,
        ge=1,
        le=1_000,
        description="Attempts at a line that fails in a way that may pass.",
    )
    flex: bool = Field(
        default=False,
        description="Whether lines ask for the service tier flex while their batch has time to spare.",
    )
    providers: bool = Field(
        default=False,
        description="Whether lines may go to providers' batch APIs (`batch_api`) where that is the cheapest way "
        "in time.",
    )
    provider_poll_s: Finite = Field(
        default=60.0, ge=0.05, le=3_600, description="How often a batch at a provider is looked at."
    )
    poll_s: Finite = Field(
        default=1.0,
        ge=0.05,
        le=60,
        description="How often a process looks for work while batches are under way; up to every 15 s when "
        "there are none.",
    )
    keep_days: int = Field(
        default=30, ge=1, le=3_650, description="How long ended batches are kept, and files without an expiry."
    )
    callback_networks: tuple[str, ...] = Field(
        default=(),
        max_length=100,
        description="Private networks that callbacks may go to, such as `10.1.0.0/16`.",
    )

    @model_validator(mode="after")
    def _check_store(self) -> Self:
        if self.folder is not None and self.s3 is not None:
            raise ValueError("files are kept in `folder` or in `s3`, not in both")
        return self
