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


class _ReloadMark:
    """The mark of a key that a reload changes at once, with all keys below it."""


_RELOADABLE: Final = _ReloadMark()
_T = TypeVar("_T")

Reloadable = Annotated[_T, _RELOADABLE]
"""The type of a key that SIGHUP changes at once, with all keys below it; any other keeps its value until a restart.
Whatever consumes the key reads it anew each time, or is told by `ProcessPipeline.reload`.
"""


def is_reloadable(field: FieldInfo) -> bool:
    """Return True for a field that a reload changes at once."""
    return _RELOADABLE in field.metadata
