"""Files and batches, for programs in OpenAI's shapes and for people."""
