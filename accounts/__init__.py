"""Organisations, teams, people and API keys: authentication, roles and the audit log.

An API key is minted under a pepper, and only its digest is stored:

    pepper = Pepper(id="2026", secret=secrets.token_bytes(32))  # accounts.keys
    key = mint_key(pepper)
    assert digest_key(key.plaintext, pepper).hex() == key.digest
    assert parse_key(key.plaintext).key_id == key.key_id
"""
