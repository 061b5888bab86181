"""The tables of the batch tier: files, batches, their lines, answers that no file holds yet, and batches at
providers.
"""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, SmallInteger, String, Text, text
from sqlmodel import Field, SQLModel

from accounts.tables import ID_CHARS

NAME_CHARS = 255
MODEL_CHARS = 200
CUSTOM_ID_CHARS = 512
URL_CHARS = 2_000


class StoredFile(SQLModel, table=True):
    """A file of a team. Its content is in the blobs, under its id."""

    __tablename__: ClassVar[str] = "stored_file"
    __table_args__ = (
        Index("ix_stored_file_team", "team_id", "created_us"),
        Index("ix_stored_file_expires_us", "expires_us"),
    )

    file_id: str = Field(sa_column=Column(String(64), primary_key=True))
    organisation_id: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    team_id: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    filename: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    purpose: str = Field(sa_column=Column(String(32), nullable=False))
    bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    created_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    expires_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))


class BatchRow(SQLModel, table=True):
    """A batch: its request, its progress and its sums. Times are microseconds since 1970."""

    __tablename__: ClassVar[str] = "batch"
    __table_args__ = (Index("ix_batch_team", "team_id", "created_us"), Index("ix_batch_status", "status"))

    batch_id: str = Field(sa_column=Column(String(64), primary_key=True))
    organisation_id: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    team_id: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    key_id: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    endpoint: str = Field(sa_column=Column(String(64), nullable=False))
    input_file_id: str = Field(sa_column=Column(String(64), nullable=False))
    completion_window: str = Field(sa_column=Column(String(16), nullable=False))
    priority: int = Field(sa_column=Column(SmallInteger, nullable=False))
    labels: str | None = Field(sa_column=Column(Text, nullable=True))
    """The caller's `metadata` as JSON."""
    output_expires_s: int | None = Field(sa_column=Column(Integer, nullable=True))
    callback_url: str | None = Field(sa_column=Column(String(URL_CHARS), nullable=True))
    status: str = Field(sa_column=Column(String(16), nullable=False))
    ending: str = Field(sa_column=Column(String(16), nullable=False))
    """The status that finalizing leads to; empty before."""
    errors: str | None = Field(sa_column=Column(Text, nullable=True))
    """The problems that validation found, as a JSON list."""
    model: str | None = Field(sa_column=Column(String(MODEL_CHARS), nullable=True))
    """The model of all lines; None where they differ."""
    created_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    in_progress_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    expires_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    """The deadline; None without a promise."""
    finalizing_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    completed_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    failed_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    expired_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    cancelling_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    cancelled_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    output_file_id: str | None = Field(sa_column=Column(String(64), nullable=True))
    error_file_id: str | None = Field(sa_column=Column(String(64), nullable=True))
    total: int = Field(sa_column=Column(Integer, nullable=False))
    completed: int = Field(sa_column=Column(Integer, nullable=False))
    failed: int = Field(sa_column=Column(Integer, nullable=False))
    repeated: int = Field(sa_column=Column(Integer, nullable=False))
    """The number of times that a line was begun again, after a failure or because its process had died."""
    tokens: int = Field(sa_column=Column(BigInteger, nullable=False, server_default=text("0")))
    """Estimated tokens of all lines."""
    tokens_left: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Estimated tokens of the lines without an answer."""
    input_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    cached_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    output_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    reasoning_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    cost_nanousd: int = Field(sa_column=Column(BigInteger, nullable=False))
    unpriced: int = Field(sa_column=Column(Integer, nullable=False))
    """Answered lines whose cost is not known."""
    saved_nanousd: int = Field(sa_column=Column(BigInteger, nullable=False, server_default=text("0")))
    """The price of the answered lines for interactive use, less their cost."""
    bound_nanousd: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    """The most that all lines may cost together; None where a line has no price."""
    reserved_nanousd: int = Field(sa_column=Column(BigInteger, nullable=False))
    """The part of the bound that belongs to lines without an answer."""
    estimated_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    """The moment of its expected end, as of the beginning of its first line; None where no speed was known."""
    holder: str = Field(sa_column=Column(String(64), nullable=False))
    """The process that validates or finalizes it."""
    held_until_us: int = Field(sa_column=Column(BigInteger, nullable=False))


class BatchLine(SQLModel, table=True):
    """A request of a batch. Its body is in the input file, at `start`."""

    __tablename__: ClassVar[str] = "batch_line"
    __table_args__ = (
        Index("ix_batch_line_next", "batch_id", "state", "place"),
        Index("ix_batch_line_held", "state", "held_until_us"),
    )

    batch_id: str = Field(sa_column=Column(String(64), primary_key=True))
    number: int = Field(sa_column=Column(Integer, primary_key=True))
    """The line of the input file, from 1."""
    place: int = Field(sa_column=Column(Integer, nullable=False))
    """The order in which lines are begun: by model and by their beginning, so that prefixes are shared."""
    custom_id: str = Field(sa_column=Column(String(CUSTOM_ID_CHARS), nullable=False))
    start: int = Field(sa_column=Column(BigInteger, nullable=False))
    size: int = Field(sa_column=Column(Integer, nullable=False))
    tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Estimated tokens of prompt and answer."""
    bound_nanousd: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    state: int = Field(sa_column=Column(SmallInteger, nullable=False))
    generation: int = Field(sa_column=Column(Integer, nullable=False))
    """The number of its beginnings. Only the newest may write the answer."""
    holder: str = Field(sa_column=Column(String(64), nullable=False))
    held_until_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    """The end of the holder's lease; while the line waits, the moment before which it is not begun."""
    failures: int = Field(sa_column=Column(Integer, nullable=False))
    """The number of failures so far that may pass."""
    status: int = Field(sa_column=Column(Integer, nullable=False))
    """The HTTP status of its answer; 0 without one."""
    error_code: str = Field(sa_column=Column(String(64), nullable=False))
    request_id: str = Field(sa_column=Column(String(64), nullable=False))
    ended_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))


