"""The base of every section of the configuration, and the numbers that many of them have. It imports pydantic alone.

class RetryConfig(Section):  # settings.types
    budget_share: Share = Field(default=0.2, description="Retries beside recent requests, as a share.")
"""
