#!/bin/sh
# Makes sure that there is a Java runtime for Spark and ZooKeeper: 17 or later, with the module jdk.incubator.vector.
# Installs Debian's when run as root, else says what to install.
set -eu

java=${JAVA_HOME:+$JAVA_HOME/bin/}java

usable() {
    command -v "$java" >/dev/null 2>&1 || return 1
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${version:-0}" -ge 17 ] && "$java" --list-modules 2>/dev/null | grep -q '^jdk.incubator.vector'
}

if usable; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && [ -z "${JAVA_HOME:-}" ] && command -v apt-get >/dev/null; then
    echo "installing a Java runtime for Spark and ZooKeeper"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless ||
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends default-jre-headless
fi
if ! usable; then
    echo "error: Spark and ZooKeeper need a Java runtime, 17 or later, with the module jdk.incubator.vector." >&2
    echo "Install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME to one." >&2
    exit 1
fi
