"""`slackwater settings`: choices are shown by name."""

from __future__ import annotations

import pytest

from slackwater.cli.settings import main
from slackwater.errors import InvalidSetting
from slackwater.settings import SETTINGS, describe


def test_the_table_names_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["closed_timestamp.scheme"]) == 0
    assert "closed_timestamp.scheme = log-driven   [log-driven | store-wide | max-write-age]" in capsys.readouterr().out
    assert main(["closed_timestamp.target"]) == 0
    assert "closed_timestamp.target_duration = 3 s   [0 … 600]" in capsys.readouterr().out


def test_every_choice_is_written_as_it_is_shown() -> None:
    for setting in SETTINGS:
        for number, name in enumerate(setting.names):
            assert setting.parse(setting.show(number)) == number
            assert setting.parse(name.upper().replace("-", "_")) == number
        assert setting.parse(str(setting.default)) == setting.default


def test_what_is_wrong_is_said_before_a_node_is_asked() -> None:
    with pytest.raises(InvalidSetting, match="must be a number"):
        main(["set", "lease.duration", "long"])
    with pytest.raises(InvalidSetting, match="one of always, configured, on-demand, configured-or-on-demand"):
        main(["set", "closed_timestamp.activation", "sometimes"])
    assert describe("closed_timestamp.scheme").show(9) == "9 scheme", "of a newer release"
