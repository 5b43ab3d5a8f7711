"""Processes that start fast: a fork server has imported PyTorch once for all of them."""

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "asfl.field.engine", "asfl.field.stream.client", "asfl.field.stream.server", "asfl.runs.run",
        "asfl.runs.simulation", "pytest",
        "torch._dynamo",  # which a server imports to measure a network, and takes seconds for
    ]
)  # fmt: skip
