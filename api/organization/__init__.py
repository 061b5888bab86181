"""/v1/organization: usage and costs in OpenAI's shapes."""
