#!/usr/bin/env bash
# Runs quick tests with the oldest and with the newest versions: tests/versions.sh FOLDER [TESTS...]
#
# FOLDER gets two environments: the oldest Python found with the lowest versions that pyproject.toml allows, and the newest
# Python with the newest versions of the registries. PYTHONS names the Pythons to look for. The project itself is installed
# into neither: tests find it by PYTHONPATH. The lowest versions are without the extra `slurm`, whose packages ask for a
# newer numpy. Without TESTS, the folders are tested whose code depends on versions. Ends with pytest's last line of each.

set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "$1")
shift
tests=("$@")
if [ ${#tests[@]} = 0 ]; then
  for folder in kernels comm graph models parallel ledger runtime launch strategies replay results figures; do
    tests+=("tests/$folder")
  done
  tests+=(tests/test_uninstalled.py)
fi

found=()
for python in ${PYTHONS:-/usr/bin/python3 python3.11 python3.12 python3.13}; do
  if version=$("$python" -c 'import platform, venv; print(platform.python_version())' 2> /dev/null) &&
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    found+=("$version $python")
  else
    echo "Left out: there is no $python with venv, or it is older than 3.11."
  fi
done
mapfile -t found < <(printf '%s\n' "${found[@]}" | sort -V | cut -d ' ' -f 2)
[ -n "${found[0]}" ] || { echo "No Python was found. Name some: PYTHONS='python3.11 /path/to/python'" >&2; exit 1; }

requirements() { # lowest or newest
  "$1" - "$2" << 'END'
import re, sys, tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
left_out = {"all", "dev"} | ({"slurm"} if sys.argv[1] == "lowest" else set())
chosen = [*project["dependencies"], *(line for extra in extras if extra not in left_out for line in extras[extra])]
for line in chosen:
    print(re.sub(r">=([\d.]+)", r"==\1", line) if sys.argv[1] == "lowest" else line)
END
}

code=0
lines=()
try() { # the environment's name, its Python, and lowest or newest
  local environment="$folder/$1" log
  [ -x "$environment/bin/python" ] || "$2" -m venv "$environment"
  local pip=("$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --upgrade)
  requirements "$2" "$3" > "$environment/requirements.txt"
  echo "Installing the $3 versions for $2 into $environment."
  # Torch goes first and alone, as in the Makefile.
  "${pip[@]}" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch[=>]' "$environment/requirements.txt")"
  "${pip[@]}" --requirement "$environment/requirements.txt"
  log=$(mktemp)
  PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PATH="$environment/bin:$PATH" NUMBA_CACHE_DIR="$environment/numba" \
    OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} "$environment/bin/python" -m pytest -q -m "not slow" -p no:cacheprovider \
    -n "${WORKERS:-2}" --dist worksteal "${tests[@]}" 2>&1 | tee "$log" || code=1
  lines+=("$1: $("$environment/bin/python" -c '
import platform
from importlib.metadata import version
names = ("torch", "numpy", "scipy", "numba", "pandas", "pyarrow", "pydantic")
print(", ".join([f"python {platform.python_version()}", *(f"{name} {version(name)}" for name in names)]))')")
  lines+=("  $(tail -n 1 "$log")")
  rm -f "$log"
}

try oldest "${found[0]}" lowest
try newest "${found[-1]}" newest
printf '%s\n' "${lines[@]}"
exit $code
