"""Which teams begin their prompts so that no cache can keep them, and what that costs. No text is ever kept."""
