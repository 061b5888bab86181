"""/v1/batches, /v1/messages/batches, /v1/batch and /v1/batch-callbacks: batches in OpenAI's, Anthropic's and our own shape."""
