"""The table of quirks beside litellm's, model by model: what litellm knows that we do not, and the other way round. Pure."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from cost.price_book.litellm_table import Row as LitellmRow
from providers.parameters import DECISIVE, MINOR
from providers.quirks import BEGUN_ANSWER, Quirks, is_newest_of, model_named, quirks_of, read_table

Supported = Callable[[str], frozenset[str] | None]
"""Returns the parameters that litellm translates for a name of its own, such as `openai/gpt-5`; None where it does not say."""

_JUDGED: Final = (DECISIVE | MINOR) - {"top_k"}
"""What litellm says of OpenAI's parameters; not of others."""
_SAMPLING: Final = frozenset({"temperature", "top_p"})
"""litellm's lists have them for the sake of the value that comes anyway, also where its flag says that they are refused."""
_EFFORTS: Final = ("none", "minimal", "low", "xhigh")
"""The efforts that litellm's rows have a flag for, and that chat completions take: `max` is for responses alone."""


class Difference(msgspec.Struct, frozen=True):
    """One thing that both tables speak of, and differ in."""

    provider: str
    what: str
    ours: str
    theirs: str
    models: tuple[str, ...]


class Comparison(msgspec.Struct, frozen=True):
    """Of all models of providers that the table of quirks speaks of."""

    compared: int
    differences: tuple[Difference, ...]
    unknown: tuple[str, ...]
    """Models whose family no row names."""
    inherited: tuple[str, ...]
    """Models of a version that no row begins with, which are taken for one like the newest before them."""


def compared(rows: Mapping[str, LitellmRow], supported: Supported) -> Comparison:
    """Compare all chat models of litellm's table whose provider the table of quirks can address."""
    count = 0
    found: dict[tuple[str, str, str, str], list[str]] = {}
    unknown: list[str] = []
    inherited: list[str] = []
    for provider, name, row in _models(rows):
        count += 1
        kind, address = _place(provider)
        quirks = quirks_of(kind, address, f"{provider}/{name}" if kind == "litellm" else name)
        model = model_named(name)
        if not model.family:
            unknown.append(f"{provider}/{name}")
        elif not is_newest_of(model):
            inherited.append(f"{provider}/{name}")
        taken = supported(f"{provider}/{name}") or frozenset()
        for what, ours, theirs in _differences(quirks, row, taken, by_litellm=kind == "litellm"):
            found.setdefault((provider, what, ours, theirs), []).append(name)
    return Comparison(
        compared=count,
        differences=tuple(Difference(*key, tuple(sorted(names))) for key, names in sorted(found.items())),
        unknown=tuple(sorted(unknown)),
        inherited=tuple(sorted(inherited)),
    )


def provider_of(row: LitellmRow) -> str:
    """Return a row's provider by its first name: litellm tells some apart by their wire."""
    return str(row.get("litellm_provider")).removesuffix("_converse")


def _models(rows: Mapping[str, LitellmRow]) -> Iterator[tuple[str, str, LitellmRow]]:
    addresses = read_table().litellm
    seen: set[tuple[str, str]] = set()
    for full in rows:
        row = rows[full]
        provider = provider_of(row)
        name = full.removeprefix(f"{provider}/")
        if row.get("mode") != "chat" or provider not in addresses or (provider, name) in seen:
            continue
        seen.add((provider, name))
        yield provider, name, row


def _place(provider: str) -> tuple[str, str]:
    """Return the kind of deployment that would call the provider, and its address."""
    address = read_table().litellm[provider]
    return ("openai", address) if address else ("litellm", "")


def _differences(
    quirks: Quirks, row: LitellmRow, supported: frozenset[str], *, by_litellm: bool
) -> Iterator[tuple[str, str, str]]:
    samples = row.get("supports_sampling_params") is not False
    for name in sorted(_JUDGED) if supported else ():
        refused = name in quirks.refuses and name not in quirks.takes_unthinking
        taken = name in supported and (samples or name not in _SAMPLING)
        # What litellm calls itself it leaves out itself.
        if refused is taken and (refused or not by_litellm):
            yield name, "left out" if refused else "sent as asked", "taken" if taken else "not taken"
    most = row.get("max_output_tokens")
    if quirks.most_output_tokens and isinstance(most, int) and most != quirks.most_output_tokens:
        yield "max_output_tokens", f"{quirks.most_output_tokens:,}", f"{most:,}"
    for flag, said_by_us in (
        ("supports_sampling_params", "temperature" not in quirks.refuses),
        ("supports_adaptive_thinking", quirks.thinking in ("both", "adaptive")),
        ("supports_legacy_thinking", quirks.thinking in ("both", "budget")),
        ("supports_assistant_prefill", BEGUN_ANSWER not in quirks.refuses),
        ("supports_forced_tool_use", quirks.forces_tools),
        ("supports_mid_conversation_system", quirks.later_system == "kept" or not quirks.thinking),
        ("thinking_always_on", quirks.thinks_always),
        *((f"supports_{each}_reasoning_effort", each in quirks.efforts) for each in _EFFORTS if quirks.efforts),
    ):
        said = row.get(flag)
        if isinstance(said, bool) and said is not said_by_us:
            yield flag, *(("yes", "no") if said_by_us else ("no", "yes"))
