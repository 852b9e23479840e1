# Sourced by scripts/quickstart and scripts/test: the virtual environment `.venv` of this clone.
# Sets `root` and `python`.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="$root/.venv/bin/python"

# Waiting threads that spin slow each other on a busy machine: up to 15 times for small networks.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-PASSIVE}"

is_new_enough() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# Prints the first Python that is new enough: $PYTHON alone if it is set.
find_python() {
  local candidate
  local -a candidates=(python3 python3.14 python3.13 python3.12 python3.11 python)
  if [[ -n "${PYTHON:-}" ]]; then candidates=("$PYTHON"); fi
  for candidate in "${candidates[@]}"; do
    if is_new_enough "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  local version
  version="$("${candidates[0]}" --version 2>&1)" || version="not found"
  echo "raystitch needs Python 3.11 or newer; ${candidates[0]} here is: $version." >&2
  echo "Install a newer one, or name it: PYTHON=/path/to/python3.12 $0" >&2
  return 1
}

# What an installation depends on: the place of the clone, the Python and pyproject.toml.
fingerprint() {
  "$python" - "$root" <<'PY'
import hashlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
parts = [str(root).encode(), sys.version.encode(), (root / "pyproject.toml").read_bytes()]
print(hashlib.sha256(b"\0".join(parts)).hexdigest())
PY
}

# make_environment REQUIREMENT: makes .venv where there is none and installs `.` or `.[dev]` in it,
# unless the last installation was of this pyproject.toml. `.[dev]` holds all of `.`.
make_environment() {
  local wanted="$1" stamp="$root/.venv/raystitch-installed" found state
  # An interrupted first run leaves an environment without pip behind: made again then.
  if ! "$python" -c 'import pip' 2>/dev/null; then
    found="$(find_python)" || exit 1
    echo "making $root/.venv with $found"
    rm -f "$stamp"
    "$found" -m venv "$root/.venv"
  fi
  state="$(fingerprint)"
  if [[ -f "$stamp" ]] && grep -qxF -e "$state $wanted" -e "$state .[dev]" "$stamp"; then
    return
  fi
  echo "installing raystitch and what it needs into $root/.venv (once; torch is large)"
  rm -f "$stamp"
  (cd "$root" && "$python" -m pip install --disable-pip-version-check --editable "$wanted")
  echo "$state $wanted" >"$stamp"
}
