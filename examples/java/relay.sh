#!/bin/sh
# Builds relay.c in the given directory and runs it.
#   relay.sh DIRECTORY PORT BACKEND_PORT copy|splice
set -eu
cc -O2 -Wall -Wextra -o "$1/relay" "$(dirname "$0")/relay.c"
exec "$1/relay" "$2" "$3" "$4"
