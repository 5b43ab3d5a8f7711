"""Put what `asfl reproduce` found into the documentation: its pages, and its pictures in few colours.

python tools/publish_results.py out/reproduce-evidence docs/results
"""

import sys
from pathlib import Path

from PIL import Image

from asfl.results.reproduce import RECIPES

COLOURS = 96


def publish(found: Path, docs: Path) -> None:
    docs.mkdir(parents=True, exist_ok=True)
    for name in RECIPES:
        page = found / name / "results.md"
        if not page.exists():
            continue
        text = page.read_text("utf-8")
        for picture in sorted(page.parent.glob("*.png")):
            if f"({picture.name})" not in text:  # of an earlier call
                continue
            text = text.replace(f"({picture.name})", f"({name}-{picture.name})")
            with Image.open(picture) as image:
                image.convert("RGB").quantize(COLOURS).save(docs / f"{name}-{picture.name}", optimize=True)
        (docs / f"{name}.md").write_text(text, "utf-8")
        print(f"{docs / name}.md")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    publish(Path(sys.argv[1]), Path(sys.argv[2]))
