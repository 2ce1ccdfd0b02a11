#!/usr/bin/env bash
# Makes .venv with the extras named as arguments, from requirements.lock. Uses uv when it is installed, else venv + pip.
# A stamp of the inputs is kept, so that a second call with nothing changed costs milliseconds.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}

# Prints "1 3.13 /path" when a Python is new enough, can make an environment and was built with profile-guided optimization;
# "0 …" when it was built without; nothing when it is of no use.
describe() {
    "$1" - 2>/dev/null <<'PY'
import importlib.util, sys, sysconfig
if sys.version_info >= (3, 11) and all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
    # Distributions build with profiles by other means than the option: theirs are in /usr.
    guided = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "") or sys.base_prefix == "/usr"
    print(int(guided), "%d.%d" % sys.version_info[:2], sys.executable)
PY
}

# python3 if it was built with profile-guided optimization (it is 7 to 30 % faster), else a locked version that was, else python3.
choose() {
    local found name
    for name in python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
        command -v "$name" >/dev/null 2>&1 || continue
        found=$(describe "$name") || continue
        case $found in 1\ *) echo "${found#* * }"; return ;; esac
    done
    echo python3
}

stamp="$venv/.installed-$(echo "$*" | tr ' ' '-')"
if [ -f "$stamp" ] && [ "$stamp" -nt pyproject.toml ] && [ "$stamp" -nt requirements.lock ]; then exit 0; fi

python=${PYTHON:-$(choose)}
"$python" - <<'PY' || { echo "slackwater needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
import sys
sys.exit(sys.version_info < (3, 11))
PY

said=$(describe "$python")
case $said in
    1\ *) how="built with profile-guided optimization" ;;
    *) how="built without profile-guided optimization: another Python may be 7 to 30 % faster; name it with PYTHON=" ;;
esac
[ -x "$venv/bin/python" ] || echo "Python: ${said#* } ($how)" >&2
echo "installing what is needed ($*) into $venv; this happens once and takes one to two minutes" >&2
began=$SECONDS
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
case " $* " in
    *" dev "*) next="make demo (three nodes, Spark, a kill -9), make test (every test, minutes), make (all targets), docs/architecture.md" ;;
    *) next="make demo, or .venv/bin/slackwater --help" ;;
esac
echo "done in $((SECONDS - began)) s; next: $next" >&2
