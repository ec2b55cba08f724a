# Every target works on a fresh clone: it needs Python >= 3.11 and a C compiler, and installs the rest
# (Python packages into .venv; Debian packages when it runs as root).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# An editable install knows each module by its path: after a move there must be another one.
MODULES := $(shell find crds operator nodeagent cli examples -name '*.py' | sort | cksum | cut -d' ' -f1)
STAMP  := $(VENV)/.installed-$(MODULES)
NATIVE := $(shell find nodeagent/native/src nodeagent/native/include nodeagent/native/interposer/src -type f) nodeagent/native/CMakeLists.txt

CLUSTER := PYTHONPATH=cluster $(BIN)/python -m tierline_cluster

.PHONY: help venv newest kubernetes cluster cluster-down images demo demo-training docs verify test soak mends e2e matrix zoo fuzz bench operator-bench-archive operator-bench-carried bench-schedulability gpu-wheels gpu-test gpu-bench gpu-bench-two gpu-e2e-archive gpu-e2e gpu-e2e-pictures clean clean-cache
help: ## show what there is
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

venv: $(STAMP) ## make .venv with tierline and everything its tests need

# Versions and digests are those of requirements.lock, which a newer release of a package does not change; only
# `make newest` does. `pip install .` takes the ranges of pyproject.toml.
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python

$(STAMP): pyproject.toml requirements.lock $(NATIVE) Makefile
	test -x $(BIN)/uv || { $(PYTHON) -m venv $(VENV) && \
	    sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > $(VENV)/uv.lock && \
	    $(BIN)/python -m pip install --quiet --require-hashes -r $(VENV)/uv.lock; }
	$(INSTALL) --require-hashes -r requirements.lock
	$(INSTALL) --no-deps --no-build-isolation -e .
	rm -f $(VENV)/.installed*
	touch $@

newest: $(STAMP) ## resolve the newest releases into the lock files, and see that all tests pass with them
	$(BIN)/uv pip compile pyproject.toml --extra dev --group docs --universal --python-version 3.11 --upgrade \
	    --generate-hashes --no-annotate --quiet --output-file requirements.lock \
	    --custom-compile-command 'make newest'
	$(BIN)/python images/lock.py
	$(MAKE) verify test

# Five minutes on two cores the first time, cached by version afterwards; JOBS=1 leaves cores free.
kubernetes: $(STAMP) ## build etcd, Kubernetes and Helm from Go modules, once
	tests/packages.sh openssl
	$(CLUSTER) build kubernetes helm $(if $(JOBS),--jobs $(JOBS))

cluster: kubernetes ## start a real Kubernetes with one node on this machine (root)
	tests/packages.sh runc containernetworking-plugins
	$(CLUSTER) build containerd $(if $(JOBS),--jobs $(JOBS))
	$(CLUSTER) up

cluster-down: $(STAMP) ## remove every trace of it
	$(CLUSTER) down

# Minutes the first time, seconds afterwards; nothing is pulled from a registry.
images: ## build the images of operator and agent from their Dockerfiles, into build/images (root)
	tests/packages.sh buildah mmdebstrap git python3
	images/build.sh

demo: $(STAMP) ## run three models whose weights are 3.5 times their fast memory, with deadlines
	@mkdir -p build
	$(BIN)/tierline run examples/1-quickstart/tasks.yaml --fast-memory 256Mi --duration 60 --json-file build/demo.json

demo-training: $(STAMP) ## the same three models with more fast memory, and a loop that trains in what they leave
	@mkdir -p build
	$(BIN)/tierline run examples/1-quickstart/tasks.yaml examples/6-training/tasks.yaml --fast-memory 768Mi --duration 60 --json-file build/demo-training.json

# Not --quiet: it would keep the warnings from --strict, too.
docs: $(STAMP) ## build the documents into one site, build/site
	$(BIN)/python docs/site/pages.py build/pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file docs/site/mkdocs.yml
	@echo build/site/index.html

