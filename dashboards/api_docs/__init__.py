"""The API described: an OpenAPI document as a page and for programs."""
