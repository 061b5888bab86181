"""The row of the classifier's table for a configured model, by the names that it has in the configuration."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from classifier.known_models import EFFORTS, efforts_of, known_model
from providers.config import ModelConfig

NO_ROW: Final = "none"
"""The `ability` of a model that shall have no row, whatever it is called."""
_EFFORT_OPTION: Final = "reasoning_effort"


class KnownRow(msgspec.Struct, frozen=True):
    """A model's row at its usual reasoning effort, and its rows at other efforts by effort."""

    ability: str
    efforts: Mapping[str, str] = {}


def row_of(model: ModelConfig, rest: str | None = None, served_as: str | None = None) -> KnownRow | None:
    """Return the row of a configured model; None where no name of it is known. `rest` is what a wildcard's `*` stands for,
    `served_as` the name that our own engines have it by.

    A model that is configured with a reasoning effort has that effort's row, and a request for another one that one's.
    """
    if model.ability == NO_ROW:
        return None
    names = tuple(_names(model, rest, served_as))
    known = known_model(names, _configured_effort(model))
    if known is None:
        # A name that no model has may be a row's own: artifacts of one's own have theirs.
        return None if model.ability is None else KnownRow(model.ability)
    # Names such as that of a variant without reasoning have the same row at every effort.
    at_effort = {effort: known_model(names, effort) for effort in (EFFORTS if efforts_of(known.name) else ())}
    return KnownRow(
        known.row, {effort: other.row for effort, other in at_effort.items() if other and other.row != known.row}
    )


def _names(model: ModelConfig, rest: str | None, served_as: str | None) -> Iterator[str]:
    """Yield the model's names, the surest first."""
    if model.ability is not None:
        yield model.ability
        return
    if model.known_as:
        yield model.known_as
    if rest is not None:
        yield from (model.upstream_of(deployment, rest) for deployment in model.deployments)
        return
    for deployment in model.deployments:
        if deployment.upstream_model is not None:
            yield deployment.upstream_model
    if served_as is not None:
        yield served_as
    if not model.is_wildcard:
        yield model.model_id


def _configured_effort(model: ModelConfig) -> str:
    """Return the reasoning effort that all its deployments are called with; empty where they differ, or none is named."""
    efforts = {deployment.options.get(_EFFORT_OPTION, "") for deployment in model.deployments}
    return efforts.pop() if len(efforts) == 1 else ""
