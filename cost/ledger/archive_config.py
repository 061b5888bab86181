"""The key `cost.archive` of the configuration."""

from pathlib import Path
from typing import Final

from pydantic import Field, field_validator

from settings.types import Section

S3: Final = "s3://"
"""How a place in an S3-compatible store begins; any other is a folder."""


class ArchiveConfig(Section):
    """Months of the ledger that go into files by themselves."""

    keep_months: int = Field(
        ge=1,
        le=1_200,
        description="Whole UTC months before the present one whose entries stay in the database. Older ones go into files once they "
        "are signed off.",
    )
    to: str = Field(
        min_length=1,
        max_length=1_000,
        description="Where the files go: a folder, written whole, that all hosts have, or `s3://BUCKET/PREFIX`.",
    )

    @field_validator("to")
    @classmethod
    def _require_place(cls, text: str) -> str:
        if text.startswith(S3):
            if not text.removeprefix(S3).strip("/"):
                raise ValueError("name a bucket: s3://BUCKET/PREFIX")
        elif not Path(text).is_absolute():
            raise ValueError("write the folder whole, such as /var/lib/weighbridge/books, or s3://BUCKET/PREFIX")
        return text
