#!/bin/sh
# Runs nginx, or the program in NGINX, in the foreground with the given configuration file.
# Started by root it keeps root for its workers, because another user may not be able to read the checkout.
set -eu
PATH=$PATH:/usr/sbin:/sbin
if [ "$(id -u)" = 0 ]; then
    exec "${NGINX:-nginx}" -e stderr -c "$1" -g 'user root;'
fi
exec "${NGINX:-nginx}" -e stderr -c "$1"
