"""References to secrets in the configuration, which never holds one."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator

_REFERENCE: Final = re.compile(r"(env:|os\.environ/)[A-Za-z_][A-Za-z0-9_]*|file:\S(.*\S)?")


def is_reference(value: str) -> bool:
    """Return True when `value` refers to a secret, rather than being one."""
    return _REFERENCE.fullmatch(value) is not None


def _check_reference(value: str) -> str:
    if not is_reference(value):
        raise ValueError(
            "a secret is never written into the configuration; write where it is found: "
            "env:NAME (or os.environ/NAME) for an environment variable, file:PATH for a file"
        )
    return value


SecretRef = Annotated[str, AfterValidator(_check_reference)]
"""A reference to a secret: `env:NAME`, LiteLLM's `os.environ/NAME`, or `file:PATH`. Never the secret."""
