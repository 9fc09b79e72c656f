# One Spark for the whole run: it takes seconds to start. Tests that use it have the machine to themselves.
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.system)


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    from analytics.connector import ConnectorUnusable, jars
    from analytics.spark import session
    from cli.analytics import java

    wrong = java()
    if wrong:
        pytest.skip(wrong)
    try:
        made = session(jars=jars())
    except ConnectorUnusable:  # tests that need it are skipped
        made = session()
    yield made
    made.stop()
