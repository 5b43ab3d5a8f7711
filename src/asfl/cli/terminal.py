"""Letters that a terminal doesn't have."""

import codecs
import io
import sys
import unicodedata

_IN_ASCII = str.maketrans(
    {
        "≥": ">=",
        "≤": "<=",
        "…": "...",
        "–": "-",
        "−": "-",
        "×": "x",
        "·": "|",
        "±": "+-",
        "∞": "inf",
        "µ": "u",
        "→": "->",
    }
)


def _plainly(error: UnicodeError) -> tuple[str, int]:
    """What a terminal shows for letters it doesn't have: the nearest ones it has."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].translate(_IN_ASCII)
    plain = (unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode() or "?" for letter in text)
    return "".join(plain), error.end


def write_what_terminals_have() -> None:
    """Let no letter of a message end the program, where the output has ASCII only."""
    codecs.register_error("asfl-plainly", _plainly)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="asfl-plainly")
