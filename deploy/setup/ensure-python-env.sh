#!/bin/sh
# Makes the virtual environment $1 with this project and its extras $2 ("bookie,spark"), unless it is up to date.
# With "dev" it takes the versions of requirements-dev.lock; where the registry has not all of them, those it has.
# Needs Python 3.11 or later; installs Debian's venv module when run as root, else says what to install.
set -eu
venv=$1
extras=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
stamp="$venv/.installed-$extras"

lock="$root/requirements-dev.lock"
if [ -f "$stamp" ] && [ "$stamp" -nt "$root/pyproject.toml" ] && { [ "$extras" != dev ] || [ "$stamp" -nt "$lock" ]; }; then
    exit 0
fi

find_python() {
    for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "error: no Python 3.11 or later was found; install one, or name it: make PYTHON=/path/to/python3" >&2
    exit 1
}

python=$(find_python)
if [ ! -x "$venv/bin/python" ]; then
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv
        else
            echo "error: $python lacks the venv module; install it (Debian, Ubuntu: apt-get install python3-venv)" >&2
            exit 1
        fi
    fi
    "$python" -m venv "$venv"
fi
echo "installing bookgate[$extras] into $venv (the first time takes a minute or two)"
install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$root[$extras]" "$@"
}
if [ "$extras" = dev ]; then
    install --constraint "$lock" || {
        echo "warning: not all versions of $lock can be had here; taking others that fit" >&2
        install
    }
else
    install
fi
touch "$stamp"
