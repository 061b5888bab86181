"""Templates and files."""

import gzip
from pathlib import Path

import jinja2
import pytest

import dashboards
from dashboards.ui.rendering import STATIC, asset, assets, environment

_DASHBOARDS = Path(dashboards.__file__).parent
_SHARED = _DASHBOARDS / "ui"
_TEMPLATES = {
    each.relative_to(_SHARED if each.parent == _SHARED else _DASHBOARDS).as_posix(): each
    for each in _DASHBOARDS.rglob("*.html")
}
_FIRST_LOAD = ("htmx-2.0.11.min.js", "uplot-1.6.32.min.js", "uplot-1.6.32.min.css", "app.css", "app.js")


def test_first_load_is_small() -> None:
    """All script and style of a page, as it is sent uncompressed, is under 200 KB."""
    sizes = {name: len(assets()[asset(name)].body) for name in _FIRST_LOAD}
    assert sum(sizes.values()) < 200_000, sizes
    assert sum(len(gzip.compress(assets()[asset(name)].body)) for name in _FIRST_LOAD) < 70_000


def test_addresses_change_with_content() -> None:
    """A file's address has its digest; one that is not there is an error of ours."""
    assert all(path.split("/")[3].isalnum() for path in assets())
    with pytest.raises(KeyError):
        asset("nothing.css")


@pytest.mark.parametrize("name", sorted(_TEMPLATES))
def test_no_inline_code_or_style(name: str) -> None:
    """The content policy would block it, so it never gets there; every template compiles."""
    source = _TEMPLATES[name].read_text()
    environment().get_template(name)
    assert " style=" not in source
    assert " hx-on" not in source
    assert "javascript:" not in source
    assert "|safe" not in source
    assert not [event for event in ("onclick=", "onload=", "onchange=", "onsubmit=", "oninput=") if event in source]


def test_what_is_unknown_is_an_error() -> None:
    """A misspelt name in a template is no empty text."""
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ nothing }}").render()


def test_vendored_files_have_their_licences() -> None:
    """What is not ours says whose it is."""
    assert {each.name for each in (STATIC / "licences").iterdir()} == {"htmx.txt", "uplot.txt"}
