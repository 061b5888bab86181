"""OpenAI's older completions: POST /v1/completions."""
