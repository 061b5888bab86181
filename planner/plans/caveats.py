"""Warnings about KV cache sizes in documents that do not follow from the model's shape, with the reason."""

from planner.plans.models import MODELS, ModelShape

_CLOSE = 0.05


def doubts_about(model: ModelShape, given_kv_bytes: int | None = None) -> list[str]:
    """Return warnings about a model's KV cache, from its shape and from the bytes per token that a document states."""
    told = list(model.doubts)
    published = _published(model)
    if published is not None and published.kv_heads != model.kv_heads:
        told.append(
            f"{model.kv_heads} KV heads were given, but {published.repository} has {published.kv_heads} "
            f"(grouped-query attention: {model.heads // published.kv_heads} of its {model.heads} query heads share one). "
            f"{_size(model.kv_bytes_per_token('bf16'))} a token would be "
            f"{model.kv_heads / published.kv_heads:g} times what it keeps, "
            f"{_size(published.kv_bytes_per_token('bf16'))} in bf16"
        )
    elif not model.gqa and model.latent_values is None:
        told.append(
            f"{model.name} has a KV head for every query head ({model.kv_heads}), so a token takes "
            f"{_size(model.kv_bytes_per_token('bf16'))} in bf16; with 8 KV heads (GQA) it would be "
            f"{_size(model.kv_bytes_per_token('bf16') * 8 / model.kv_heads)}. If this is a newer model, its config.json "
            "lacks num_key_value_heads"
        )
    if given_kv_bytes is not None:
        told.append(check_kv_bytes(published or model, given_kv_bytes))
    return told


def check_kv_bytes(model: ModelShape, given: int) -> str:
    """Compare a document's KV bytes per token with what follows from the shape, and explain where a wrong figure
    comes from.
    """
    right = {name: model.kv_bytes_per_token(name) for name in ("bf16", "fp8")}
    for name, size in right.items():
        if _near(given, size):
            return f"{_size(given)} a token is right: {model.name} keeps {_size(size)} in {name}"
    ungrouped = 2 * model.layers * model.heads * model.head_dim * 2
    size = right["bf16"]
    if model.gqa and (_near(given, ungrouped) or _near(given, ungrouped / 2)):
        return (
            f"{_size(given)} a token counts all {model.heads} query heads and so ignores GQA: {model.name} keeps keys and "
            f"values of {model.kv_heads} heads, {_size(size)} a token in bf16. Planned with that figure, the cache would "
            f"hold {given / size:.3g} times fewer requests than it does"
        )
    return f"{_size(given)} a token is not what follows from the shape of {model.name}: {_size(size)} in bf16"


def _near(given: float, size: float) -> bool:
    # Documents take a kilobyte for 1,000 or 1,024 bytes.
    return abs(given / size - 1) <= _CLOSE


def _published(model: ModelShape) -> ModelShape | None:
    known = MODELS.get(model.name)
    return known if known is not None and known.layers == model.layers and known.hidden == model.hidden else None


def _size(size: float) -> str:
    return f"{size:,.0f} B ({size / 1024:,.0f} KiB)"
