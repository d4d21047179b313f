#!/usr/bin/env bash
# Build the wheel, install it where nothing else is, and try it far away from the sources.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONPATH
most=100000000 # bytes: what package indexes take
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

# From a copy: what an earlier build has left beside the sources would go into the wheel.
mkdir "$place/source"
cp -R pyproject.toml README.md LICENSE src "$place/source"
rm -rf "$place"/source/src/*.egg-info
"${PYTHON:-python3}" -m pip wheel --quiet --no-deps --wheel-dir dist "$place/source"
wheel=$(ls -t dist/aipo-*.whl | head -1)
size=$(wc -c <"$wheel")
echo "$wheel: $size bytes"
[ "$size" -lt $most ] || { echo "$wheel is larger than $most bytes" >&2; exit 1; }

"${PYTHON:-python3}" -m venv "$place/venv"
"$place/venv/bin/python" -m pip install --quiet --constraint constraints.txt "$wheel"
sources=$PWD
cd "$place"
PATH="$place/venv/bin:$PATH"
python -c 'import aipo, sys; sys.exit(aipo.__file__.startswith(sys.argv[1]))' "$sources"
aipo --version
aipo priors
aipo demo --out demo --quiet
aipo corrupt "$(ls demo/*.astronaut.truth.png | head -1)" --task denoise --sigma 0.1 --out noisy --quiet
aipo restore noisy --task denoise --sigma 0.1 --out restored
test -s demo/report.html
test -s restored/report.html
