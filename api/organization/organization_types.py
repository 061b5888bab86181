"""Reply types of the routes that follow OpenAI's organization API."""

from decimal import Decimal
from typing import Generic, Literal, TypeVar

import msgspec

Result = TypeVar("Result")


class _Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one group. Fields that are not grouped by are null."""

    input_tokens: int
    num_model_requests: int
    project_id: str | None
    user_id: None
    api_key_id: str | None
    model: str | None


class CompletionsResult(_Usage, frozen=True, kw_only=True):
    """Tokens and requests of one group. The books do not keep text, images and audio apart, so those fields are null."""

    object: Literal["organization.usage.completions.result"]
    input_cached_tokens: int
    input_cache_write_tokens: int
    input_uncached_tokens: int
    output_tokens: int
    batch: bool | None
    service_tier: str | None


class EmbeddingsResult(_Usage, frozen=True, kw_only=True):
    """Tokens and requests of one group, of targets that embed."""

    object: Literal["organization.usage.embeddings.result"]


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars, null where a price is unknown; `value_decimal` is the exact amount as text."""

    value: Decimal | None
    currency: Literal["usd"]
    value_decimal: str | None


class CostsResult(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars of one group."""

    object: Literal["organization.costs.result"]
    amount: Amount
    project_id: str | None
    line_item: str | None
    api_key_id: str | None
    quantity: int | None
    quantity_unit: str | None


class Bucket(msgspec.Struct, Generic[Result], frozen=True, kw_only=True):
    """One interval, in Unix seconds; `end_time` is exclusive."""

    object: Literal["bucket"]
    start_time: int
    end_time: int
    results: list[Result]


class BucketPage(msgspec.Struct, Generic[Result], frozen=True, kw_only=True):
    """Some buckets, and the token of the page after them."""

    object: Literal["page"]
    data: list[Bucket[Result]]
    has_more: bool
    next_page: str | None
