from __future__ import annotations

import os
import signal
from queue import Queue

import pytest

from openclaw_core.run.stopping import AT_ONCE, PATIENT, StopRequest


def test_the_first_signal_waits_and_the_second_does_not():
    said = []
    with StopRequest(said.append) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert (stop.requested, stop.reason) == (True, "SIGTERM")
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert said == [PATIENT, AT_ONCE]


def test_a_signal_is_told_while_the_main_thread_is_busy():
    said = Queue()
    with StopRequest(said.put) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert said.get(timeout=5.0) == PATIENT
        assert stop.requested


def test_where_nothing_is_worth_saving_the_first_one_counts():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest(lambda _: None, at_once=True) as stop:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reason == "SIGTERM"
    with StopRequest(lambda _: None, at_once=True) as stop:
        stop.patient()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
    assert signal.getsignal(signal.SIGTERM) == before
