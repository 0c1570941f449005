#!/bin/sh
# Runs Apache with mod_mono in the foreground, with a copy of the application that its user can read:
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
# The directories for compiled pages and for the shared files of the mono processes.
export RUN_USER RUN_GROUP TMPDIR="$tmp/mono" HOME="$tmp/mono"
exec apache2 -DFOREGROUND -f "$tmp/apache.conf" "$@"
