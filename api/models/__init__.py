"""/v1/models, in OpenAI's and Anthropic's shape."""
