#!/bin/sh
# install.sh WHEELS ENVIRONMENT [--system-site-packages]: an environment with the project in it.
# With the base's packages visible, each of them keeps its version: what would need another one fails here, not while serving.
set -eu
wheels=$1
environment=$2
visible=${3:-}
python3 -m venv ${visible:+"$visible"} "$environment"
constraints=$(mktemp)
if [ -n "$visible" ]; then
    # Names with a path or an address instead of a version cannot constrain; they are not ours to move either.
    python3 -m pip list --format=freeze --disable-pip-version-check | grep -E '^[A-Za-z0-9._-]+==[A-Za-z0-9.!]+$' >"$constraints"
fi
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
    --constraint "$constraints" "$wheels"/firsttoken-*.whl
rm -f "$constraints"
"$environment/bin/firsttoken" version
