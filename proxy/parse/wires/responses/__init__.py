"""OpenAI's responses: POST /v1/responses and what continues from one."""
