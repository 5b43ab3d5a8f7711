"""Inputs that are not written by accident: values, configurations, round files, traces, data files, command lines.

A maker takes a folder of its own and a random generator, and returns a `Case`.
"""

import gzip
import io
import json
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Random = np.random.Generator


@dataclass(frozen=True)
class Case:
    """One call of the command line."""

    arguments: list[str]
    must_refuse: bool = False
    """Whether success would be a lie."""


NUMBERS = (
    *("0", "-1", "1", "3", "1000000000", "1000000000000000000", "9223372036854775808", "-9223372036854775809"),
    *("1e6", "1e9", "1e12", "1e-9", "500", "-500", "20", "100", "10000", "1"),
    *("0.5", "-0.0", "1e300", "-1e300", "1e-300", "5e-324", "1.7976931348623157e308", "1e15", "1e-15", "inf", "nan"),
    "7" * 5000,
)
TEXTS = (
    *('""', '"auto"', '"off"', '"each"', '"1 MHz"', '"1e999 MHz"', '"-1e9 dBm"', '"9 GHz km"', '"∞"', '"nan"'),
    *('"\\u0000"', '"\\u001b[31m"', '"🦊"', '"a/b"', '"../../../etc/passwd"', '"/dev/zero"', '"x.npz"', '"x.csv"'),
    *(f'"{"a" * 300}"', f'"{"a" * 300}.npz"', f'"{"../" * 2000}x.csv"', f'"{"9" * 5000} Hz"', '"a\\u0000b.npz"'),
    '"\udcff"',
)
SHAPES = (
    *("true", "false", "[]", "{}", "[1, 2]", "[[[]]]", "{a = 1}", "1979-05-27T07:32:00Z", "07:32:00", "[1, 'a', {}]"),
    *("[" * 3000, "[" * 3000 + "]" * 3000, "{a=" * 2000 + "1" + "}" * 2000, "[" * 200 + "]" * 200, "0x" + "f" * 9000),
)
VALUES = (*NUMBERS, *NUMBERS, *TEXTS, *SHAPES)


def one_of(random: Random, options: Any) -> Any:
    return options[int(random.integers(len(options)))]


def damaged(content: bytes, random: Random) -> bytes:
    """Cut short, changed or grown somewhere."""
    content = content or b"\0"
    where = int(random.integers(len(content)))
    kind = int(random.integers(5))
    if kind == 0:
        return content[:where]
    if kind == 1:
        changed = bytearray(content)
        for _ in range(int(random.integers(1, 8))):
            changed[int(random.integers(len(changed)))] = int(random.integers(256))
        return bytes(changed)
    if kind == 2:
        return content[:where] + random.bytes(int(random.integers(1, 40))) + content[where:]
    if kind == 3:
        return content[:where] + content[where + int(random.integers(1, 40)) :]
    return content + content[where:]


def field_names() -> list[str]:
    from asfl.config.fields import _all_keys
    from asfl.config.tree import Config

    return [*(name.replace("NAME", "epsl") for name in _all_keys(Config)), "nobody", "scenario.nobody", "scenario"]


def set_options(random: Random, most: int) -> list[str]:
    names, options = field_names(), list[str]()
    for _ in range(int(random.integers(1, most + 1))):
        name, value = one_of(random, names), one_of(random, VALUES)
        odd = int(random.integers(30))
        if odd == 0:
            name = ".".join([name] * 700)
        elif odd == 1:
            name = one_of(random, ("", ".", "a..b", "=", " ", "scenario.\0", "𝕏.y", "scenario.clients.x"))
        options += ["--set", f"{name}={value}"]
    return options


def override(folder: Path, random: Random) -> Case:
    """`--set` with absurd fields and values."""
    command = one_of(
        random,
        (
            *(["explain"],) * 6,
            ["explain", "--docs"],
            ["scenario"],
            ["scenario", "--json"],
            ["data", "show", "--json"],
            ["decide", "--rounds", "2", "--schemes", "asfl,sfl", "--json"],
        ),
    )
    return Case([*command, *set_options(random, 2)])


