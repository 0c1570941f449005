#!/bin/sh
# A FastCGI server for mono on the socket TMP/mono.sock, and a web server in front of it:
#   start-mono.sh DIR TMP COMMAND...
# The first is fastcgi-mono-server4, or FASTCGI_MONO with the same options; HyperFastCgi where TMP
# has a configuration file of it.
set -eu
dir=$1 tmp=$2
shift 2
export TMPDIR="$tmp"
if [ -f "$tmp/hyperfastcgi.config" ]; then
    hyperfastcgi4 "/config=$tmp/hyperfastcgi.config" </dev/null &
else
    "${FASTCGI_MONO:-fastcgi-mono-server4}" "/applications=/:$dir/site" "/socket=unix:$tmp/mono.sock" &
fi
until [ -S "$tmp/mono.sock" ]; do sleep 0.1; done
# nginx's workers are another user where it is started by root.
chmod 666 "$tmp/mono.sock"
chmod 711 "$tmp"
exec "$@"
