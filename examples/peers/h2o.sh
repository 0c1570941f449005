#!/bin/sh
# Runs h2o in the foreground with the given configuration file.
# Started by root it stays root, because the user nobody may not be able to read the checkout.
set -eu
if [ "$(id -u)" = 0 ]; then
    echo 'user: root' >>"$1"
fi
exec h2o -c "$1"
