"""`python -m primus_search` is `primus-search`."""

try:
    from primus_search.base.guards.interrupts import install
except KeyboardInterrupt:  # Ctrl-C during this import, before signals are noted
    raise SystemExit(130) from None


def main() -> None:
    """The command; signals are noted before its imports, which take a third of a second."""
    install()
    from primus_search.cli import main as command

    command()


if __name__ == "__main__":
    main()
