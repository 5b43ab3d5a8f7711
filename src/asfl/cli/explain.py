"""`asfl explain`: what a field of the configuration means."""

from typing import Annotated

import typer

from asfl.cli.output import print_listed
from asfl.config.show import describe, field_names


def _complete(incomplete: str) -> list[str]:
    return [name for name in field_names() if name.startswith(incomplete)]


def explain(
    field: Annotated[
        str,
        typer.Argument(help="Such as training.batch_size, batch_size or a section: radio.", autocompletion=_complete),
    ],
) -> None:
    """What a field means, its unit, what is valid and what it is if nobody sets it; of a section, all its fields."""
    print_listed(describe(field))
