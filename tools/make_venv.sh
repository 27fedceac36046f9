#!/usr/bin/env bash
# Make DIR a virtual environment with everything in requirements*.txt, at the versions of constraints.txt.
#   tools/make_venv.sh DIR [PYTHON]
# Run again, it mends or updates what is there.  It ends with one message where this machine lacks something.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=$1
least="3, 10"

stop() {
    printf '%s\n' "" "$@" >&2
    exit 2
}

new_enough() {
    "$1" -c "import sys; sys.exit(sys.version_info < ($least))" >/dev/null 2>&1
}

python=${2-}
if [[ -z $python ]]; then
    for candidate in python3 python3.{14,13,12,11,10} python; do
        if new_enough "$candidate"; then
            python=$candidate
            break
        fi
    done
    [[ $python ]] || stop \
        "No Python of 3.10 or newer found (python3 here: $(python3 --version 2>/dev/null || echo none))." \
        "Install one (Debian, Ubuntu: apt install python3 python3-venv; RHEL 9: dnf install python3.12)," \
        "or name it: make PYTHON=/path/to/python3.12"
elif ! command -v "$python" >/dev/null; then
    stop "PYTHON=$python: there is no such command. Name another: make PYTHON=python3.12"
elif ! new_enough "$python"; then
    stop "PYTHON=$python is not a Python of 3.10 or newer ($("$python" --version 2>&1))." \
        "Name another: make PYTHON=python3.12"
fi

"$python" -c "import ensurepip, venv" 2>/dev/null || stop \
    "$("$python" --version) comes without venv or ensurepip, which make .venv." \
    "Install them (Debian, Ubuntu: apt install python3-venv) and run make again."

for tool in g++ git; do
    command -v "$tool" >/dev/null || stop \
        "No $tool found: without a GPU, the CUDA kernels are built by g++." \
        "Install it (Debian, Ubuntu: apt install g++ git; RHEL: dnf install gcc-c++ git) and run make again."
done

include=$("$python" -c "import sysconfig; print(sysconfig.get_paths()['include'])")
[[ -e $include/Python.h ]] || printf '%s\n' \
    "Note: $include/Python.h is missing, so rows that compile C++ against Python (pybind.*, torch.compile)" \
    "will be unavailable. It comes with apt install python3-dev or dnf install python3-devel." >&2

# An environment that was moved, or whose Python has gone or is too old, is made anew.
if ! new_enough "$dir/bin/python" || ! "$dir/bin/python" -m pip --version >/dev/null 2>&1; then
    rm -rf "$dir"
    "$python" -m venv "$dir"
fi

echo "Installing into $dir: a few minutes the first time, most of it PyTorch and CUDA's compiler."
if ! command -v nvidia-smi >/dev/null && [[ -z ${PIP_EXTRA_INDEX_URL-}${PIP_INDEX_URL-}${PIP_FIND_LINKS-} ]]; then
    echo "No NVIDIA GPU here: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make ... saves about 3 GB."
fi
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
    --constraint constraints.txt --requirement requirements.txt --requirement requirements-dev.txt ||
    stop "pip could not install what the project needs; its own message is above." \
        "Mostly the network is at fault: run make again, and it goes on from where it stopped."
