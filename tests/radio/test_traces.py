"""Traces in CSV and NPZ files, and the choice of a reader."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from asfl.config.errors import AsflError
from asfl.radio.traces import RequestedQuantity, read_trace

LONG = """trace,t,RSRP,SNR,mode
7,0,-90,1.5,LTE
7,1,-91,2.5,5G
3,0,-80,,LTE
3,1,-82,12,LTE
3,2,-84,14,LTE
7,2,-92,3.5,5G
7,3,-93,4.5,5G
"""


def write(folder: Path, text: str, name: str = "drive.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def save(folder: Path, **arrays: object) -> Path:
    path = folder / "users.npz"
    np.savez(path, **{name: np.asarray(value) for name, value in arrays.items()})  # type: ignore[arg-type]
    return path


def test_long_csv_takes_snr_and_keeps_the_order_of_appearance(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, LONG))
    assert trace.quantity == "snr_db"
    assert trace.user_names == ("7", "3")
    assert trace.source == "drive.csv"
    assert trace.sample_period_s == 1
    np.testing.assert_array_equal(trace.values[0], [1.5, 2.5, 3.5, 4.5])
    np.testing.assert_array_equal(trace.values[1], [12, 12, 14])  # the edge is held


def test_compressed_csv_equals_the_plain_one(tmp_path: Path) -> None:
    """A byte order mark, blank lines and the case of the suffix do no harm either."""
    compressed = tmp_path / "drive.csv.gz"
    compressed.write_bytes(gzip.compress(LONG.encode(), mtime=0))
    plain, packed = read_trace(write(tmp_path, LONG)), read_trace(compressed)
    assert packed.user_names == plain.user_names
    for left, right in zip(packed.values, plain.values, strict=True):
        np.testing.assert_array_equal(left, right)
    trace = read_trace(write(tmp_path, "\ufeffid,t,sinr\r\n\r\na,0,1\r\na,1,2\r\n", "DRIVE.CSV"))
    assert trace.source == "DRIVE.CSV"
    np.testing.assert_array_equal(trace.values[0], [1, 2])


def test_missing_values_and_missing_rows_are_interpolated_in_time(tmp_path: Path) -> None:
    rows = ["a,0,-", "a,1,10", "a,2,nan", "a,5,30", "a,6,NaN", "a,7,40", "a,8,41", "a,9,42", "a,10,43", "a,11,"]
    trace = read_trace(write(tmp_path, "\n".join(["ue,t,snr", *rows])))
    assert trace.sample_period_s == 1
    np.testing.assert_allclose(trace.values[0], [10, 10, 15, 20, 25, 30, 35, 40, 41, 42, 43, 43])


@pytest.mark.parametrize(
    "rows", ["a,0,1 a,1,2 a,1e12,3 b,0,5 b,1,6", "a,0,1 a,1, a,2, b,0,5 b,1, b,2,7 b,3,"], ids=["pause", "gaps"]
)
def test_a_user_with_a_long_pause_or_half_missing_is_left_out(tmp_path: Path, rows: str) -> None:
    trace = read_trace(write(tmp_path, "\n".join(["user,t,snr", *rows.split(), ""])))
    assert trace.user_names == ("b",)


@pytest.mark.parametrize(
    ("text", "quantity", "message"),
    [
        ("user,snr\na,1\n", "auto", "no time column among: user, snr"),
        ("user,t,CQI\na,0,1\n", "auto", r"no value column among: user, t, CQI; name one snr or .* or rsrp"),
        ("user,t,SNR\na,0,1\n", "rsrp_dbm", "no value column among: user, t, SNR; name one rsrp or rsrp_dbm"),
        ("user,t,SNR\n", "auto", "no rows below the header"),
        ("user,t,SNR\na,0\n", "auto", "row 2: 2 fields, but the header has 3"),
        ("user,t,SNR\na,0,good\n", "auto", "row 2: SNR is 'good'; give a finite number"),
        ("user,t,SNR\na,noon,1\n", "auto", "row 2: t is 'noon'; give a finite number"),
        ("t,user,SNR\n0, ,1\n", "auto", "row 2: user is empty"),
        ("user,t,SNR\na,1,1\nb,0,2\na,0,1\n", "auto", "row 4: t of user 'a' goes back from 1 to 0"),
        ("user,t,SNR\na,0,1\na,1,1e308\n", "auto", "snr_db of user 'a' is beyond ±500 dB"),
        ("user,t,SNR\na,0,\na,1,-\n", "auto", "every user misses over half of its snr_db values"),
    ],
)
def test_csv_errors_name_file_place_and_remedy(
    tmp_path: Path, text: str, quantity: RequestedQuantity, message: str
) -> None:
    with pytest.raises(AsflError, match=message) as caught:
        read_trace(write(tmp_path, text), quantity)
    assert "drive.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("latin.csv", "user,t,SNR\nÉ,0,1\n".encode("latin-1")),
        ("plain.csv.gz", LONG.encode()),
        ("cut.csv.gz", gzip.compress(LONG.encode(), mtime=0)[:-20]),
        ("flipped.csv.gz", gzip.compress(LONG.encode(), mtime=0)[:12] + bytes(60)),
        ("wide.csv", b"user,t,SNR\n" + b"x" * 200_000 + b",0,1\n"),
    ],
    ids=("latin", "plain", "cut", "flipped", "wide"),
)
def test_csv_that_is_no_text_is_an_error(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(AsflError, match=f"{name}: can't be read as a CSV file"):
        read_trace(path)


def test_npz_prefers_snr_and_takes_names_and_time_step(tmp_path: Path) -> None:
    snr_db = np.array([[1, np.nan, 3], [4, 5, np.nan]], dtype=np.float32)
    path = save(tmp_path, snr_db=snr_db, rsrp_dbm=[[-90, -91, -92]] * 2, dt_s=0.5, user_names=["ann", "bo"])
    trace = read_trace(path)
    assert (trace.quantity, trace.sample_period_s, trace.user_names) == ("snr_db", 0.5, ("ann", "bo"))
    assert trace.source == "users.npz"
    assert all(values.dtype == np.float64 for values in trace.values)
    np.testing.assert_array_equal(trace.values, [[1, 2, 3], [4, 5, 5]])
    np.testing.assert_array_equal(read_trace(path, "rsrp_dbm").values[1], [-90, -91, -92])


@pytest.mark.parametrize(
    ("arrays", "quantity", "message"),
    [
        ({"power": [[1.0]]}, "auto", "no array snr_db, rsrp_dbm, relative_gain among: none"),
        ({"snr_db": [[1.0]], "dt_s": 1}, "rsrp_dbm", "no array rsrp_dbm among: snr_db, dt_s"),
        ({"snr_db": [1.0, 2.0]}, "auto", r"snr_db is float64 \[2\]; give real numbers \[users, time\]"),
        ({"snr_db": [[1.0, 2], [3, -np.inf]]}, "auto", r"snr_db\[1, 1\] is -inf; give finite numbers"),
        ({"snr_db": [[np.nan]]}, "auto", "every user misses over half of its snr_db values"),
        ({"relative_gain": [[1.0, -1.0]]}, "auto", "relative_gain of user '0' is negative; give powers"),
        ({"snr_db": [[1.0]], "dt_s": 0.0}, "auto", "dt_s is 0.0; give one positive number"),
        (
            {"snr_db": [[1.0]], "user_names": ["a", "b"]},
            "auto",
            r"user_names is \[2\]; give one name for each",
        ),
        ({"snr_db": np.array([[None]])}, "auto", "can't be read as an NPZ archive of plain arrays"),
    ],
)
def test_npz_errors_name_file_array_and_remedy(
    tmp_path: Path, arrays: dict[str, object], quantity: RequestedQuantity, message: str
) -> None:
    with pytest.raises(AsflError, match=message) as caught:
        read_trace(save(tmp_path, **arrays), quantity)
    assert "users.npz" in str(caught.value)


def test_what_is_no_trace_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AsflError, match=r"absent\.csv: no such file"):
        read_trace(tmp_path / "absent.csv")
    with pytest.raises(AsflError, match="a folder, not a file"):
        read_trace(tmp_path)
    with pytest.raises(AsflError, match=r"drive\.xlsx: unknown kind of file; valid suffixes: \.csv, \.csv\.gz"):
        read_trace(write(tmp_path, LONG, "drive.xlsx"))
    with pytest.raises(AsflError, match="a CSV file gives no relative_gain; quantity can be auto, snr_db"):
        read_trace(write(tmp_path, LONG), "relative_gain")
    with pytest.raises(AsflError, match="quantity: unknown 'snr': did you mean 'snr_db'"):
        read_trace(write(tmp_path, LONG), "snr")  # type: ignore[arg-type]


@pytest.mark.parametrize("more", [b"0,1,2\n" * 2000, b"7," * 6000, b"a" * 9000])
def test_a_kilobyte_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: bytes) -> None:
    monkeypatch.setattr("asfl.radio.traces.MAX_TABLE_LENGTH", 10_000)
    monkeypatch.setattr("asfl.radio.traces.MAX_LINE_LENGTH", 8_000)
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"user,t,snr\n" + more))
    with pytest.raises(AsflError, match="a line has more than 8,000 characters, or all of them have more than 10,000"):
        read_trace(path)


def test_pipes_and_devices_are_no_traces(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "zero.npz").symlink_to("/dev/zero")
    for name in ("pipe.csv", "zero.npz"):
        with pytest.raises(AsflError, match=f"{name}: a device or a pipe, not a file"):
            read_trace(tmp_path / name)
