#!/bin/sh
# Builds epoll.c in the given directory and runs it on the given port.
#   epoll.sh DIRECTORY PORT
set -eu
cc -O2 -Wall -Wextra -o "$1/epoll" "$(dirname "$0")/epoll.c"
exec "$1/epoll" "$2"
