#!/bin/sh
# fastcgi-mono-server4, or FASTCGI_MONO with the same options, and nginx in front of it:
# start-nginx-mono.sh DIR TMP
set -eu
export TMPDIR="$2"
"${FASTCGI_MONO:-fastcgi-mono-server4}" "/applications=/:$1/site" "/socket=unix:$2/mono.sock" &
until [ -S "$2/mono.sock" ]; do sleep 0.1; done
# nginx's workers are another user where it is started by root.
chmod 666 "$2/mono.sock"
chmod 711 "$2"
exec nginx -c "$2/nginx.conf"
