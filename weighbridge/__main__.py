"""The command `weighbridge`."""

from importlib import import_module

from weighbridge._own import find_folders


def main() -> None:
    """Run a command line."""
    find_folders()
    import_module("gateway.cli").app()


if __name__ == "__main__":
    main()
