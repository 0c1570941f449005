#!/bin/sh
# Runs Apache in the foreground until a signal stops it.
#   sh start-apache.sh DIR TMP CONF
# DIR has the scripts. CONF is in TMP, with its paths filled in. Apache writes all files to TMP.

set -eu
dir=$1 tmp=$2 conf=$3
PATH=$PATH:/usr/sbin:/sbin

APP=$dir
RUN_USER="#$(id -u)"
RUN_GROUP="#$(id -g)"

# The workers of Apache do not run as root. If their user cannot read the scripts (for example in a
# clone in /root), Apache serves a copy in TMP.
if [ "$(id -u)" = 0 ]; then
    name=www-data
    id "$name" >/dev/null 2>&1 || name=nobody
    RUN_USER="#$(id -u "$name")"
    RUN_GROUP="#$(id -g "$name")"
    reaches() {
        setpriv --reuid "$name" --regid "$(id -g "$name")" --clear-groups \
            sh -c 'test -x "$1/report.pl" && test -r "$1/gauges.csv"' sh "$1"
    }
    if ! reaches "$APP"; then
        APP=$tmp/app
        mkdir -p "$APP"
        cp "$dir"/*.pl "$dir"/gauges.csv "$APP"
        chmod 711 "$tmp"
        chmod 755 "$APP" "$APP"/*.pl
        chmod 644 "$APP"/gauges.csv
        if ! reaches "$APP"; then
            echo "$name cannot read $dir, nor a copy in $tmp: set TMPDIR to a folder open to all" >&2
            exit 1
        fi
    fi
fi

export APP RUN_USER RUN_GROUP
exec apache2 -DFOREGROUND -f "$conf"
