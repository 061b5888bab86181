"""Which tools a target's provider runs, and in which dialect it is asked for them."""

import pytest

from cost.prices import price_from_usd
from cost.usage import from_openai
from providers.provider_tools import address_of_dialect, common_dialect, known_tools, tool_name
from tests.cost.test_usage import GUESS, LIMITS
from tests.providers.calls import deployment

CLAUDE = deployment("litellm", upstream_model="anthropic/claude-x", base_url="")
OPENAI = deployment(base_url="https://api.openai.com/v1")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("web_search", "web_search"),
        ("web_search_preview_2025_03_11", "web_search"),
        ("web_search_20250305", "web_search"),
        ("computer_use_preview", "computer_use"),
        ("computer_20250124", "computer_use"),
        ("tool_search_tool_bm25_20251119", "tool_search"),
        ("mcp_toolset", "mcp"),
    ],
)
def test_dated_types_are_one_tool(kind: str, name: str) -> None:
    """As providers name new versions of it."""
    assert tool_name(kind) == name


def test_what_is_known_of_addresses() -> None:
    """Of the providers' own, and of nobody else's; deployments that differ have nothing in common."""
    assert "web_search" in known_tools([CLAUDE])
    assert "code_interpreter" in known_tools([OPENAI])
    assert "file_search" not in known_tools([OPENAI])
    for other in (deployment(), deployment("vllm"), deployment("litellm", upstream_model="bedrock/claude")):
        assert known_tools([other]) == frozenset()
    assert (common_dialect([CLAUDE]), common_dialect([OPENAI])) == ("messages", "responses")
    assert common_dialect([CLAUDE, OPENAI]) is None
    assert known_tools([OPENAI, deployment()]) == frozenset()
    assert address_of_dialect(CLAUDE) == "https://api.anthropic.com/v1"


def test_calls_are_counted_and_priced() -> None:
    """What has no price is named; counts that cannot be true make the whole report one that is not believed."""
    told = {"prompt_tokens": 1, "completion_tokens": 1}
    usage = from_openai({**told, "server_tool_use": {"web_search_requests": 2, "odd": 7}}, estimate=GUESS, **LIMITS)
    assert usage.tool_calls == (("web_search", 2),)
    price = price_from_usd(version="v", input_usd=1, output_usd=1)
    assert price.calls_nanousd(usage.tool_calls) == (0, ("web_search",))
    odd = from_openai({**told, "server_tool_use": {"web_search_requests": -1}}, estimate=GUESS, **LIMITS)
    assert (odd.source, odd.tool_calls) == ("estimated", ())
