# A short run with faults of the inbound backbone, and the parts of the tool that a run rests on.
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from broker.config.schema import POWER
from tests.kafka_servers import skip_without_java
from tests.tools.faults.applications.plan import KAFKA_LOG, certain
from tests.tools.faults.backbone.plan import FEW, plan
from tests.tools.faults.backbone.run import BackboneRun
from tests.tools.faults.durable.__main__ import report
from tests.tools.faults.durable.plan import EMBEDDED
from tests.tools.faults.durable.power import compiler


@pytest.fixture
def folder() -> Iterator[Path]:
    """One whose sockets have short paths."""
    path = Path(tempfile.mkdtemp(prefix="weir-"))
    yield path
    shutil.rmtree(path)


@pytest.mark.skipif(compiler() is None, reason="there is no C compiler")
@pytest.mark.slow
@pytest.mark.system
def test_the_backbone_loses_nothing_whatever_is_harmed(folder: Path) -> None:
    """What was acknowledged would be lost with a process or a connection; or QoS 0 or 2 come twice, or out of order."""
    skip_without_java()
    outcome = BackboneRun(folder, 3, 2, len(FEW), brisk=True).go()

    print(report(outcome))  # with the seed, which a failure needs
    assert [] == outcome.failures
    assert outcome.figures["records of the backbone"] > 0


def test_a_run_has_each_fault_of_its_way() -> None:
    """A run could end well in which nothing happened to what a publish passes."""
    for brisk, kinds in ((True, FEW), (False, certain(KAFKA_LOG))):
        for seed in range(20):
            planned = plan(Random(seed), EMBEDDED, POWER, 2, len(kinds), brisk)
            assert sorted(kinds) == sorted(each.kind for each in planned)
