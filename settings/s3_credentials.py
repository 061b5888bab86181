"""A key of an S3-compatible store that the configuration names."""

from typing import Any


def s3_credentials(access_key_id: str, secret_access_key: str, session_token: str = "") -> dict[str, Any]:
    """Return obstore's settings for it. Given as `access_key_id` and so on it would be joined by AWS_SESSION_TOKEN of the environment,
    which belongs to another key.
    """
    key = {
        "access_key_id": access_key_id,
        "secret_access_key": secret_access_key,
        "token": session_token or None,
        "expires_at": None,
    }
    return {"credential_provider": lambda: key}
