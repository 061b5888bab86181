"""The base of every section of the configuration, and the numbers that many of them have."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A part of the configuration: without unknown keys, never changed once it is read, and silent about what was given."""

    # A message about a bad value must not print the value: it may be a secret.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


Finite = Annotated[float, Field(allow_inf_nan=False)]
"""A number that is one. A field adds the bounds that are its own."""

Seconds = Annotated[Finite, Field(gt=0, le=3_600)]
"""Some time, an hour at most. What may be nothing, or longer, is `Finite` with bounds of its own."""

Share = Annotated[Finite, Field(ge=0, le=1)]
"""A part of a whole: from nothing to all of it."""
