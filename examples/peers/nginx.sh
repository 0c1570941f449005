#!/bin/sh
# Runs nginx in the foreground with the configuration file that is given.
# As root it keeps root for its workers, who might not be able to read the checkout otherwise.
set -eu
PATH=$PATH:/usr/sbin:/sbin
if [ "$(id -u)" = 0 ]; then
    exec nginx -c "$1" -g 'user root;'
fi
exec nginx -c "$1"
