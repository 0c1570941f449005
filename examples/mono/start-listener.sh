#!/bin/sh
# Compiles Hello.cs into TMP and runs it, by itself or behind nginx:
#   start-listener.sh DIR TMP PORT
#   start-listener.sh DIR TMP nginx
set -eu
dir=$1 tmp=$2 what=$3
mcs -r:System.Web.Extensions "-out:$tmp/Hello.exe" "$dir/Hello.cs"
[ "$what" = nginx ] || exec mono "$tmp/Hello.exe" "$what"
mono "$tmp/Hello.exe" 0 "$tmp/listener.new" &
until [ -s "$tmp/listener.new" ]; do sleep 0.1; done
sed "s/@LISTENER@/$(cat "$tmp/listener.new")/" "$tmp/nginx-listener.conf" >"$tmp/nginx.conf"
chmod 711 "$tmp"
exec nginx -c "$tmp/nginx.conf"
