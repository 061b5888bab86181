"""The site of the documentation: every document is in it and in its navigation, and every link leads to a page or a copy."""

from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from docs.make_site import LinkLost, Site, page_of, rewritten, whole_sentences

ROOT = Path(__file__).parents[1]


class _Loader(yaml.SafeLoader):
    """Without the slugs' function."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def named(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    return [page for each in (entry.values() if isinstance(entry, dict) else entry) for page in named(each)]


def test_each_page_is_in_the_navigation_once(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write()
    site.routes()
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)  # noqa: S506 - a SafeLoader of its own
    told = named(config["nav"])
    assert len(told) == len(set(told))
    decisions = {str(each) for each in site.pages if each.match("decisions/0*.md")}
    assert {*told} - {"commands.md"} == {str(each) for each in site.pages} - decisions
    assert decisions


def test_every_link_leads_to_what_is_there(tmp_path: Path) -> None:
    """Within the site: a page, a picture, or a copy of a file of the repository."""
    site = Site(tmp_path)
    site.write()
    copies = [each for each in (tmp_path / "files").rglob("*") if each.is_file()]
    assert copies
    assert not [each for each in copies if each.suffix != ".txt"]
    assert (tmp_path / "index.md").read_text().startswith("# Weighbridge")
    assert "](../" not in (tmp_path / "index.md").read_text()


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("[a](api.md#x)", "[a](api.md#x)"),
        ("[a](../README.md#install)", "[a](index.md#install)"),
        ("[a](README.md)", "[a](documentation.md)"),
        ("[a](decisions/README.md)", "[a](decisions/README.md)"),
        ("[a](#here) [b](https://example.com/x.md)", "[a](#here) [b](https://example.com/x.md)"),
        ("[a](../config/gateway.yaml)", "[a](files/config/gateway.yaml.txt)"),
        ("    curl [a](../README.md)", "    curl [a](../README.md)"),
        ("Two:\n- one\n- two\n  more\n- three", "Two:\n\n- one\n- two\n  more\n- three"),
        ("```\n[a](../README.md)\n```", "```\n[a](../README.md)\n```"),
    ],
)
def test_links_are_written_anew(text: str, made: str) -> None:
    def copied(path: PurePosixPath) -> PurePosixPath:
        return PurePosixPath("files") / f"{path}.txt"

    assert rewritten(text, PurePosixPath("docs/cache.md"), copied) == made


def test_a_list_of_commands_has_whole_sentences() -> None:
    """Of the group's own command, where two groups have one of that name."""
    told = (
        "* `keys`: Keys.\n\n## `weighbridge keys`\n\nKeys.\n\n**Usage**:\n\n* `list`: List keys, which is...\n\n"
        "### `weighbridge keys list`\n\nList keys, which\nis quick. More.\n\n**Usage**:\n\n"
        "## `weighbridge teams`\n\nTeams.\n\n**Usage**:\n\n* `list`: List teams with what...\n\n"
        "### `weighbridge teams list`\n\nList teams with what they spent.\n\n**Usage**:\n"
    )
    made = whole_sentences(told)
    assert "* `list`: List keys, which is quick.\n" in made
    assert "* `list`: List teams with what they spent.\n" in made


def test_a_decision_links_up() -> None:
    text = "[w](../wires.md) [r](../../README.md) [p](../../proxy/in_step.py)"
    made = rewritten(text, PurePosixPath("docs/decisions/0001-x.md"), lambda path: PurePosixPath("files") / path)
    assert made == "[w](../wires.md) [r](../index.md) [p](../files/proxy/in_step.py)"


@pytest.mark.parametrize("target", ["../../etc/passwd", "../nothing.toml"])
def test_what_is_not_there_is_told(target: str, tmp_path: Path) -> None:
    site = Site(tmp_path)
    with pytest.raises(LinkLost):
        rewritten(f"[a]({target})", PurePosixPath("docs/cache.md"), site._copy)


def test_a_file_of_the_code_is_no_page() -> None:
    assert page_of(PurePosixPath("docs/flow.svg")) is None
    assert page_of(PurePosixPath("proxy/README.md")) is None
