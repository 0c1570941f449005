#!/bin/sh
# Runs Apache in the foreground until a signal stops it.
#   sh start-apache.sh DIR TMP CONF
# Started by root, it runs as www-data with a copy of the handler that this user can read.

set -eu
dir=$1 tmp=$2 conf=$3
PATH=$PATH:/usr/sbin:/sbin

APP=$dir/lib
RUN_USER="#$(id -u)"
RUN_GROUP="#$(id -g)"
if [ "$(id -u)" = 0 ]; then
    RUN_USER=www-data RUN_GROUP=www-data
    mkdir -p "$tmp/lib"
    cp "$dir"/lib/*.pm "$tmp/lib"
    APP=$tmp/lib
    chmod 711 "$tmp"
    chmod -R a+rX "$APP"
fi
export APP RUN_USER RUN_GROUP
exec apache2 -DFOREGROUND -f "$conf"
