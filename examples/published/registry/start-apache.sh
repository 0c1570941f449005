#!/bin/sh
# Runs Apache in the foreground until a signal stops it.
#   sh start-apache.sh DIR TMP CONF
# Started by root, it runs as www-data with a copy of the scripts that this user can read.

set -eu
dir=$1 tmp=$2 conf=$3
PATH=$PATH:/usr/sbin:/sbin

SCRIPTS=$dir/scripts
RUN_USER="#$(id -u)"
RUN_GROUP="#$(id -g)"
if [ "$(id -u)" = 0 ]; then
    RUN_USER=www-data RUN_GROUP=www-data
    mkdir -p "$tmp/scripts"
    cp "$dir"/scripts/*.pl "$tmp/scripts"
    SCRIPTS=$tmp/scripts
    chmod 755 "$SCRIPTS" "$SCRIPTS"/*.pl
    chmod 711 "$tmp"
fi
export SCRIPTS RUN_USER RUN_GROUP
exec apache2 -DFOREGROUND -f "$conf"
