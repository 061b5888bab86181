"""The organisation's calendar: its time zone and first day of the week."""
