"""Events: told to the standard library's logging, silent until somebody listens."""

import logging

import pytest

from kvarena.terms.events import event_log


def test_an_event_is_one_line_with_its_sum(caplog: pytest.LogCaptureFixture) -> None:
    """The event's name first, then what belongs to it."""
    with caplog.at_level(logging.INFO, logger="kvarena"):
        event_log().info("request_retracted", request=7, generated=3)
    assert caplog.messages == ["event='request_retracted' request=7 generated=3"]


def test_below_its_level_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A library that nobody asked is quiet."""
    with caplog.at_level(logging.WARNING, logger="kvarena"):
        event_log().info("request_retracted", request=7)
    assert caplog.messages == []
