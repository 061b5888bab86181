"""/v1/responses and /v1/conversations: what is stored of them, in OpenAI's shapes."""
