#!/bin/sh
# Installs the system packages that coopnet needs through apt when run as root, otherwise says what to install.
# Silent and quick when everything is there. Usage: setup-system.sh [PYTHON]
set -eu
cd "$(dirname "$0")/.."
python=${1:-python3}

can_install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null
}

install() {
    echo "coopnet: installing $*"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# The finder is the library's own, so that there is one definition of a suitable LLVM.
llvm() {
    "$python" coopnet/backend/llvm.py
}

if ! command -v "$python" >/dev/null || ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if can_install; then
        install python3 python3-venv
    fi
    "$python" -c 'import ensurepip, venv' 2>/dev/null || {
        echo "coopnet: install Python 3.10 or newer with its venv module (Debian and Ubuntu: python3 python3-venv)." >&2
        exit 1
    }
fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "coopnet: $python is older than Python 3.10; name a newer one with PYTHON=..." >&2
    exit 1
}

if ! finding=$(llvm); then
    # A variable that names an unsuitable library is the user's to mend: no package helps.
    if [ -z "${DRJIT_LIBLLVM_PATH:-}" ] && can_install; then
        install libllvm19
        finding=$(llvm) && exit 0
    fi
    echo "coopnet: $finding" >&2
    exit 1
fi
