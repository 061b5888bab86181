"""OpenAI's chat completions and embeddings: the shapes that the pipeline itself works with."""
