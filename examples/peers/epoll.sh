#!/bin/sh
# Builds epoll.c in the directory that is given and runs it at the port that is given.
#   epoll.sh DIRECTORY PORT
set -eu
cc -O2 -Wall -Wextra -o "$1/epoll" "$(dirname "$0")/epoll.c"
exec "$1/epoll" "$2"
