"""Database tables of the fleet: registrations, drain orders, versions, rollouts, hour clocks, scaling targets, and prompt
habits.
"""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, Integer, String, Text, text
from sqlmodel import Field, SQLModel

from accounts.tables import ID_CHARS

NAME_CHARS = 64
URL_CHARS = 2_048
MODEL_CHARS = 128


class RegisteredReplica(SQLModel, table=True):
    """A registration by an engine or by whoever starts it. It expires when it has not been renewed within its time to
    live.
    """

    __tablename__: ClassVar[str] = "registered_replica"

    pool: str = Field(sa_column=Column(String(NAME_CHARS), primary_key=True))
    name: str = Field(sa_column=Column(String(NAME_CHARS), primary_key=True))
    url: str = Field(sa_column=Column(String(URL_CHARS), nullable=False))
    instance: str = Field(sa_column=Column(String(64), nullable=False))
    """Random id that the registering process chooses at its start: tells it from another process of the same name."""
    draining: bool = Field(default=False, nullable=False)
    registered_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    seen_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Last renewal, by the database's clock."""
    version: str = Field(default="", sa_column=Column(String(NAME_CHARS), nullable=False, server_default=text("''")))
    """The model's version that it says it runs; empty when it says none."""


class DrainOrder(SQLModel, table=True):
    """An order, by a person or the autoscaler, that a replica of any source takes no new work."""

    __tablename__: ClassVar[str] = "drain_order"

    pool: str = Field(sa_column=Column(String(NAME_CHARS), primary_key=True))
    name: str = Field(sa_column=Column(String(NAME_CHARS), primary_key=True))
    ordered_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    ordered_by: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))


class ModelVersionRow(SQLModel, table=True):
    """One version of a model or of a LoRA adapter. A row is never changed; the fields are those of `ModelVersion`."""

    __tablename__: ClassVar[str] = "model_version"

    model: str = Field(sa_column=Column(String(MODEL_CHARS), primary_key=True))
    version: str = Field(sa_column=Column(String(NAME_CHARS), primary_key=True))
    added_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    added_by: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    body: str = Field(sa_column=Column(Text, nullable=False))
    """JSON of the other fields."""


class RolloutRow(SQLModel, table=True):
    """The rollout of a pool's model: the versions that it runs, and the share of the one on trial."""

    __tablename__: ClassVar[str] = "rollout"

    model: str = Field(sa_column=Column(String(MODEL_CHARS), primary_key=True))
    pool: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    stable: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    candidate: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    share_ppm: int = Field(sa_column=Column(Integer, nullable=False))
    state: str = Field(sa_column=Column(String(16), nullable=False))
    since_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    changed_by: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    reason: str = Field(sa_column=Column(Text, nullable=False))
    rule: str = Field(sa_column=Column(Text, nullable=False))
    """JSON of a `Rule`."""
    evidence: str = Field(default="", sa_column=Column(Text, nullable=False, server_default=text("''")))
    """JSON of an `Evidence`: what was seen of both versions since the step."""


class ReplicaClock(SQLModel, table=True):
    """The time up to which a replica's uptime was counted into its pool's hours."""

    __tablename__: ClassVar[str] = "replica_clock"

    pool: str = Field(sa_column=Column(String(NAME_CHARS), primary_key=True))
    name: str = Field(sa_column=Column(String(NAME_CHARS), primary_key=True))
    counted_us: int = Field(sa_column=Column(BigInteger, nullable=False))


class PoolTarget(SQLModel, table=True):
    """The desired number of a pool's replicas, decided by the one process that holds the lease."""

    __tablename__: ClassVar[str] = "pool_target"

    pool: str = Field(sa_column=Column(String(NAME_CHARS), primary_key=True))
    desired: int = Field(sa_column=Column(Integer, nullable=False))
    reason: str = Field(sa_column=Column(Text, nullable=False))
    decided_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    holder: str = Field(sa_column=Column(String(64), nullable=False))
    """Boot id of the process that holds the lease; another takes over when it has run out."""
    lease_until_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    state: str = Field(default="", sa_column=Column(Text, nullable=False, default=""))
    """The policy's learnt state as JSON: demand, and throughput of a replica."""


class PromptHabit(SQLModel, table=True):
    """One way in which a team begins its prompts, on one day: how often, and how many tokens missed the cache for it.

    It holds no text: `skeleton` is a keyed hash of the beginning with everything that varies masked; empty for all
    others.
    """

    __tablename__: ClassVar[str] = "prompt_habit"

    day_us: int = Field(sa_column=Column(BigInteger, primary_key=True))
    team_id: str = Field(sa_column=Column(String(ID_CHARS), primary_key=True))
    target_id: str = Field(sa_column=Column(String(128), primary_key=True))
    skeleton: str = Field(sa_column=Column(String(32), primary_key=True))
    organisation_id: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    requests: int = Field(sa_column=Column(BigInteger, nullable=False))
    prompt_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    broken: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Requests with a new variant of a skeleton that had been seen, so that no cache could hold the whole beginning."""
    broken_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Tokens of those requests that come after the varying part and would otherwise have been the same."""
    first_break_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    """The smallest number of tokens before the varying part."""
    kinds: str = Field(sa_column=Column(String(128), nullable=False))
    """Kinds of varying parts, sorted and joined by commas: `date`, `time`, `clock`, `uuid`, `id`, `hex`, `number`,
    `other`."""
