#!/bin/sh
# Puts prometheus and promtool, of Debian's package, into the directory $1: they check the rules and dashboards in
# deploy/. Nothing is installed and no service started. Where there is no apt, those tests are skipped.
set -eu
target=$1

if [ -x "$target/prometheus" ] && [ -x "$target/promtool" ]; then
    exit 0
fi
if command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1; then
    exit 0
fi
skipped() {
    echo "note: no Prometheus ($1); tests that evaluate rules and dashboards are skipped." >&2
    echo "Put prometheus and promtool on the PATH to run them." >&2
    exit 0
}
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skipped "there is no apt here"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch() {
    (cd "$work" && apt-get download -qq prometheus >/dev/null 2>&1)
}
if ! fetch; then
    [ "$(id -u)" = 0 ] && apt-get update -qq
    fetch || skipped "apt-get download prometheus failed"
fi
dpkg-deb -x "$work"/prometheus_*.deb "$work/unpacked"
cp "$work/unpacked/usr/bin/prometheus" "$work/unpacked/usr/bin/promtool" "$target/"