verify: $(STAMP) docs ## generated files, lint, types, import contracts, floors of the C, circles, documents
	tests/packages.sh clang-format clang-tidy
	$(BIN)/python -m tierline_api.crdgen --check crds
	$(BIN)/python -m tierline_api.crdgen --check charts/tierline/files/crds
	$(BIN)/python -m tierline_api.pods.generate --check charts/tierline/files
	$(BIN)/python -m tierline_agent.kubernetes.kubelet.generate --check nodeagent/tierline_agent/kubernetes/kubelet
	PYTHONPATH=charts $(BIN)/python -m tierline_observability --check .
	PYTHONPATH=cluster $(BIN)/python -m tests.integration.kubernetes.refusals --check
	$(BIN)/python nodeagent/native/generate_protocol.py --check
	$(BIN)/python nodeagent/native/interposer/generate_hooks.py --check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PYTHONPATH=cluster $(BIN)/python -m tests.typed
	$(BIN)/lint-imports
	PYTHONPATH=cluster:charts $(BIN)/python -m tests.documents
	$(BIN)/python docs/site/reference.py --check
	$(BIN)/python -m tests.floors
	$(BIN)/python -m tests.circles
	$(BIN)/python -m tests.folders
	nodeagent/native/lint.sh $(BIN)

# The unit tests first, then what needs the machine for itself: most faults show within minutes.
# Many of the others wait for most of their time: a third process uses the second core meanwhile.
test: kubernetes ## everything CI needs: unit, native with sanitizers, integration, faults, PMEM guest
	tests/packages.sh gcc libc6-dev clang-tidy musl-tools qemu-system-x86 linux-image-cloud-amd64 \
	    busybox cpio kmod python3 prometheus
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal tests/unit
	$(BIN)/python -m pytest tests/alone
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder --durations 40 --durations-min 10 \
	    --ignore tests/unit --ignore tests/alone

# Prints its seeds. MINUTES=10 is shorter, of the last step. First all cases of which `make test` has a share.
soak: $(STAMP) ## an hour of bad clients in random order, and a flooded port: right bytes, flat memory
	TIERLINE_ALL_CASES=1 $(BIN)/python -m pytest tests/programs \
	    tests/integration/agent/hostile/test_session_machine.py
	$(BIN)/python -m tests.fuzz.sessions --seconds 600
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),60)

# An hour on two cores, most of it of deaths and behaviours.
mends: $(STAMP) ## take each mend of a hostile client's faults out, and see that the suites find it
	$(BIN)/python -m tests.mends --table

e2e: kubernetes images ## pods on a real kubelet and containerd, the images and what Helm installs (root)
	tests/packages.sh runc containernetworking-plugins busybox binutils gcc libc6-dev musl-tools
	$(CLUSTER) build containerd $(if $(JOBS),--jobs $(JOBS))
	$(BIN)/python -m pytest -m e2e tests/images tests/e2e

# It fetches PyTorch for each cell, 3 GB. CELLS=ends: the oldest and the newest, and those that are refused.
matrix: $(STAMP) ## the plugin in each Python and PyTorch that it is promised for, and what it says in others
	$(BIN)/python -m tests.matrix $(CELLS)

# An hour on two cores. What a library has that is too large here, or takes inputs of its own, is passed over by both.
zoo: $(STAMP) ## architectures of transformers, timm and torchvision, built small: plain against managed
	$(INSTALL) -e '.[zoo]'
	$(BIN)/python -m tests.programs --kind zoo --count 1000 --batch 60 --modes managed --notices 100

fuzz: $(STAMP) ## ten minutes of fuzzing each codec, then both on everything that was found
	tests/packages.sh clang libclang-rt-14-dev
	tests/fuzz/run.sh 600

bench: $(STAMP) ## figures: streaming against the link, grants and round trips, admission against simulation
	$(BIN)/python -m tests.bench.streaming
	$(BIN)/python -m tests.bench.messages
	$(BIN)/python -m tests.bench.admission
	PYTHONPATH=cluster $(BIN)/python -m tests.bench.operator

# Between the two .cache/operator-bench travels. The other machine needs a Python 3.12 (PYTHON) with pip and NumPy,
# openssl and xz.
operator-bench-archive: kubernetes ## pack the operator's benchmark for a machine with more cores and no network
	tests/packages.sh xz-utils
	PYTHONPATH=cluster $(BIN)/python -m tests.bench.carried .cache/operator-bench

