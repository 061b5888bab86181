"""What an address that is none is told, before an application with two routes."""

import httpx
import pytest
from fastapi import FastAPI

from dashboards.web.error_replies import add_error_replies


async def ask(method: str, path: str, accept: str = "application/json") -> httpx.Response:
    app = FastAPI(redirect_slashes=False)
    add_error_replies(app)
    app.add_api_route("/v1/models", list, methods=["GET"])
    app.add_api_route("/v1/models/{name}", lambda name: name, methods=["GET"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        return await client.request(method, path, headers={"accept": accept})


@pytest.mark.parametrize(
    ("method", "path", "meant"),
    [
        ("POST", "/chat/completions", "/v1/chat/completions"),
        ("POST", "/v1/chat/completions/", "/v1/chat/completions"),
        ("POST", "/v1/v1/messages", "/v1/messages"),
        ("GET", "/models", "/v1/models"),
        ("GET", "/v1/v1/models/gpt-4o", "/v1/models/gpt-4o"),
    ],
)
async def test_an_address_that_is_nearly_right_is_told(method: str, path: str, meant: str) -> None:
    """With what was left out, or written twice, before the wires and before any other route."""
    reply = await ask(method, path)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (404, "not_found")
    assert f"It is {meant}: the base URL" in error["message"]


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing", "/v1/v1", "/v1"])
async def test_any_other_address_is_not_guessed_at(path: str) -> None:
    """It is not there, and that is all."""
    reply = await ask("GET", path)
    assert reply.json()["error"]["message"] == f"GET {path}: Not Found."


async def test_the_root_leads_people_to_the_pages() -> None:
    """Programs are told where the API begins; what has another method says which one."""
    browser = await ask("GET", "/", "text/html,application/xhtml+xml")
    assert (browser.status_code, browser.headers["location"]) == (303, "/dashboard")
    program = await ask("GET", "/")
    assert program.json()["error"]["message"].endswith("The API begins at /v1, the pages at /dashboard.")
    other = await ask("POST", "/v1/models")
    assert (other.status_code, other.headers["allow"], other.json()["error"]["code"]) == (
        405,
        "GET",
        "method_not_allowed",
    )
