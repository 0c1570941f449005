#!/bin/sh
# Runs nginx and fcgiwrap in the foreground until a signal stops them.
#   sh start-nginx-fcgiwrap.sh TMP
# TMP has nginx.conf with its paths filled in. Both write all files to TMP.

set -eu
tmp=$1
PATH=$PATH:/usr/sbin:/sbin

# As many as there are connections in the experiment.
fcgiwrap -f -c 10 -s "unix:$tmp/fcgiwrap.sock" &
wrap=$!

# Started by root, nginx would run its workers as a user who may not be able to read the scripts.
if [ "$(id -u)" = 0 ]; then
    nginx -c "$tmp/nginx.conf" -g 'user root;' &
else
    nginx -c "$tmp/nginx.conf" &
fi
front=$!

trap 'kill "$front" 2>/dev/null || :' HUP INT TERM
status=0
wait "$front" || status=$?
# A signal ends the first wait before nginx has stopped.
if [ "$status" -gt 128 ]; then
    status=0
    wait "$front" || status=$?
fi

# fcgiwrap's first process leaves its children behind.
children=$(cat "/proc/$wrap/task/$wrap/children" 2>/dev/null || :)
# shellcheck disable=SC2086 # a list of numbers
kill "$wrap" $children 2>/dev/null || :
wait "$wrap" 2>/dev/null || :
# They are not children of this shell, so it cannot `wait` for them: it polls for 5 s at most.
tries=100
for child in $children; do
    while [ "$tries" -gt 0 ] && kill -0 "$child" 2>/dev/null; do
        sleep 0.05
        tries=$((tries - 1))
    done
done
exit "$status"
