"""Generator of docs/providers.md from the table of providers: `python -m providers.providers_page > docs/providers.md`.

A test holds the page to what this prints, and another one has every snippet checked as a configuration.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from providers.known_providers import Provider, known_providers

_HEAD: Final = """# Providers by name

*Reference. For operators. Answers: what to write for a provider or engine, and what follows from its name.*

Made of [`providers/data/providers.toml`](../providers/data/providers.toml) by `python -m providers.providers_page > docs/providers.md`; addresses were read on {day}.

An entry of `providers.models` is a line below; the snippets are complete. Address, wire, key and the name in litellm's table of prices and facts follow from `provider`. `base_url` and
`api_key: env:NAME` say otherwise: a key goes by itself only to its provider's own hosts. litellm's `model: groq/…` names the provider, too. Callers send `model`, unless `model_id` says what.

Several addresses of a model are its `deployments`, each with its own `provider`. With `model_id: openai/*` the `*` is the upstream's name, with `gpt-*` all of it. Where the table has no price,
write `prices` (dollars per million tokens), or `cost.unpriced: book`; those below are examples. A cost that a provider tells itself is what is booked.

## Commercial
"""
_OWN: Final = """
## Your own engines

They cost nothing a token unless `prices` says otherwise; what their GPUs cost is in `cost.pools`. Without `base_url` they are at this machine's usual port; without a path, {paths} is added. In a container, `localhost` is the container.
A pool of them that is watched and scaled is [another thing](fleet.md).
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join(_lines()) + "\n"


def snippet(provider: Provider) -> str:
    """Return the entry of the provider's example in the configuration."""
    return _flow({"provider": provider.name, "model": provider.model, **provider.extra})


def _lines() -> Iterator[str]:
    rows = known_providers()
    day = Counter(row.date for row in rows).most_common(1)[0][0]
    yield from _HEAD.replace("{day}", str(day)).splitlines()
    yield ""
    yield from (_line(row) for row in rows if not row.is_own)
    paths = " or ".join(f"`{path}`" for path in sorted({row.path for row in rows if row.is_own}))
    yield from _OWN.replace("{paths}", paths).splitlines()
    yield ""
    yield from (_line(row) for row in rows if row.is_own)


def _line(row: Provider) -> str:
    told = [f"`{snippet(row)}`"]
    if row.base_url:
        told.append(row.base_url)
    if row.keys:
        told.append(f"`{row.keys[0]}`")
    if row.litellm and row.dialect is None:
        told.append("with an [extra](deployment.md#extras)")
    if row.told_cost is not None:
        told.append("tells its cost")
    if row.headers:
        told.append("takes " + ", ".join(f"`{each}`" for each in row.headers))
    return f"- [{row.title}]({row.source}): {', '.join(told)}"


def _flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_flow(inner)}" for name, inner in value.items()) + "}"
    text = str(value)
    return f'"{text}"' if ":" in text else text


if __name__ == "__main__":
    sys.stdout.write(page())
