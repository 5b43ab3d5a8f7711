"""Processes that start fast: a fork server has imported PyTorch once for all of them, and commands import less."""

import multiprocessing

QUICK_TO_START = ("model.width=1", "output.track=none")
"""For a command in a process of its own. The profile of this network ships; any other is measured, and what PyTorch
imports for it takes longer than rounds do."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "asfl.field.fleet", "asfl.field.stream", "asfl.field.stream", "asfl.runs.run",
        "asfl.runs.simulation", "pytest",
        "torch._dynamo",  # which a server imports to measure a network, and takes seconds for
    ]
)  # fmt: skip
