# The table of broker/protocol/states.py as broker/README.md shows it: `python -m tests.protocol.state_table` writes it.
from pathlib import Path

from broker.protocol.states import as_markdown

README = Path(__file__).parents[2] / "broker" / "README.md"
BEGIN, END = "<!-- states -->", "<!-- /states -->"


def block(text: str) -> str:
    """What *text* has between the two marks."""
    return text.partition(BEGIN)[2].partition(END)[0]


def with_block(text: str, table: str) -> str:
    """*text* with *table* between the two marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    README.write_text(with_block(README.read_text(), as_markdown()))
