#!/bin/sh
# Runs h2o in the foreground with the configuration file that is given.
# As root it keeps root, as nobody might not be able to read the checkout.
set -eu
if [ "$(id -u)" = 0 ]; then
    echo 'user: root' >>"$1"
fi
exec h2o -c "$1"
