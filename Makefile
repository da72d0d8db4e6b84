# Two commands on a fresh machine do all set-up: `make run` and `make test`.
VENV ?= .venv
BIN := $(VENV)/bin
INPUT ?=
METADATA ?= embedded
PYTEST_ARGS ?=
# More than cores: tests wait for processes most of the time.
TEST_WORKERS ?= 4
# Tests start a thousand processes: without compiled files each would compile three hundred modules first.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test test-long docs release-check lock test-dependencies test-stress test-crash test-recovery test-streams test-spark test-deploy chaos simulate explore mutations fuzz lint format protos blocking reference bench env env-dev java prometheus chromium clean

help: ## show the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

run: env java ## the main job: cluster, ingest, Spark, comparison (INPUT=DIR, METADATA=embedded|zookeeper)
	@$(BIN)/bookgate run --metadata "$(METADATA)" $(if $(INPUT),--input "$(INPUT)")

test: env-dev java prometheus chromium lint docs ## lint, the documentation site, and all tests that are not marked as long (TEST_WORKERS=4)
	@$(BIN)/python -m pytest -m "not long" -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS) || { \
		status=$$?; [ $$status -eq 1 ] && grep -qs :: .pytest_cache/v/cache/lastfailed || exit $$status; \
		echo "What failed beside other tests runs once more, alone; what fails again fails the suite."; \
		$(BIN)/python -m pytest -m "not long" --last-failed --last-failed-no-failures none $(PYTEST_ARGS); }

test-long: env-dev java prometheus chromium ## the tests marked as long, which `make test` leaves out (half an hour)
	$(BIN)/python -m pytest -m long -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-stress: env-dev java ## the stress tests at full size (some minutes; `make test` runs them small)
	BOOKGATE_STRESS=1 $(BIN)/python -m pytest tests/integration/gateway -k stress $(PYTEST_ARGS)

test-crash: env-dev java ## a bookie killed 500 times under load, and 40 arbitrary losses at each operation of storage (some minutes)
	BOOKGATE_CRASH_RUNS=$${BOOKGATE_CRASH_RUNS:-500} BOOKGATE_CRASH_SEEDS=40 $(BIN)/python -m pytest \
		tests/integration/bookie/test_sigkill.py tests/unit/bookie/storage/test_storage_crashes.py $(PYTEST_ARGS)

test-recovery: env-dev java ## clusters that heal themselves at full length: bookies lost in turn, repairs beside writers, 10,000 ledgers (about an hour)
	BOOKGATE_RECOVERY=1 $(BIN)/python -m pytest tests/integration/bookie/replication tests/simulation/test_recovery_cases.py -k "healing or recovery_cases" $(PYTEST_ARGS)

test-streams: env-dev java ## three clients that fight for one stream under kill -9 of clients and bookies for ten minutes
	BOOKGATE_STREAM_SECONDS=$${BOOKGATE_STREAM_SECONDS:-600} $(BIN)/python -m pytest tests/integration/thinclient/test_stream_fights.py -s $(PYTEST_ARGS)

chaos: env-dev java ## real processes under kills, stops, cuts and full disks, every history checked (MINUTES=5 CHAOS_SEED=any)
	$(BIN)/python -m tests.chaos --minutes $${MINUTES:-5} --seed $${CHAOS_SEED:-0}

mutations: env-dev ## plants some 400 bugs in copies of the sources; the simulation or the tests named must notice each (writes MUTATIONS.md)
	$(BIN)/python -m tests.simulation.mutations

simulate: env-dev ## the whole protocol in simulated worlds, from seeds, on all cores (SEEDS=200), or one replayed (SEED=x); WORLD=large|small|repair|peers|metadata|access|unbounded|streams
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),200)) $(if $(WORLD),--world $(WORLD)) $(SIMULATE_ARGS)

explore: env-dev ## the protocol's cores through every interleaving of small worlds, on all cores (ONLY=words of a world's name)
	$(BIN)/python -m tests.explore $(if $(ONLY),--only "$(ONLY)")

test-deploy: env-dev java prometheus ## all of deploy/ and the steps of the operations page, on real processes (some minutes)
	BOOKGATE_DEPLOY=1 $(BIN)/python -m pytest tests/deploy tests/integration/test_operations_page.py $(PYTEST_ARGS)

test-spark: env-dev java ## the Spark tests at full size: ten million entries, ten thousand ledgers (many minutes)
	BOOKGATE_SPARK_FULL=1 $(BIN)/python -m pytest tests/spark -o timeout=3600 $(PYTEST_ARGS)

test-dependencies: env-dev ## the client, the gateway and the formats with the lowest and the newest dependencies, on every Python here (many minutes)
	$(BIN)/python -m tests.dependencies $(if $(ONLY),--only $(ONLY))

fuzz: env-dev ## a million bad inputs to everything that reads bytes (some minutes; `make test` has 30,000)
	BOOKGATE_FUZZ_INPUTS=$${BOOKGATE_FUZZ_INPUTS:-1000000} BOOKGATE_FUZZ_SEED=$${BOOKGATE_FUZZ_SEED:-$$(date +%s)} \
		$(BIN)/python -m pytest tests/fuzz $(PYTEST_ARGS)

lint: env-dev ## ruff, mypy --strict, import-linter, buf, and the check of what is generated
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd protos && ../$(BIN)/buf lint
	$(BIN)/python -m bookgate.protos.generate --check
	$(BIN)/python -m bookgate.thinclient.blocking.generate --check

format: env-dev ## let ruff format and sort
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: env-dev ## the documentation site, in build/site; a link that leads nowhere fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reference: env-dev ## docs/reference and the dashboards, from the code
	$(BIN)/python docs/generate_reference.py
	$(BIN)/python docs/generate_metrics.py
	$(BIN)/python deploy/grafana/generate.py
	$(BIN)/python -m bookgate.bookie.commands.config show --markdown > docs/reference/configuration.md

release-check: env-dev ## builds what is published and tries it where nothing of this tree is: metadata, contents, quick start, SBOM (minutes)
	$(BIN)/python deploy/release/check.py

lock: env-dev ## requirements-dev.lock: the newest versions of what is developed with, for every Python from 3.11 on
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-emit-index-url --upgrade --extra dev \
		--custom-compile-command "make lock" pyproject.toml --output-file requirements-dev.lock

protos: env-dev ## regenerate the stubs from the .proto files
	$(BIN)/python -m bookgate.protos.generate

blocking: env-dev ## regenerate the blocking client from the asynchronous one
	$(BIN)/python -m bookgate.thinclient.blocking.generate

bench: bench-bookie bench-client bench-gateway bench-spark ## all benchmarks (QUICK=1 keeps a run under a minute)

bench-bookie-memory: env-dev ## memory of a bookie with a million ledgers (some minutes, 5 GB in TMPDIR)
	$(BIN)/python -m benchmarks.bookie_memory

bench-%: env-dev ## one benchmark, beside its peer
	$(BIN)/python -m benchmarks.$*

env:
	@deploy/setup/ensure-python-env.sh $(VENV) bookie,spark-local,zookeeper

env-dev:
	@deploy/setup/ensure-python-env.sh $(VENV) dev

java:
	@deploy/setup/ensure-java.sh

prometheus: env-dev
	@deploy/setup/ensure-prometheus.sh $(BIN)

chromium:
	@deploy/setup/ensure-chromium.sh

screenshots: env-dev chromium ## the pictures of the console in docs/images, of a cluster of their own (two minutes)
	$(BIN)/python -m docs.take_screenshots

clean: ## remove the environment and everything generated at run time
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
