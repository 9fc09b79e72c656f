# What a benchmark is asked that it does not measure.
import sys

import pytest

from tests.tools.bench.__main__ import main


@pytest.mark.parametrize("bench", ["speed", "fanout", "protection"])
def test_a_transport_that_would_not_be_measured_is_refused(
    bench: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The figures of TCP would be taken for those of TLS."""
    monkeypatch.setattr(sys, "argv", ["bench", bench, "--transport", "tls"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert f"`{bench}` measures TCP alone" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--interpreted", "--other", "python3"], ["--other-sources", "."]])
def test_another_build_that_is_half_named_is_refused(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """This build would be measured beside itself, or an interpreted one beside a compiled one."""
    monkeypatch.setattr(sys, "argv", ["bench", "versus", *options])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "`versus` needs --other" in capsys.readouterr().err
