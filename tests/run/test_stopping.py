from __future__ import annotations

import os
import signal

import pytest

from openclaw_core.run.stopping import StopRequest


def test_the_first_signal_waits_and_the_second_does_not():
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert (stop.requested, stop.reason) == (True, "SIGTERM")
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_where_nothing_is_worth_saving_the_first_one_counts():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest(at_once=True) as stop:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reason == "SIGTERM"
    with StopRequest(at_once=True) as stop:
        stop.patient()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
    assert signal.getsignal(signal.SIGTERM) == before
