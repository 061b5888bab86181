"""The demo: the whole gateway in front of two small real engines, and the bill at the end."""
