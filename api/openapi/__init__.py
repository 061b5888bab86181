"""/v1/openapi.json: the OpenAPI document, built from the routes."""
