#!/usr/bin/env bash
# Gradescope runs this once, when the image is built: the project's environment, for marking without a GPU.
set -euo pipefail
cd "$(dirname "$0")/project"
apt-get update
apt-get install -y --no-install-recommends g++ git python3-dev python3-venv
tools/make_venv.sh .venv
