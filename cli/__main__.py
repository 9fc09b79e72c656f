from cli.hidden_arguments import hide_secrets


def main() -> None:
    """The command `weir`."""
    hide_secrets()  # before the other imports, which take time
    from cli.main import app

    app(prog_name="weir")


if __name__ == "__main__":  # a process of a pool (analytics/backtest/run.py) imports this module under another name
    main()
