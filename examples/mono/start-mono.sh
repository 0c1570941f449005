#!/bin/sh
# Runs a FastCGI server for mono on the socket TMP/mono.sock, and a web server in front of it:
#   start-mono.sh DIR TMP COMMAND...
# The FastCGI server is HyperFastCgi if TMP has its configuration file, otherwise fastcgi-mono-server4, or the program
# in FASTCGI_MONO with the options of fastcgi-mono-server4.
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
# If root starts nginx, its workers run as another user.
chmod 666 "$tmp/mono.sock"
chmod 711 "$tmp"
exec "$@"
