#!/bin/sh
# Runs a new PostgreSQL until a signal stops it: data in TMP/data, no TCP, the socket in TMP.
#   sh start-postgres.sh TMP
# Nothing is flushed to disk, because the data is deleted afterwards.

set -eu
tmp=$1
for bin in /usr/lib/postgresql/*/bin; do :; done
[ -x "$bin/postgres" ] || bin=$(dirname "$(command -v postgres)")

# PostgreSQL refuses to run as root.
as=
if [ "$(id -u)" = 0 ]; then
    name=postgres
    id "$name" >/dev/null 2>&1 || name=nobody
    as="setpriv --reuid $name --regid $(id -g "$name") --clear-groups"
    chmod 711 "$tmp"
    mkdir -p "$tmp/data"
    chown "$name" "$tmp" "$tmp/data"
fi

cd "$tmp"
[ -e data/PG_VERSION ] ||
    $as "$bin/initdb" -D "$tmp/data" -U postgres --auth=trust --no-sync >"$tmp/initdb.log" 2>&1 ||
    { cat "$tmp/initdb.log" >&2; exit 1; }

# After SIGTERM it would wait for all clients to disconnect; SIGINT ends it at once, cleanly.
trap 'kill -INT $server 2>/dev/null || true' TERM INT HUP
$as "$bin/postgres" -D "$tmp/data" -k "$tmp" -c listen_addresses= -c fsync=off \
    -c synchronous_commit=off -c shared_buffers=16MB -c max_connections=50 &
server=$!
wait $server || true
# The first wait ends with the signal, this one with the server.
wait $server 2>/dev/null || true
