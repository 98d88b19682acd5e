"""Two real servers with one state folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fedalc.deployment.flower_programs import python_module
from fedalc.deployment.local import HOST, LocalDeployment
from fedalc.deployment.processes import free_port

pytestmark = pytest.mark.deployment


def test_a_second_server_with_the_same_state_is_refused(tmp_path: Path) -> None:
    with LocalDeployment(tmp_path) as deployment:
        deployment.start_server()
        state, certificates = str(deployment.state.folder), str(deployment.certificates.folder)
        words = ["--certificates", certificates, "--state", state, "--host", HOST, "--port", str(free_port(HOST))]
        second = subprocess.run(
            [*python_module("fedalc"), "deploy", "server", *words], capture_output=True, text=True, timeout=120
        )
        assert second.returncode == 2 and "another server is running with this state folder" in second.stderr
        assert deployment.answers()
        assert deployment.state.connection()[0] == f"{HOST}:{deployment.port}"  # not the second one's
