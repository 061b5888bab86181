"""What vLLM tells of its KV cache, block by block, and what it means for our own blocks of text."""
