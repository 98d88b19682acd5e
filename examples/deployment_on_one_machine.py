"""A server and two parties as real processes on this machine, with TLS and registered keys. About a minute, on a
machine with nothing else to do.

Needs `pip install 'fedalc[flower]'`. Between machines the same commands run in different places: docs/deployment.md.
`fedalc deploy demo` shows more: it also refuses a stranger, and compares the model with a training in one process.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import fedalc
from fedalc.deployment.local import LocalDeployment, run_to_its_end, split_by_labels
from fedalc.deployment.processes import signals_interrupt

data = fedalc.load_dataset("demo")
train = data.train.rows(range(500))

with tempfile.TemporaryDirectory() as folder, signals_interrupt(), LocalDeployment(Path(folder)) as deployment:
    deployment.start_server()
    for number, (split, names) in enumerate(split_by_labels(train, data.label_names, 2), 1):
        party = f"party-{number}"
        deployment.add_party(party, split, names)  # its own files, its own node key
        deployment.start_party(party, wait=False)
    for party in deployment.parties:
        deployment.wait_connected(party)

    runs = Path(folder) / "runs"
    command = deployment.start_run(
        "--method", "fedalc-oneshot", "--parties", "2", "--out", str(runs), "--name", "mine"
    )  # fmt: skip
    if run_to_its_end(command, print, 300) != 0:
        raise SystemExit("the run failed")
    run = fedalc.load_run(runs / "mine")
    print(run)
    print(f"{run.result['parties']} parties sent {run.result['bytes_up']:,} bytes")
