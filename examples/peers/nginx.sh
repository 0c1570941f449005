#!/bin/sh
# Runs nginx, or the one of another name in NGINX, in the foreground with the configuration file that is given.
# As root it keeps root for its workers, who might not be able to read the checkout otherwise.
set -eu
PATH=$PATH:/usr/sbin:/sbin
if [ "$(id -u)" = 0 ]; then
    exec "${NGINX:-nginx}" -e stderr -c "$1" -g 'user root;'
fi
exec "${NGINX:-nginx}" -e stderr -c "$1"
