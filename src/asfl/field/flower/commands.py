"""Several `flwr` commands in one process, one after the other: starting Flower takes longer than most of them.

Standard input has a command per line, a JSON list of words. For each one that worked, standard output gets a line "ok";
the first that didn't ends the process with its message. What commands print goes to standard error.
"""

import contextlib
import json
import sys


def main() -> None:
    import click
    from flwr.cli.app import app

    for line in sys.stdin:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                code = app(args=json.loads(line), standalone_mode=False)
        except click.ClickException as error:
            code, reason = 1, error.format_message()
        except Exception as error:
            code, reason = 1, f"{type(error).__name__}: {error}"
        else:
            reason = f"exit code {code}"
        if code:
            print(" ".join(reason.split()), flush=True)
            sys.exit(1)
        print("ok", flush=True)


if __name__ == "__main__":
    main()
