"""The parse stage: bytes and headers become a validated request of a known caller. No I/O.

understood = wire.read(body, headers, is_model)
parsed = parsed_request(understood, body, headers, caller, aliases=aliases, deadlines=deadlines, started_at=now, tags=tags)
"""
