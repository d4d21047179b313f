"""Name the authors of the photographs that a prior was trained on, in its card.

    python scripts/credit_photographs.py INDEX.csv CARD.json [CARD.json ...]

The index has the columns `source`, `original_name` and `licence`, one row for each photograph. Photographs whose names
are in none of its rows cannot have been used; those that were held out for validation are credited too.
"""

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path

from aipo.files import write_atomically


def credits(index: Path) -> list[dict[str, object]]:
    """Who is to be thanked: photographs by source and license."""
    groups = defaultdict(list)
    with index.open(newline="") as file:
        for row in csv.DictReader(file):
            groups[row["source"], row["licence"]].append(Path(row["original_name"]).stem)
    return [
        {"source": source, "license": license, "photographs": sorted(names)}
        for (source, license), names in sorted(groups.items())
    ]


def main() -> None:
    index, *cards = map(Path, sys.argv[1:])
    for path in cards:
        card = {**json.loads(path.read_text()), "credits": credits(index)}
        write_atomically(path, (json.dumps(card, indent=2) + "\n").encode())
        print(f"{path}: {sum(len(group['photographs']) for group in card['credits'])} photographs credited")


if __name__ == "__main__":
    main()