class BatchResult(SQLModel, table=True):
    """The answer of a line, until the output file has it."""

    __tablename__: ClassVar[str] = "batch_result"

    batch_id: str = Field(sa_column=Column(String(64), primary_key=True))
    number: int = Field(sa_column=Column(Integer, primary_key=True))
    body: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class ProviderBatchRow(SQLModel, table=True):
    """Lines of one batch that were handed over together to a provider's batch API. Times are microseconds since 1970."""

    __tablename__: ClassVar[str] = "handed_batch"
    __table_args__ = (
        Index("ix_handed_batch_batch_id", "batch_id"),
        Index("ix_handed_batch_look", "state", "look_us"),
    )

    handed_id: str = Field(sa_column=Column(String(64), primary_key=True))
    """Our name for it. It holds its lines, and its reservations in the ledger are of the process of this name."""
    batch_id: str = Field(sa_column=Column(String(64), nullable=False))
    target_id: str = Field(sa_column=Column(String(MODEL_CHARS), nullable=False))
    deployment_id: str = Field(sa_column=Column(String(MODEL_CHARS), nullable=False))
    state: str = Field(sa_column=Column(String(16), nullable=False))
    """`making` until the provider's id for it is known, `running`, `forgetting` from its end until the provider has
    deleted its part of it, `ended`.
    """
    outcome: str = Field(sa_column=Column(String(16), nullable=False))
    """The outcome: the provider's own, or `late`, `refused` or `lost`; empty before."""
    upstream_id: str = Field(sa_column=Column(String(MODEL_CHARS), nullable=False))
    """The provider's id for it; empty while it is not known."""
    lines: int = Field(sa_column=Column(Integer, nullable=False))
    lines_left: int = Field(sa_column=Column(Integer, nullable=False))
    """Lines that wait for the provider."""
    tokens_left: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Estimated tokens of those."""
    tokens_answered: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Estimated tokens of the lines that the provider has answered."""
    answered: int = Field(sa_column=Column(Integer, nullable=False))
    unneeded: int = Field(sa_column=Column(Integer, nullable=False))
    """Paid answers that came when their line was another's already."""
    estimated: int = Field(sa_column=Column(Integer, nullable=False))
    """Calls of unknown cost, which are booked at the most that it may be."""
    created_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    give_up_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    """The moment at which its lines are taken back."""
    ended_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    look_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    """The moment of the next look at it."""
    holder: str = Field(sa_column=Column(String(64), nullable=False))
    """The process that polls it."""
    held_until_us: int = Field(sa_column=Column(BigInteger, nullable=False))
