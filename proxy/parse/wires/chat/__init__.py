"""OpenAI's chat completions and embeddings: the shapes that the line itself works with."""
