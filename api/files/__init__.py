"""/v1/files: files of batch requests, in OpenAI's shape."""
