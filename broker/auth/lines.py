class BadLine(Exception):
    """A line of a password or ACL file has no meaning. The text says what is wrong and what would be right."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number  # from 1
