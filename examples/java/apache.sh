#!/bin/sh
# Runs Apache in the foreground with the given configuration file.
set -eu
PATH=$PATH:/usr/sbin:/sbin
exec apache2 -DFOREGROUND -f "$1"
