#!/usr/bin/env bash
# Makes .venv with the extras named as arguments, from requirements.lock. Uses uv when it is installed, else venv + pip.
# A stamp of the inputs is kept, so that a second call with nothing changed costs milliseconds.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
python=${PYTHON:-python3}

"$python" - <<'PY' || { echo "slackwater needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
import sys
sys.exit(sys.version_info < (3, 11))
PY

stamp="$venv/.installed-$(echo "$*" | tr ' ' '-')"
if [ -f "$stamp" ] && [ "$stamp" -nt pyproject.toml ] && [ "$stamp" -nt requirements.lock ]; then exit 0; fi

echo "installing what is needed ($*) into $venv; this happens once and takes a minute or two" >&2
wanted=$(mktemp)
trap 'rm -f "$wanted"' EXIT
# One lock file serves every extra: keep the pins that the base package and the extras asked for bring in.
"$python" scripts/lock.py select "$@" > "$wanted"

if command -v uv >/dev/null 2>&1 && uv --version >/dev/null 2>&1; then
    [ -x "$venv/bin/python" ] || uv venv --quiet --python "$python" "$venv"
    VIRTUAL_ENV="$PWD/$venv" uv pip install --quiet --require-hashes -r "$wanted"
    VIRTUAL_ENV="$PWD/$venv" uv pip install --quiet --no-deps -e .
else
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$wanted"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -e .
fi
touch "$stamp"
