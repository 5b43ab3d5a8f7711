# Every target creates the environment it needs; nothing has to be installed by hand.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
OUT    ?= out
DATA   ?= data
TRACES ?=
TUNED  ?= $(wildcard docs/results/tuned/*.toml)
RESULTS := accuracy-delay-energy more-rounds second-world label-mix table3 errors-discrepancy resplit-overhead heterogeneity clients \
           fixed-cuts power-rb queue-memory ablation mixing rivals pareto worlds local-steps readings
RECORDS := docs/results/records.jsonl.xz
MUNICH := --trace examples/munich.npz --set scenario.channel.trace_samples_per_round=clock

.PHONY: help env demo fleet devices degrading test browser city munich bler lint bench study torture reproduce results \
        figures recharge advice printed docs wheel profiles clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

env: $(STAMP)  ## create .venv with everything needed to run, test and document

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "asfl needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "creating the environment in $(VENV) (a few minutes, once)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)  ## the main job on the embedded data: every scheme trained and compared
	@$(BIN)/asfl compare demo --out $(OUT)/demo

fleet: $(STAMP)  ## a server and four clients in processes on this machine, one run
	@$(BIN)/asfl fleet demo --clients 4 --out $(OUT)/fleet

devices: $(STAMP)  ## a server and three devices with images of their own, in namespaces: one is lost and comes back
	@$(BIN)/python tools/three_devices.py $(OUT)/devices

degrading: $(STAMP)  ## the same with costs by the clock, and one client's link that gets 20 times slower: the cut moves
	@$(BIN)/asfl fleet demo --clients 4 --set field.costs=measured --set field.shaping=examples/degrading.toml \
		--set output.evaluate_every=5 --out $(OUT)/degrading
	@$(BIN)/asfl report $(OUT)/degrading --out $(OUT)/degrading-report.html

test: $(STAMP)  ## the fast tests (what CI runs)
	@$(BIN)/python -m compileall -q src  # once, not in every process
	@$(BIN)/python -c 'from asfl.optimize import compile_search; compile_search()'
	@$(BIN)/python -m pytest -n 3

browser: $(STAMP)  ## the report in Chromium, which apt-get installs if it isn't there (asks for root)
	@command -v chromium chromedriver > /dev/null || { \
		SUDO=$$(test "$$(id -u)" = 0 || echo sudo); \
		$$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq chromium chromium-driver; }
	@ASFL_NEEDS_BROWSER=1 $(BIN)/python -m pytest tests/results/report/test_browser.py

city: $(STAMP)  ## rays through Sionna's scenes; installs Sionna RT, and LLVM by apt-get if there is none (asks for root)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[city]'
	@$(BIN)/python -c 'from asfl.radio.city import choose_llvm; choose_llvm()' 2> /dev/null || { \
		SUDO=$$(test "$$(id -u)" = 0 || echo sudo); \
		$$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq libllvm19; }
	@$(BIN)/python -m pytest -m city tests/radio/test_city.py

munich: $(STAMP)  ## the main schemes trained on a walk through ray-traced Munich, and on TRACES (CIFAR-10 below $(DATA))
	@$(BIN)/asfl reproduce measured-channel --scale evidence --seeds 3 --data-dir $(DATA) --archive $(RECORDS) \
		--out $(OUT)/reproduce-evidence $(MUNICH) $(TRACES:%=--trace %) $(TUNED:%=--tuned %)

lint: $(STAMP)  ## ruff, mypy, and who may import whom
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

bench: $(STAMP)  ## timings, as ratios within one run
	@$(BIN)/python -m benchmarks

study: $(STAMP)  ## the long studies behind the documentation, into $(OUT)
	@$(BIN)/python -m studies $(OUT)

torture: $(STAMP)  ## attacks in bulk on run folders, inputs and the field (about 20 minutes)
	@$(BIN)/python -m studies.torture

reproduce: $(STAMP)  ## every experiment of the paper on the embedded digits (minutes; TRACES="FILE …" adds measured channels)
	@$(BIN)/asfl reproduce all --scale demo --out $(OUT)/reproduce-demo $(TRACES:%=--trace %)

results: $(STAMP) munich  ## what the evidence lacks, on real CIFAR below $(DATA) (TRACES as above, TUNED="FILE …")
	@$(BIN)/asfl reproduce $(RESULTS) --scale evidence --data-dir $(DATA) \
		--out $(OUT)/reproduce-evidence --archive $(RECORDS) $(TUNED:%=--tuned %)

figures: $(STAMP)  ## every page and picture of docs/results, from the records there; nothing is trained
	@$(BIN)/asfl reproduce --from $(RECORDS) --out $(OUT)/figures
	@$(BIN)/python tools/publish_results.py $(OUT)/figures docs/results README.md

recharge: $(STAMP)  ## charge all recorded rounds by today's equations, beside how they were recorded (half an hour; TRACES as above)
	@$(BIN)/asfl reproduce --from $(RECORDS) --recharge $(TRACES:%=--trace %) --archive $(RECORDS) --out $(OUT)/recharged

advice: $(STAMP)  ## the page "Which scheme should I use?" (a few minutes of played rounds)
	@$(BIN)/asfl advise docs/results/tuned/vgg19-cifar10.toml --seeds 3 $(if $(wildcard $(RECORDS)),--from $(RECORDS)) \
		--page docs/results/which-scheme.md

printed: $(STAMP)  ## write what documents show into them again: output of commands and Python, pictures, the notebook
	@$(BIN)/python tools/printed.py

docs: $(STAMP)  ## check that what documents show is so (minutes), and build the documentation into site/
	@$(BIN)/python tools/printed.py --check
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "open site/index.html"

wheel: $(STAMP)  ## build the wheel into dist/, install it into an empty environment, and train the demo there
	@rm -rf dist $(OUT)/wheel && $(BIN)/python -m build --no-isolation --outdir dist . > /dev/null
	@$(BIN)/python -m venv $(OUT)/wheel
	@$(OUT)/wheel/bin/pip install -qq --disable-pip-version-check -c constraints.txt "$$(ls dist/*.whl)[train,report]"
	@cd $(OUT)/wheel && bin/asfl doctor && bin/asfl compare demo --schemes asfl,sfl --rounds 5

profiles: $(STAMP)  ## measure the layer profiles that ship with the package again
	@$(BIN)/python tools/write_profiles.py

bler: $(STAMP)  ## write the block error rates of 5G NR that ship with the package again, from Sionna's tables
	@$(BIN)/python tools/write_bler.py

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) site dist $(OUT) .pytest_cache .mypy_cache .ruff_cache .hypothesis
