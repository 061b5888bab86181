"""OpenAI's responses: POST /v1/responses and the routes that continue from one."""
