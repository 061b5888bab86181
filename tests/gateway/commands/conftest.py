"""Every command that a test of this folder runs writes its figures like all others."""

from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.written import other_ways


@pytest.fixture(autouse=True)
def _written_alike(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    run = CliRunner.invoke
    found: list[str] = []

    def invoke(*arguments: Any, **options: Any) -> Result:
        result = run(*arguments, **options)
        found.extend(other_ways(result.output))
        return result

    monkeypatch.setattr(CliRunner, "invoke", invoke)
    yield
    assert not found, found
