# python -m tests.tools.suite [change|night]: what `make test` and `make nightly` run.
import argparse
import sys

from tests.tools.suite.phases import CHANGE, NIGHT
from tests.tools.suite.run import run_all, summary

SUITES = {"change": CHANGE, "night": NIGHT}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.suite", description="Run a suite of tests in phases.")
    parser.add_argument("suite", nargs="?", default="change", choices=SUITES)
    outcomes = run_all(SUITES[parser.parse_args().suite])
    print(summary(outcomes), flush=True)
    return next((one.code for one in outcomes if one.code), 0)


if __name__ == "__main__":
    sys.exit(main())