operator-bench-carried: ## on that machine: the operator's table of docs/benchmarks
	mkdir -p build
	PYTHON=$(PYTHON) tests/bench/operator_elsewhere.sh --json build/operator.json

# Hours on two cores; SECONDS ends each part after so long. What was run stands in the JSON of each table.
SECONDS ?= 1000000000
SCHEDULABILITY := $(BIN)/python -m tests.bench.schedulability --seconds $(SECONDS)
bench-schedulability: $(STAMP) ## a million attacks on admitted sets; share admitted, against others and the bound
	$(SCHEDULABILITY) attacks
	$(BIN)/python -m tests.bench.schedulability.zoo measure
	for shapes in families cpu h200; do $(SCHEDULABILITY) curves --shapes $$shapes || exit; done
	$(SCHEDULABILITY) growth
	$(SCHEDULABILITY) optimum

# The GPU targets use the machine's own Python with PyTorch for CUDA (PYTHON), and build what it lacks
# into build/gpu-site. For a machine without a network, `make gpu-wheels` elsewhere and take .cache/gpu-wheels along.
gpu-wheels: $(STAMP) ## fetch what the GPU targets install, for a machine without a network
	tests/gpu/wheels.sh

gpu-test: ## on a machine with a GPU: streamed models are right, faults stay where they are, programs of all kinds
	TIERLINE_TESTS_ON_GPU=1 tests/gpu/site.sh $(PYTHON) -m pytest -p no:cacheprovider -q \
	    tests/gpu/checks/agent.py tests/gpu/checks/captures.py tests/gpu/checks/streams.py tests/gpu/checks/faults.py tests/gpu/checks/compatibility.py

gpu-bench: ## on a machine with a GPU: the tables of docs/benchmarks
	mkdir -p build
	tests/gpu/site.sh sh -ec ' \
	    $(PYTHON) -m tests.gpu.bench.link --json build/gpu-link.json; \
	    $(PYTHON) -m tests.gpu.bench.streaming --json build/gpu-streaming.json; \
	    $(PYTHON) -m tests.gpu.bench.offloading --json build/gpu-offloading.json; \
	    $(PYTHON) -m tests.gpu.bench.overhead --json build/gpu-overhead.json; \
	    $(PYTHON) -m tests.gpu.bench.many --json build/gpu-many.json; \
	    $(PYTHON) -m tests.gpu.bench.shapes --plans --seconds 100 --json build/gpu-shapes.json; \
	    $(PYTHON) -m tests.gpu.bench.crowd --json build/gpu-crowd.json'

gpu-bench-two: ## on a machine with two GPUs: streaming on both at once
	mkdir -p build
	tests/gpu/site.sh $(PYTHON) -m tests.gpu.bench.two_gpus --json build/gpu-two.json

# The second needs root, a GPU with its driver, and a Python with PyTorch for CUDA and transformers (PYTHON); no
# network, no container runtime. Between the two .cache/gpu-e2e travels. What the run said is in GPU_E2E_OUT.
GPU_E2E_OUT ?= build/gpu-e2e/out
gpu-e2e-archive: kubernetes images ## pack the cluster and both images for a machine without a network
	tests/packages.sh runc containernetworking-plugins xz-utils
	$(CLUSTER) build containerd $(if $(JOBS),--jobs $(JOBS))
	PYTHONPATH=cluster $(BIN)/python -m tests.gpu_e2e.carried pack .cache/gpu-e2e

gpu-e2e: ## on that machine, with a GPU: Helm, MemTasks of PyTorch models in unprivileged pods, the agent handed over and killed (root)
	PYTHON=$(PYTHON) tests/gpu_e2e/run.sh $(GPU_E2E_OUT)

gpu-e2e-pictures: $(STAMP) ## draw the dashboards from what that run kept
	tests/packages.sh prometheus
	PYTHONPATH=cluster $(BIN)/python -m tests.gpu_e2e.pictures $(GPU_E2E_OUT) docs/benchmarks

clean: ## remove what was built here (not the virtual environment)
	rm -rf build .cache

# Of all clones on this machine: a run that is under way elsewhere loses its programs.
clean-cache: ## remove third-party programs and layers of images from the user's cache
	images/clean.sh
