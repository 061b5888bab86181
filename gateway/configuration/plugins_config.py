"""The `plugins` section of the configuration: which plug-ins run, what they may see and how long they may take."""

import re
from typing import Annotated, Any, Final

from pydantic import Field, model_validator

from providers.config import HeaderName
from settings.secret_ref import is_reference
from settings.types import Section
from weighbridge.plugins import Kind
from weighbridge.plugins.testing import DEADLINES_S

_SECRET: Final = re.compile(r"(^|[_-])(key|secret|token|password|passwd|credentials?)$", re.IGNORECASE)
_READS_TEXT: Final = frozenset({"guard", "dialect"})


class PluginConfig(Section):
    """One plug-in."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=64,
        description="Unique; stands in logs, metrics and headers.",
    )
    kind: Kind = Field(description="What it is.")
    use: str = Field(
        min_length=1,
        max_length=256,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]*$",
        description="`package.module:Class`, or the name of an entry point of the group `weighbridge.plugins`.",
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, max_length=64, description="Its own. Secrets as env:NAME or file:PATH."
    )
    deadline_ms: int | None = Field(
        default=None,
        ge=1,
        le=60_000,
        description=f"The longest that one call may take. Default: {', '.join(f'{kind} {seconds * 1_000:,.0f}' for kind, seconds in DEADLINES_S.items())}.",
    )
    text: bool = Field(
        default=False,
        description="Lets it see texts. A guard and a dialect need it; an exporter gets prompts of teams that let them be kept.",
    )
    headers: list[Annotated[HeaderName, Field()]] = Field(
        default_factory=lambda: ["authorization"],
        max_length=32,
        description="Authenticator: the request headers that it is given.",
    )
    organisation: str = Field(
        default="default", max_length=64, description="Authenticator: the organisation whose keys it may name."
    )

    @property
    def deadline_s(self) -> float:
        """The longest that one call may take."""
        return DEADLINES_S[self.kind] if self.deadline_ms is None else self.deadline_ms / 1_000

    @model_validator(mode="after")
    def _check_consistent(self) -> "PluginConfig":
        if self.kind in _READS_TEXT and not self.text:
            raise ValueError(f"a {self.kind} works on texts: grant them with `text: true`")
        for name, value in self.settings.items():
            if _SECRET.search(name) and isinstance(value, str) and value and not is_reference(value):
                raise ValueError(
                    f"the setting {name[:64]} looks like a secret; write where it is found, such as env:NAME"
                )
        return self
