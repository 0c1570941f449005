#!/bin/sh
# Runs a PSGI server on TMP/app.sock with start_server, and nginx in front of it, until a signal stops them.
#   sh start-behind-nginx.sh TMP CONF SERVER OPTIONS... APP
set -eu
tmp=$1 conf=$2
shift 2
start_server --path "$tmp/app.sock" -- plackup -E deployment -s "$@" &
server=$!
trap 'kill -TERM $server $front 2>/dev/null || true' TERM INT HUP
while [ ! -S "$tmp/app.sock" ]; do
    kill -0 $server || exit 1
    sleep 0.05
done
PATH=$PATH:/usr/sbin:/sbin
if [ "$(id -u)" = 0 ]; then
    nginx -c "$conf" -g 'user root;' &
else
    nginx -c "$conf" &
fi
front=$!
# The first wait ends with the signal, the second with the servers.
wait $front || true
kill -TERM $server $front 2>/dev/null || true
wait || true
