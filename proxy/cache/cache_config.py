"""The configuration file's `cache:` section: which answers are kept to be given again, and how many."""

from pydantic import Field

from settings.types import Finite, Section


class CacheSection(Section):
    """Answers that are kept and given again to equal requests of the same team. Without this section none are."""

    default: bool = Field(
        default=False,
        description="`on`: requests with `temperature: 0`, and embeddings, of teams that set nothing. `off`: only their requests that ask for "
        "it (`x-weighbridge-cache: ttl=60`).",
    )
    ttl_s: int = Field(
        default=3_600, ge=1, le=2_592_000, description="Longest time for which an answer is given again."
    )
    max_bytes: int = Field(
        default=67_108_864,
        ge=65_536,
        le=1_099_511_627_776,
        description="Bytes of kept answers: in Redis, or without one in each process, where the least used go first.",
    )
    max_answer_bytes: int = Field(default=262_144, ge=1_024, le=4_194_304, description="A larger answer is not kept.")
    wait_s: Finite = Field(
        default=30.0,
        ge=0,
        le=600,
        description="How long a request waits for an equal one that is being answered; then it is answered by itself.",
    )
