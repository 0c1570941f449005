#!/bin/sh
# Sends 100,000 requests, and prints the memory after each tenth. flat.sh [REQUESTS] [KIND]: KIND
# is perl-cgi, psgi, python-cgi, wsgi, php or mono; the program is target/release/forebay or
# $FOREBAY.
set -eu
requests=${1:-100000}
kind=${2:-perl-cgi}
here=$(cd "$(dirname "$0")" && pwd)
forebay=${FOREBAY:-$here/../../target/release/forebay}
# shellcheck source=common.sh
. "$here/common.sh"

examples=$(dirname "$here")
cp -r "$here/scripts" "$examples/python" "$examples/plack" "$examples/mono" "$tmp"
echo '<?php header("Content-Type: text/plain"); echo date("c");' >"$tmp/scripts/time.php"
target=/
case $kind in
perl-cgi) keys='dir = "scripts"' target=/time.pl ;;
psgi) keys='file = "plack/app.psgi"' ;;
python-cgi) keys='dir = "python"' target=/time.py ;;
wsgi) keys='module = "app:application"
dir = "python"' ;;
php) keys='root = "scripts"' target=/time.php ;;
mono) keys='dir = "mono/site"' target=/hello.ashx ;;
*) echo "flat.sh: no kind $kind" >&2; exit 2 ;;
esac
case $kind in python-cgi | wsgi) keys="$keys
python = \"/usr/bin/python3\"" ;; esac
# PHP does not run as root.
[ "$kind" != php ] || [ "$(id -u)" != 0 ] || keys="$keys
user = \"www-data\""

start_forebay flat "[log]
access = \"off\"
[[site]]
listen = \"127.0.0.1:0\"
[[site.route]]
path = \"/*\"
app = \"flat\"
[app.flat]
kind = \"$kind\"
$keys
workers = 4"

# PID: prints the ids of this process and of all its descendants.
all_of() {
    echo "$1"
    for child in $(cat "/proc/$1/task"/*/children); do
        all_of "$child"
    done
}

memory() {
    # shellcheck disable=SC2154 # common.sh sets it
    for process in $(all_of "$pid"); do
        printf '%7d' "$(resident "$process")"
    done
    echo
}

echo "$kind: KiB of its own, of forebay and then of each process that it has started:"
for tenth in 1 2 3 4 5 6 7 8 9 10; do
    # If a single request fails, `bench` exits with 1, which ends this script.
    "$forebay" bench "http://$address$target" -c 16 -n $((requests / 10)) --quiet >/dev/null
    printf '%3d%%' $((tenth * 10))
    memory
done
echo "$requests requests, none failed"
