"""The pages of those who run the gateway: what is open, slow, full or burning, and what stands behind it."""
