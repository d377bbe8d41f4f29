"""A few seconds of scripts/faults: damaged files, and what no client should send."""

from __future__ import annotations

import pytest

import damaged_files
import wire_faults


@pytest.mark.process
def test_every_damaged_file_is_read_or_refused(tmp_path):
    assert damaged_files.run(5.0, 1, tmp_path) == []


@pytest.mark.process
def test_a_server_answers_as_before_behind_each_fault_on_the_wire(server):
    assert wire_faults.run(server, 2.0, 1) == []
