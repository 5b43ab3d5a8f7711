"""`asfl check`: what is intact in run folders."""

from pathlib import Path
from typing import Annotated

import typer

from asfl.cli import options
from asfl.cli.output import print_json, say
from asfl.config.errors import AsflError
from asfl.runs.comparison import COMPARE_FILE, read_comparison
from asfl.runs.folder import CheckedFile, check_folder
from asfl.runs.manifest import MANIFEST_FILE, MODEL_FILE
from asfl.runs.records import RECORDS_FILE


def check(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Run folders, or folders with runs below.", show_default=False)
    ],
    as_json: options.Json = False,
) -> None:
    """Say of every file of a run whether it is as it was written. Exit code 0: all are intact; 2: not all."""
    found: dict[str, list[CheckedFile]] = {}
    for folder in folders:
        found |= _below(folder)
    damaged = [finding for of_folder in found.values() for finding in of_folder if not finding.intact]
    if as_json:
        print_json({name: [vars(finding) for finding in of_folder] for name, of_folder in found.items()})
    else:
        for name, of_folder in found.items():
            print(name)
            for finding in of_folder:
                say(f"  {finding.file}: {'' if finding.intact else 'DAMAGED: '}{finding.words}", indent=4)
        folders_found = f"{len(found)} folder{'' if len(found) == 1 else 's'}"
        print(f"{folders_found}, {len(damaged)} files damaged" if damaged else f"{folders_found}, all intact")
    if damaged:
        raise typer.Exit(2)


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
