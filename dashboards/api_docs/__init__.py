"""API documentation: the OpenAPI document, as a page and as JSON."""
