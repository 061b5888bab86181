"""The `redis` section of the configuration: the Redis where processes share their limits, and the longest wait for
it.
"""

import re
from typing import Final, Self

from pydantic import Field, field_validator, model_validator

from settings.secret_ref import SecretRef
from settings.types import Finite, Section

# As a cluster reads it: from the first brace that opens to the next that closes; were there nothing between, each key would have its own slot.
_PREFIX: Final = re.compile(r"[!-z|}~]*\{[!-|~]+\}[!-~]*")
# The least share of the time-out that is left for Redis's reply, once a call was sent.
_REPLY_SHARE: Final = 0.75


class RedisSection(Section):
    """One Redis (or Valkey) that all processes share: a server, what Sentinels watch, or a cluster."""

    url: SecretRef | None = Field(
        default=None,
        description="Where the address is found, `env:NAME`; WEIGHBRIDGE_REDIS_URL goes first. `redis://`, `rediss://`, `unix://`, "
        "`redis+sentinel://HOST,HOST/SERVICE`, `redis+cluster://HOST,HOST`. Without it each process enforces its share of limits.",
    )
    prefix: str = Field(
        default="{weighbridge}:",
        max_length=64,
        description="Beginning of every key; the part in braces keeps them in one cluster slot. Gateways that "
        "share limits share it.",
    )
    timeout_s: Finite = Field(
        default=0.1,
        ge=0.02,
        le=5,
        description="Longest call; a later reply is not waited for.",
    )
    slow_s: Finite = Field(
        default=0.05, ge=0.005, le=2, description="A reply that takes longer is used, and counts as a failure."
    )
    failures: int = Field(
        default=5, ge=1, le=1_000, description="Failures in a row after which each process uses its share."
    )
    probe_s: Finite = Field(
        default=0.25, ge=0.02, le=60, description="How often a Redis that was given up is tried again."
    )
    connect_timeout_s: Finite = Field(
        default=0.5,
        ge=0.05,
        le=30,
        description="Longest connect, TLS and password included; and before it the longest that Sentinels or a cluster's nodes are asked.",
    )

    @property
    def reply_s(self) -> float:
        """The time reserved for Redis's reply; only the rest of `timeout_s` may pass before a call is sent."""
        return self.timeout_s * _REPLY_SHARE

    @field_validator("prefix")
    @classmethod
    def _in_one_slot(cls, prefix: str) -> str:
        if _PREFIX.fullmatch(prefix) is None:
            raise ValueError("must have visible ASCII characters with a part in braces, such as {weighbridge}:")
        return prefix

    @model_validator(mode="after")
    def _slow_comes_first(self) -> Self:
        if self.slow_s >= self.reply_s:
            raise ValueError("slow_s must be less than three quarters of timeout_s")
        return self
