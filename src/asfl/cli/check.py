"""`asfl check`: whether run folders are intact, and whether a configuration is valid."""

from pathlib import Path
from typing import Annotated

import typer

from asfl.cli import options
from asfl.cli.output import print_json, say
from asfl.config.errors import AsflError
from asfl.config.files import check_file
from asfl.costs.world import World
from asfl.runs.comparison import COMPARE_FILE, read_comparison
from asfl.runs.folder import CheckedFile, check_folder
from asfl.runs.manifest import MANIFEST_FILE, MODEL_FILE
from asfl.runs.records import RECORDS_FILE


def check(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR|FILE…", help="Run folders, or folders with runs below; TOML files.", show_default=False
        ),
    ],
    overrides: options.Set = None,
    as_json: options.Json = False,
) -> None:
    """Verify run folders file by file, and check configurations. Exit code 0: all are intact and valid; 2: not all."""
    files = [path for path in paths if not path.is_dir() and (path.suffix == ".toml" or path.exists())]
    for file in files:
        words = _configuration(file, overrides)
        if not as_json:
            print(words)
    found: dict[str, list[CheckedFile]] = {}
    for folder in (path for path in paths if path not in files):
        found |= _below(folder)
    if files and not found and not as_json:
        return
    damaged = [finding for of_path in found.values() for finding in of_path if not finding.intact]
    if as_json:
        print_json({name: [vars(finding) for finding in of_path] for name, of_path in found.items()})
    else:
        for name, of_path in found.items():
            print(name)
            for finding in of_path:
                say(f"  {finding.file}: {'' if finding.intact else 'DAMAGED: '}{finding.words}", indent=4)
        folders = f"{len(found)} folder{'' if len(found) == 1 else 's'}"
        print(f"{folders}, {len(damaged)} files damaged" if damaged else f"{folders}, all intact")
    if damaged:
        raise typer.Exit(2)


def _configuration(file: Path, overrides: list[str] | None) -> str:
    """In words, what world it describes, which is built."""
    check_file(file)
    config = options.configuration(file, overrides).config
    world = World.of(config)
    return (
        f"{file} is valid: {world.profile.name}, {config.scenario.clients} clients, "
        f"{config.radio.num_rbs} resource blocks, {config.training.rounds} rounds"
    )


def _below(folder: Path) -> dict[str, list[CheckedFile]]:
    """Findings by folder: of every run, also of one that lost its manifest, and of every comparison."""
    if not folder.is_dir():
        raise AsflError(f"{folder}: there is no such folder")
    runs = {file.parent for name in (MANIFEST_FILE, RECORDS_FILE, MODEL_FILE) for file in folder.rglob(name)}
    comparisons = {file.parent for file in folder.rglob(COMPARE_FILE)}
    if not runs and not comparisons:
        raise AsflError(f"{folder}: no run in or below this folder (a run has a {MANIFEST_FILE})")
    found = {str(one): [_comparison(one)] for one in sorted(comparisons)}
    return found | {str(run): check_folder(run) for run in sorted(runs)}


def _comparison(folder: Path) -> CheckedFile:
    try:
        there = read_comparison(folder)
    except AsflError as error:
        return CheckedFile(COMPARE_FILE, False, str(error))
    return CheckedFile(COMPARE_FILE, True, f"intact: {there.num_runs} runs planned")
