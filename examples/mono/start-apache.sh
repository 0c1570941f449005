#!/bin/sh
# Apache with mod_mono, in the foreground, with a copy of the application that its user can read:
# start-apache.sh DIR TMP [OPTION...]
set -eu
dir=$1 tmp=$2
shift 2
PATH=$PATH:/usr/sbin:/sbin
RUN_USER="#$(id -u)"
RUN_GROUP="#$(id -g)"
cp -r "$dir/site" "$tmp/site"
if [ "$(id -u)" = 0 ]; then
    RUN_USER=www-data
    RUN_GROUP=www-data
    chown -R www-data "$tmp/site"
    mkdir "$tmp/mono"
    chown www-data "$tmp/mono"
    chmod 711 "$tmp"
else
    mkdir "$tmp/mono"
fi
# Where mono compiles, and where it keeps what its processes share.
export RUN_USER RUN_GROUP TMPDIR="$tmp/mono" HOME="$tmp/mono"
exec apache2 -DFOREGROUND -f "$tmp/apache.conf" "$@"
