#!/bin/sh
# Runs the installed php-fpm in the foreground with the given configuration file.
set -eu
PATH=$PATH:/usr/sbin:/sbin
for program in php-fpm8.4 php-fpm8.3 php-fpm8.2 php-fpm8.1 php-fpm; do
    if command -v "$program" >/dev/null; then
        if [ "$(id -u)" = 0 ]; then
            exec "$program" --nodaemonize --allow-to-run-as-root --fpm-config "$1"
        fi
        exec "$program" --nodaemonize --fpm-config "$1"
    fi
done
echo "php-fpm is not installed" >&2
exit 127
