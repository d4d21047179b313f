"""Write requirements.lock: every package of constraints.txt with the SHA-256 of each of its files.

    python scripts/lock.py
    python scripts/lock.py --check FILE...     whether these files are among them

Run it after a change of constraints.txt. The hashes are those that pip's package index publishes, for all platforms;
files in pip's `find-links` folders count too, such as a CPU build of torch.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pip._internal.models.index import PyPI  # where pip itself looks

ROOT = Path(__file__).parents[1]
HEADER = "# Made by scripts/lock.py from constraints.txt; `make locked` installs it.\n"


def main() -> None:
    if sys.argv[1:2] == ["--check"]:
        check([Path(name) for name in sys.argv[2:]])
        return
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    with ThreadPoolExecutor(8) as pool:
        entries = list(pool.map(entry, lines))
    (ROOT / "requirements.lock").write_text(HEADER + "".join(entries))
    print(f"{len(entries)} packages")


def check(files: list[Path]) -> None:
    known = (ROOT / "requirements.lock").read_text()
    for file in files:
        if f"--hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}" not in known:
            raise SystemExit(f"{file}: its hash is not in requirements.lock")


def entry(line: str) -> str:
    name, version = line.split("==")
    hashes = sorted(published(name, version) | local(name, version))
    if not hashes:
        raise SystemExit(f"{line}: no file of this version was found")
    return f"{line}" + "".join(f" \\\n    --hash=sha256:{digest}" for digest in hashes) + "\n"


def published(name: str, version: str) -> set[str]:
    index = os.environ.get("PIP_INDEX_URL", PyPI.simple_url)
    with urllib.request.urlopen(f"{index.rstrip('/')}/{normalized(name)}/", timeout=60) as answer:
        page = answer.read().decode()
    files = re.findall(r"#sha256=([0-9a-f]{64})[^>]*>([^<]+)</a>", page)
    return {digest for digest, file in files if belongs(file.strip(), name, version)}


def local(name: str, version: str) -> set[str]:
    folders = os.environ.get("PIP_FIND_LINKS", "").split()
    files = [path for folder in folders for path in Path(folder).glob("*") if belongs(path.name, name, version)]
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def belongs(file: str, name: str, version: str) -> bool:
    """Whether a wheel or source archive is of that version, whatever its build (2.13.0+cpu is a 2.13.0)."""
    stem = file.removesuffix(".tar.gz").removesuffix(".zip")
    parts = stem.split("-") if file.endswith(".whl") else stem.rsplit("-", 1)
    return len(parts) > 1 and normalized(parts[0]) == normalized(name) and parts[1].split("+")[0] == version


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
