from cli.main import app

if __name__ == "__main__":  # a process of a pool (analytics/backtest/run.py) imports this module under another name
    app(prog_name="weir")