def configuration(folder: Path, random: Random) -> Case:
    """A TOML file, mutated."""
    from asfl.config import load_config
    from asfl.config.show import as_toml

    lines = as_toml(load_config("demo" if random.random() < 0.95 else "small-cifar10")).splitlines()
    kind = int(random.integers(4))
    if kind < 2:
        for _ in range(int(random.integers(1, 3))):
            where = int(random.integers(len(lines)))
            key = lines[where].partition("=")[0]
            lines[where] = f"{key}= {one_of(random, VALUES)}"
    content = "\n".join(lines).encode("utf-8", "surrogateescape")
    if kind == 2:
        content = damaged(content, random)
    elif kind == 3:
        odd = ("[a." * 1 + "a." * 5000 + "b]", "a.b." * 3000 + "c = 1", "x = " + "[" * 9000, "base = 3", "base = []")
        content = (one_of(random, odd) + "\n").encode() + content
    file = folder / one_of(random, ("mine.toml", "mine", "ü.toml"))
    file.write_bytes(content)
    command = one_of(random, (["check"], ["explain"], ["scenario", "--json"], ["scenario"]))
    return Case([*command, str(file)])


ROUND: dict[str, Any] = {
    "round": {
        "profile": "vgg19-cifar100",
        "path_gain": [6.2e-13, 6.6e-14, 2.1e-14, 3.3e-14],
        "channel_gain": [8.1e-13, 4.9e-14, 1.7e-14, 4.0e-14],
        "cpu_hz": [1.1e9, 1.4e9, 1.6e9, 1.2e9],
        "radio": {"num_rbs": 8, "max_tx_power_w": 1.5},
        "charged_samples": 64,
        "previous_cut": 4,
        "gain_is_known": False,
    },
    "rules": {
        "delay_budget_s": 20,
        "energy_budget_j": 0.5,
        "outage_s": 60,
        "min_participants": 2,
        "participation_floor": 0.1,
        "penalty_weight": 10,
    },
    "queues": {"delay": 1, "energy": [1, 0, 0, 0], "participation": [0, 0, 0, 1]},
    "learning": {"update_norm2": [1, 1, 2, 1], "update_scale": 1},
    "decision": {"cut": 3, "rb_count": [2, 3, 3, 0], "tx_power_w": [0.4, 1.2, 1.5, 0]},
    "arrived": [1, 1, 0, 0],
}
ENUMERATED = {
    "equations": ("corrected", "printed"),
    "uplink_power": ("auto", "shared", "each_rb"),
    "form": ("drift", "per_round_budgets"),
    "queue_rule": ("printed", "standard"),
    "error_weight": ("(1-s)^2", "s^2", "s"),
}
JSON_VALUES = (
    *("0", "-1", "1", "1e300", "1e-300", "5e-324", "1e15", "1e30", "NaN", "Infinity", "-Infinity", "null", "true"),
    *('""', '"a"', "[]", "{}", "[0]", "[0, 0, 0, 0]", "[1e300, 1e300, 1e300, 1e300]", "1000000000", "7" * 5000, "1.5"),
    *("[" * 2000 + "]" * 2000, '"vgg19-w99999999999999999999-cifar10"', '"cnn-digits"', '"vgg19-w1e5-cifar10"'),
    *("10000000000000000000000", '"\\ud800"', '"a\\u0000.npz"', f'"cnn-{"a" * 300}.npz"', '"vgg19-w0.0001-cifar10"'),
)


def round_file(folder: Path, random: Random) -> Case:
    """A round file for `cost` or `decide`, mutated."""
    data = json.loads(json.dumps(ROUND))
    for name, options in ENUMERATED.items():
        if random.random() < 0.5:
            data["rules"][name] = one_of(random, options)
    for _ in range(int(random.integers(0, 4))):
        place, (*before, last) = data, one_of(random, list(_places(data)))
        for part in before:
            place = place[part]
        if random.random() < 0.15:
            del place[last]
        else:
            place[last] = f"@{int(random.integers(len(JSON_VALUES)))}@"
    text = json.dumps(data)
    for index, value in enumerate(JSON_VALUES):
        text = text.replace(f'"@{index}@"', value)
    content = text.encode()
    odd = int(random.integers(20))
    if odd == 0:
        content = b"[" * int(random.integers(10, 100_000))
    elif odd == 1:
        content = b'{"a":' * int(random.integers(10, 100_000)) + b"1"
    elif odd < 5:
        content = damaged(content, random)
    file = folder / "round.json"
    file.write_bytes(content)
    options = one_of(random, (["decide", "--cost"], ["decide", "--cost", "--json"], ["decide"], ["decide", "--json"]))
    solver = ["--solver", "joint"] if options[0] == "decide" and random.random() < 0.3 else []
    return Case([*options, *solver, str(file)])


