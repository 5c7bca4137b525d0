#!/bin/sh
# check.sh SOURCE: what the image's cpu target does, step by step, in a clean directory: build, install, serve, health, drain.
set -eu
source_=$1
place=$(mktemp -d)
server=
finish() {
    [ -z "$server" ] || kill -9 "$server" 2>/dev/null || true
    rm -rf "$place"
}
trap finish EXIT
sh "$source_/deploy/image/make_wheel.sh" "$source_" "$place/wheel"
sh "$source_/deploy/image/install.sh" "$place/wheel" "$place/environment"
cd "$place"
"$place/environment/bin/firsttoken" serve simulated:instant --grpc.port 50951 --http.enabled false >"$place/log" 2>&1 &
server=$!
tries=0
until "$place/environment/bin/python" -m firsttoken.health 127.0.0.1:50951; do
    tries=$((tries + 1))
    if [ "$tries" -gt 60 ] || ! kill -0 "$server" 2>/dev/null; then
        cat "$place/log"
        exit 1
    fi
    sleep 0.5
done
kill -TERM "$server"
wait "$server"
server=
echo "the cpu image's steps work: built, installed, healthy, drained"
