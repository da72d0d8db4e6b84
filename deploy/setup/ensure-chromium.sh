#!/bin/sh
# Makes sure that there is a Chromium for the tests of the console. Installs Debian's when run as root, else says what
# to install. CHROMIUM names another one.
set -eu

usable() {
    for browser in ${CHROMIUM:-chromium chromium-browser google-chrome}; do
        command -v "$browser" >/dev/null 2>&1 && return 0
    done
    return 1
}

if usable; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && [ -z "${CHROMIUM:-}" ] && command -v apt-get >/dev/null; then
    echo "installing Chromium for the tests of the console"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium
fi
if ! usable; then
    echo "error: the tests of the console need Chromium." >&2
    echo "Install it (Debian: apt-get install chromium) or set CHROMIUM to its path." >&2
    exit 1
fi
