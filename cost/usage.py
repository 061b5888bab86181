"""Token usage in one shape, whatever dialect the upstream spoke.

Buckets are inclusive: `input_tokens` contains the cached and the cache-written ones, and
`output_tokens` contains reasoning tokens.
"""

from typing import Literal

import msgspec

UsageSource = Literal["upstream", "estimated", "none"]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt used, in tokens.

    `source` says who counted: the upstream, our estimate, or nobody (nothing was generated).
    `flags` name what was odd (`absurd_usage`, `stream_cut`, `caller_gone`, ...); a flagged row is
    never silently trusted.
    """

    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    source: UsageSource = "none"
    flags: tuple[str, ...] = ()
