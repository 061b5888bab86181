"""The base class of every section of the configuration, and number types that many of them use."""

from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo


class Section(BaseModel):
    """A section of the configuration: unknown keys are refused, values are frozen, and errors do not repeat the input."""

    # A message about a bad value must not print the value: it may be a secret.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


Finite = Annotated[float, Field(allow_inf_nan=False)]
"""A float that is neither infinite nor NaN. Fields add bounds of their own."""

Seconds = Annotated[Finite, Field(gt=0, le=3_600)]
"""A duration in seconds, above 0 and at most an hour. Others use `Finite` with their own bounds."""

Share = Annotated[Finite, Field(ge=0, le=1)]
"""A fraction in [0, 1]."""


class _KeptMark:
    """The mark of a path at which the gateway keeps something."""


class _GivenMark:
    """The mark of a path from which the gateway reads what it was given."""


_KEPT: Final = _KeptMark()
_GIVEN: Final = _GivenMark()


class _ReloadMark:
    """The mark of a key that a reload changes at once, with all keys below it."""


_RELOADABLE: Final = _ReloadMark()
_T = TypeVar("_T")

Reloadable = Annotated[_T, _RELOADABLE]
"""The type of a key that SIGHUP changes at once, with all keys below it; any other keeps its value until a restart.
Whatever consumes the key reads it anew each time, or is told by `ProcessPipeline.reload`.
"""

Kept = Annotated[_T, _KEPT]
"""The type of a path at which the gateway keeps something. Loading a configuration makes a relative one whole."""

Given = Annotated[_T, _GIVEN]
"""The type of a path (or its text) from which the gateway reads. Loading a configuration makes a relative one whole."""


def is_kept(field: FieldInfo) -> bool:
    """Return True for a path at which the gateway keeps something."""
    return _KEPT in field.metadata


def is_given(field: FieldInfo) -> bool:
    """Return True for a path from which the gateway reads."""
    return _GIVEN in field.metadata


def is_reloadable(field: FieldInfo) -> bool:
    """Return True for a field that a reload changes at once."""
    return _RELOADABLE in field.metadata
