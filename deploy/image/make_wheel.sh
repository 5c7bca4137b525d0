#!/bin/sh
# make_wheel.sh SOURCE WHEELS: the project's own wheel, built by itself, nothing else.
set -eu
source_=$1
wheels=$2
mkdir -p "$wheels"
python3 -m pip wheel --quiet --disable-pip-version-check --no-cache-dir --no-deps --wheel-dir "$wheels" "$source_"
