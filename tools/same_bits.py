"""Whether two folders of runs hold the same records, bit for bit: what a refactor has to show.

asfl compare demo --out before        (with the code as it was)
asfl compare demo --out after         (with the code as it is)
python tools/same_bits.py before after

Checksums of lines aren't compared: they change with any setting that is added, renamed or removed.
"""

import sys
from pathlib import Path


def lines(file: Path) -> list[str]:
    return [line.rpartition(', "checksum"')[0] for line in file.read_text().splitlines()]


def main(before: Path, after: Path) -> int:
    names = sorted(str(file.relative_to(before)) for file in before.rglob("rounds.jsonl"))
    if not names:
        print(f"{before} holds no rounds.jsonl")
        return 2
    different = [name for name in names if not (after / name).is_file() or lines(before / name) != lines(after / name)]
    for name in different:
        print(f"different: {name}")
    print(f"{len(names) - len(different)} of {len(names)} runs are the same")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
