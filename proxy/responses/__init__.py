"""Responses that outlive their request: stored for `previous_response_id`, and made in the background."""
