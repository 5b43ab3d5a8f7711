"""The files that run asfl as a service: they name what exists, and every command in them is one that asfl takes."""

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from typer.main import get_command

from asfl.cli import app

ROOT = Path(__file__).parents[1]
DOCKERFILE, COMPOSE = ROOT / "deploy" / "Dockerfile", ROOT / "compose.yaml"
UNITS = sorted((ROOT / "deploy").glob("*.service"))


def takes(command: list[str]) -> None:
    """The options of a command are known; nothing is run."""
    name, *rest = command
    found = CliRunner().invoke(get_command(app), [name, "--help"])
    assert found.exit_code == 0, found.output
    plain = re.sub(r"\s+", " ", found.output)
    for option in (word.partition("=")[0] for word in rest if word.startswith("--")):
        assert option in plain, f"{name} has no {option}"


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def test_the_dockerfile_copies_what_exists_and_is_let_through() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for word, rest in instructions():
        if word == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert source.split("/")[0] in allowed
    assert not any(word == "ADD" for word, _ in instructions())


def test_images_do_not_run_as_root_and_ask_for_extras_that_exist() -> None:
    users = [rest for word, rest in instructions() if word == "USER"]
    assert users == ["10001"]
    (install,) = [rest for word, rest in instructions() if word == "RUN" and "pip install" in rest]
    extras = re.search(r"\.\[([a-z,]+)\]", install)
    assert extras is not None
    declared = (ROOT / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in declared for extra in extras[1].split(","))


def test_compose_is_a_server_and_three_devices() -> None:
    compose: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    services = compose["services"]
    targets = {rest.rpartition(" AS ")[2] for word, rest in instructions() if word == "FROM"}
    assert {service["build"]["target"] for service in services.values()} <= targets
    assert sum(name.startswith("device-") for name in services) == 3
    used = {volume.split(":")[0] for service in services.values() for volume in service["volumes"]}
    assert used == set(compose["volumes"])
    takes(["serve", *services["server"]["command"]])
    images = services["images"]["entrypoint"]
    assert images[:3] == ["asfl", "data", "deal"]
    dealt = images[images.index("--sizes") + 1].split(",")
    for number in range(len(dealt)):
        assert services[f"device-{number + 1}"]["environment"]["IMAGES"] == f"/images/part-{number}.npz"


def test_the_dockerfiles_own_commands_are_ones_that_asfl_takes() -> None:
    entries = [rest for word, rest in instructions() if word == "CMD"]
    (command,) = [yaml.safe_load(entry) for entry in entries]
    takes(["serve", *command])
    for line in (ROOT / "deploy" / "device.sh").read_text().splitlines():
        if "asfl join" in line:
            words = shlex.split(line)
            takes(words[words.index("join") :])


def test_the_device_script_is_a_shell_script() -> None:
    shell = shutil.which("sh")
    assert shell is not None
    assert subprocess.run([shell, "-n", str(ROOT / "deploy" / "device.sh")], check=False).returncode == 0


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_start_commands_that_exist(unit: Path) -> None:
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit.read_text())
    program, *command = shlex.split(parser["Service"]["ExecStart"])
    assert program.endswith("/bin/asfl")
    takes(command)
    assert parser["Service"]["User"] == "asfl"
    assert parser["Service"]["RestartPreventExitStatus"] == "2"  # a mistake isn't mended by trying again
