"""Private set intersection over real processes with TLS: the counts of the join."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedalc.data.synthetic.demo import DemoSize, make_demo
from fedalc.deployment.flower.census import Census
from fedalc.deployment.local import LocalDeployment, run_to_its_end, split_by_labels
from fedalc.labels.correlations import Correlations

pytestmark = pytest.mark.deployment


def test_pairs_are_counted_between_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("private_set_intersection", reason="needs openmined-psi: pip install 'fedalc[psi]'")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    data = make_demo(DemoSize(train=120, test=20, words=200))
    with LocalDeployment(tmp_path) as local:
        local.start_server()
        for name, (held, labels) in zip("ab", split_by_labels(data.train, data.label_names, 2), strict=True):
            local.add_party(name, held, labels)
            local.start_party(name, wait=False)
        for name in "ab":
            local.wait_connected(name)
        options = ("--method", "fedalc", "--rounds", "1", "--parties", "2", "--held-out-share", "0")
        process = local.start_run(*options, "--collection", "psi", "--out", str(tmp_path), "--name", "run")
        assert run_to_its_end(process, print, 3600.0) == 0
    census = Census.load(tmp_path / "run")
    assert census is not None and census.knowledge is not None and isinstance(census.knowledge.labels, Correlations)
    found, wanted = census.knowledge.labels, Correlations.from_label_sets(data.train.labels)
    assert sorted(found.counts.tolist()) == sorted(n for n in wanted.counts.tolist() if n)  # labels are pseudonyms
    assert sorted(found.together.data.tolist()) == sorted(wanted.together.data.tolist())
