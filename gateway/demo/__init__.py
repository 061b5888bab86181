"""The demo: the whole gateway before two small real engines, with the bill at the end."""
