#!/bin/sh
# Installs what exported shaders are tested with through apt when run as root, otherwise says what to install.
# Silent when everything is there.
set -eu

missing=
command -v glslangValidator >/dev/null || missing="$missing glslang-tools"
ls /usr/share/vulkan/icd.d/*.json >/dev/null 2>&1 || missing="$missing mesa-vulkan-drivers"
command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing="$missing chromium"
command -v cc >/dev/null || missing="$missing gcc libc6-dev"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "coopnet: installing$missing"
    apt-get update -qq
    # shellcheck disable=SC2086 # several packages
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
    echo "coopnet: tests of what is missing are skipped; on Debian and Ubuntu install:$missing" >&2
fi