def _places(data: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if before:
        yield before
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from _places(value, (*before, key))


def npz_bytes(arrays: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def lying_npy(shape: tuple[int, ...], code: str = "<f8", content: bytes = b"\0" * 64) -> bytes:
    """An array whose header claims more than there is."""
    header = f"{{'descr': '{code}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def npz_of(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def table(random: Random) -> str:
    rows = [one_of(random, ("user,t,snr", "trace,time,RSRP,SNR", "t,snr", "time,alice,bob", "t,t,t", ""))]
    columns = rows[0].count(",") + 1
    odd = ("", "-", "nan", "inf", "1e308", "-1e308", "1e-308", "x" * 200_000, "7" * 5000, "\0", '"', "−3")
    for step in range(int(random.integers(0, 12))):
        row = [str(step) if random.random() < 0.9 else one_of(random, odd) for _ in range(columns)]
        if random.random() < 0.05:
            row.append("1")
        rows.append(",".join(row))
    return "\n".join(rows)


def trace(folder: Path, random: Random) -> Case:
    """A measured channel in any format, damaged or lying."""
    kind = one_of(random, ("csv", "csv", "csv.gz", "csv.gz", "npz", "npz", "odd"))
    file, lies = folder / f"trace.{kind}", False
    if kind == "csv":
        content = table(random).encode()
        file.write_bytes(damaged(content, random) if random.random() < 0.3 else content)
    elif kind == "csv.gz":
        content = gzip.compress(table(random).encode())
        if random.random() < 0.02:
            line, lies = one_of(random, (b"0,", b"0,1,2\n", b"7")), True
            content = gzip.compress(b"user,t,snr\n" + line * 2_000_000) + gzip.compress(line * 5_000_000) * 120
        file.write_bytes(damaged(content, random) if not lies and random.random() < 0.3 else content)
    elif kind == "npz":
        values = random.normal(size=(8, 5))
        shape = one_of(random, ((10**12,), (10**6, 10**6), (8, 10**12), (2**62, 2), (-1, 8)))
        members = {"snr_db": lying_npy(shape)}
        made = one_of(random, (npz_bytes({"snr_db": values, "dt_s": _odd_number(random)}), npz_of(members)))
        lies = made == npz_of(members)
        file.write_bytes(damaged(made, random) if not lies and random.random() < 0.4 else made)
    else:
        file, lies = odd_file(folder, random, one_of(random, (".csv", ".npz", ".h5", ".csv.gz"))), True
    channel = [f"scenario.channel.{part}" for part in ('kind="trace"', f'trace_file="{file}"')]
    quantity = one_of(random, ("auto", "auto", "snr_db", "rsrp_dbm"))
    settings = [*channel, f'scenario.channel.trace_quantity="{quantity}"', "scenario.clients=1"]
    command = one_of(random, (["scenario", "--json"], ["scenario"], ["explain"]))
    options = [part for setting in settings for part in ("--set", setting)]
    return Case([*command, *options], must_refuse=lies and command[0] == "scenario")


def _odd_number(random: Random) -> Any:
    odd = (1.0, 0, -1, np.inf, np.nan, 1e300, 1e-300, [1, 2], "text", 2**63, np.float16(1), np.complex128(1))
    return np.array(one_of(random, odd))


def odd_file(folder: Path, random: Random, suffix: str) -> Path:
    """A name that is no ordinary file."""
    file = folder / f"odd{suffix}"
    kind = int(random.integers(6))
    if kind == 0:
        os.mkfifo(file)
    elif kind == 1:
        file.symlink_to("/dev/zero")
    elif kind == 2:
        file.mkdir()
    elif kind == 3:
        file.symlink_to(file)
    elif kind == 4:
        return folder / ("a" * 300 + suffix)
    return file


def data_file(folder: Path, random: Random) -> Case:
    """Images in any format, damaged or lying."""
    kind = one_of(random, ("npz", "npz", "npz", "binary", "odd"))
    if kind in ("npz", "odd"):
        lies, file = False, folder / "mine.npz"
        if kind == "odd":
            file, lies = odd_file(folder, random, ".npz"), True
        else:
            arrays = {
                "train_images": random.integers(0, 256, (20, 8, 8), dtype=np.uint8),
                "train_labels": np.arange(20) % 3,
                "test_images": random.integers(0, 256, (6, 8, 8), dtype=np.uint8),
                "test_labels": np.arange(6) % 3,
            }
            for key in ("num_classes", "scale", *arrays):
                if random.random() < 0.15:
                    arrays[key] = _odd_number(random)
            content = npz_bytes(arrays)
            if random.random() < 0.3:
                members = {key: lying_npy((10**12, 8, 8), "|u1") for key in arrays}
                content, lies = npz_of(members), True
            elif random.random() < 0.01:  # 4 GB of zeros
                bomb = lying_npy((2**32, 1, 1), "|u1", b"") + bytes(1 << 24)
                content, lies = npz_of(dict.fromkeys(arrays, bomb), zipfile.ZIP_DEFLATED), True
            elif random.random() < 0.3:
                content = damaged(content, random)
            file.write_bytes(content)
        return Case(["data", "show", "--json", "--set", f'data.name="{file}"'], must_refuse=lies)
    name = one_of(random, ("cifar10", "cifar100"))
    inner = folder / ("cifar-10-batches-bin" if name == "cifar10" else "cifar-100-binary")
    inner.mkdir()
    for part in (*(f"data_batch_{number}" for number in range(1, 6)), "train", "test", "test_batch"):
        (inner / f"{part}.bin").write_bytes(random.bytes(3073 * int(random.integers(3))))
    return Case(["data", "show", "--set", f"data.name={name}", "--data-dir", str(folder)], must_refuse=True)


def command_line(folder: Path, random: Random) -> Case:
    """Options that are too long, too large, or nothing."""
    odd_path = one_of(random, ("a" * 300, "x/" * 3000, "/dev/zero", "/dev/null", "", ".", "/proc/self/mem"))
    huge = one_of(random, ("1000000000", "0", "-1", "1e9", "99999999999999999999", "7" * 5000, "x"))
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    file = one_of(random, (odd_path, str(fifo)))
    many = ",".join(str(number / 1000) for number in range(1, 400))
    over = [
        part for name in ("data.dirichlet_alpha", "training.learning_rate") for part in ("--over", f"{name}={many}")
    ]
    out = ["--out", str(folder / "out")]
    return Case(
        one_of(
            random,
            (
                ["compare", "--seeds", one_of(random, ("1000000000", "100000000000")), *out],
                ["sweep", "--over", "data.dirichlet_alpha=1,2", "--seeds", "1000000000", *out],
                ["sweep", *over, *over, *out],
                ["sweep", *over, *out],
                ["sweep", "--over", f"training.learning_rate={huge},nan", *out],
                ["reproduce", "all", "--seeds", "1000000000", *out],
                ["decide", "--rounds", huge, "--seeds", "1000000000"],
                ["decide", "--rounds", "1000000000000"],
                ["run", "--set", "scenario.clients=1000000000", *out],
                ["run", "--set", "model.width=1e300", *out],
                ["run", "--set", f"training.batch_size={huge}x", *out],
                ["scenario", "--set", "scenario.clients=1000000000"],
                ["scenario", "--set", "radio.num_rbs=1000000000000"],
                ["decide", file],
                ["decide", "--cost", file, "--json"],
                ["check", file],
                ["explain", file + ".toml"],
                ["run", file, *out],
                ["--plugin", file, "list", "presets"],
                ["explain", file],
                ["explain", f"vgg19-w{huge}-cifar10"],
                ["explain", "vgg19-w" + "9" * 400 + "-cifar10"],
                ["explain", f"cnn-{'a' * 300}.npz"],
                ["data", "fetch", file],
                ["data", "fetch", "cifar10", "--url", "file:///dev/zero", "--data-dir", str(folder)],
                ["data", "show", "--set", "data.name=cifar10", "--data-dir", file or "."],
                ["resume", file or "nowhere"],
                ["report", file or "nowhere"],
                ["export", file or "nowhere"],
                ["scenario", "--plot", "a" * 300 + ".png"],
                ["scenario", "--plot", "/proc/nowhere/x.png"],
                ["run", "--out", "/proc/nowhere", "--set", "training.rounds=1"],
                ["run", "--out", "a" * 300, "--set", "training.rounds=1"],
                ["fleet", "--clients", "1000000000", *out],
                ["fleet", "--clients", "2", "--out", "/proc/nowhere"],
                [huge],
                ["devices", file],
            ),
        ),
        must_refuse=True,
    )


MAKERS: dict[str, tuple[Callable[[Path, Random], Case], float]] = {
    "override": (override, 0.3),
    "configuration": (configuration, 0.2),
    "round file": (round_file, 0.25),
    "trace": (trace, 0.1),
    "data": (data_file, 0.08),
    "command line": (command_line, 0.07),
}
"""What is made up, and its share."""
