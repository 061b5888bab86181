"""The fleet's tables: who registered, who counts the hours, what each pool should have, and how stable prompts are."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, Integer, String, Text
from sqlmodel import Field, SQLModel

from accounts.tables import ID_CHARS

NAME_CHARS = 64
URL_CHARS = 2_048


class RegisteredReplica(SQLModel, table=True):
    """An engine that said itself, or whose starter said, where it is. It is gone when it was not seen for its time to live."""

    __tablename__: ClassVar[str] = "registered_replica"

    pool: str = Field(sa_column=Column(String(NAME_CHARS), primary_key=True))
    name: str = Field(sa_column=Column(String(NAME_CHARS), primary_key=True))
    url: str = Field(sa_column=Column(String(URL_CHARS), nullable=False))
    instance: str = Field(sa_column=Column(String(64), nullable=False))
    """Chosen by who registers, anew for each process: a second one of the same name is told apart by it."""
    draining: bool = Field(default=False, nullable=False)
    registered_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    seen_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    """By the database's clock."""


class DrainOrder(SQLModel, table=True):
    """A person's or the autoscaler's word that a replica, wherever it came from, takes no new work."""

    __tablename__: ClassVar[str] = "drain_order"

    pool: str = Field(sa_column=Column(String(NAME_CHARS), primary_key=True))
    name: str = Field(sa_column=Column(String(NAME_CHARS), primary_key=True))
    ordered_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    ordered_by: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))


class ReplicaClock(SQLModel, table=True):
    """Up to when a replica's time up was counted into its pool's hours."""

    __tablename__: ClassVar[str] = "replica_clock"

    pool: str = Field(sa_column=Column(String(NAME_CHARS), primary_key=True))
    name: str = Field(sa_column=Column(String(NAME_CHARS), primary_key=True))
    counted_us: int = Field(sa_column=Column(BigInteger, nullable=False))


class PoolTarget(SQLModel, table=True):
    """How many replicas a pool should have, decided by the one process that holds the lease."""

    __tablename__: ClassVar[str] = "pool_target"

    pool: str = Field(sa_column=Column(String(NAME_CHARS), primary_key=True))
    desired: int = Field(sa_column=Column(Integer, nullable=False))
    reason: str = Field(sa_column=Column(Text, nullable=False))
    decided_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    holder: str = Field(sa_column=Column(String(64), nullable=False))
    """The boot id of the process that decides; another takes over when the lease ran out."""
    lease_until_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    state: str = Field(default="", sa_column=Column(Text, nullable=False, default=""))
    """What the policy learnt of demand and of what a replica carries, as JSON."""


class PromptHabit(SQLModel, table=True):
    """One way in which a team begins its prompts, on one day: how often, and how much of it the caches could not keep.

    It holds no text: `skeleton` is a keyed hash of the beginning with everything that varies masked, empty for various.
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
    """Requests whose beginning was a new one of a skeleton that had been seen: no cache could have it whole."""
    broken_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Tokens of those that would have been the same but for what varies before them."""
    first_break_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    """The least number of tokens before what varies."""
    kinds: str = Field(sa_column=Column(String(128), nullable=False))
    """What varies: a sorted list, with commas, of `date`, `time`, `clock`, `uuid`, `id`, `hex`, `number`, `other`."""
