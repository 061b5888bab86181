"""vLLM's KV cache events, and their mapping to the balancer's blocks of text."""
