"""The relay stage: an answer that has begun becomes the caller's reply, and from its first byte on there is no
fallback.
"""
