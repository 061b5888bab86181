"""How an OpenAPI document becomes a page."""

from typing import Any

from dashboards.api_docs.reference import Answer, Field, reference

PUT: dict[str, Any] = {
    "tags": ["teams"],
    "summary": "Change a team",
    "description": "What is left out stays.",
    "x-right": "team.change",
    "parameters": [{"name": "team_id", "in": "path", "required": True, "schema": {"type": "string"}}],
    "requestBody": {
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/PutTeam"}, "example": {"name": "It's ours"}}
        }
    },
    "responses": {
        "200": {
            "description": "OK",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Team"}}},
        },
        "4XX": {"description": "Refused."},
    },
}
SCHEMAS: dict[str, Any] = {
    "PutTeam": {
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "maxLength": 200, "description": "For people"},
            "weight": {"type": "number", "exclusiveMinimum": 0, "maximum": 1_000, "default": 1.5},
            "ends": {"anyOf": [{"type": "string", "format": "date-time", "description": "When."}, {"type": "null"}]},
            "role": {"enum": ["admin", "member"]},
            "models": {"type": "array", "items": {"type": "string"}},
        },
    },
    "Team": {"description": "A team.", "properties": {"policy": {"$ref": "#/components/schemas/Policy_Of_"}}},
    "Policy_Of_": {"description": "A policy.", "properties": {"floor": {"type": "number"}}},
    "Unused": {"properties": {}},
}
DOCUMENT = {
    "info": {"description": "All of it."},
    "paths": {"/v1/teams/{team_id}": {"put": PUT}, "/v1/other": {"get": {"responses": {}}}},
    "components": {"schemas": SCHEMAS},
}


def test_a_call_says_what_it_takes_and_gives() -> None:
    """Each field with its kind and bounds in words, and an example that a shell can run."""
    (group, other) = reference(DOCUMENT, "http://here").groups
    (call,) = group.calls
    assert (group.name, group.anchor, other.name) == ("teams", "teams", "other")
    assert (call.method, call.path, call.right, call.anchor) == (
        "PUT",
        "/v1/teams/{team_id}",
        "team.change",
        "put-v1-teams-team-id",
    )
    assert call.parameters == (Field("team_id", "text", True, ""),)
    assert call.body == (
        Field("name", "text", True, "For people. At most 200 characters."),
        Field("weight", "number", False, "Above 0, to 1,000, 1.5 when left out."),
        Field("ends", "moment or null", False, "When."),
        Field("role", '"admin" or "member"', False, ""),
        Field("models", "list of text", False, ""),
    )
    assert call.answers == (Answer("200", "OK", "Team", "kind-team"), Answer("4XX", "Refused.", "", ""))
    assert call.example == (
        'curl -X PUT "http://here/v1/teams/{team_id}" \\\n'
        '  -H "Authorization: Bearer $WEIGHBRIDGE_ADMIN_KEY" \\\n'
        '  -H "Content-Type: application/json" \\\n'
        "  -d '{\"name\": \"It'\\''s ours\"}'"
    )


def test_kinds_are_those_that_answers_are_made_of() -> None:
    """Also through others, each once; what nobody is given is left out."""
    found = reference(DOCUMENT, "").groups[0].kinds
    assert [(kind.name, kind.anchor) for kind in found] == [("Policy of Of", "kind-policy-of"), ("Team", "kind-team")]
    assert found[1].fields[0].refers == found[0].anchor
