#!/usr/bin/env bash
# Install the other libraries into environments of their own, apart from yours:
#
#     benchmarks/install_peers.sh [folder]        (default: benchmarks/.peers)
#
# "latest" has the newest release of everything; "older" has the last scikit-learn (1.7) with which
# diffprivlib 0.6.6 imports. `python -m benchmarks peers` uses the first of the two in which a
# library imports, and prints the error of the other. SKDP_PEERS names the folder if it is elsewhere.
set -euo pipefail
folder=${1:-"$(dirname "${BASH_SOURCE[0]}")/.peers"}
python=${PYTHON:-python3}

install() {
  "$python" -m venv "$folder/$1"
  "$folder/$1/bin/pip" install -q diffprivlib "opendp[scikit-learn]" threadpoolctl "$2"
  "$folder/$1/bin/pip" freeze > "$folder/$1/freeze.txt"
  echo "$1: $(tr '\n' ' ' < "$folder/$1/freeze.txt")"
}

mkdir -p "$folder"
install latest "scikit-learn"
install older "scikit-learn<1.8"
