#!/bin/sh
# Runs xsp4 by itself, or behind nginx:
#   start-xsp.sh DIR TMP PORT
#   start-xsp.sh DIR TMP nginx
set -eu
dir=$1 tmp=$2 what=$3
export TMPDIR="$tmp"
[ "$what" = nginx ] || exec xsp4 --nonstop --address 127.0.0.1 --port "$what" --root "$dir/site" --applications "/:$dir/site"
xsp4 --nonstop --address 127.0.0.1 --random-port --root "$dir/site" --applications "/:$dir/site" >"$tmp/xsp.log" 2>&1 &
xsp=$!
port=
until [ -n "$port" ]; do
    # If it dies at its start, its own error is the reason.
    kill -0 "$xsp" 2>/dev/null || { cat "$tmp/xsp.log" >&2; exit 1; }
    sleep 0.1
    port=$(sed -n 's/^Listening on port: \([0-9]*\).*/\1/p' "$tmp/xsp.log")
done
sed "s/@LISTENER@/$port/" "$tmp/nginx-listener.conf" >"$tmp/nginx.conf"
chmod 711 "$tmp"
exec nginx -c "$tmp/nginx.conf"
