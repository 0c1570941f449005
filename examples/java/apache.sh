#!/bin/sh
# Runs Apache in the foreground with the configuration file that is given.
set -eu
PATH=$PATH:/usr/sbin:/sbin
exec apache2 -DFOREGROUND -f "$1"
