# Starts uWSGI with the application $2 on port $1, with the packages of the first python3 in PATH. A thread serves one
# kept connection at a time, so there are as many threads as connections.
exec uwsgi --plugins python3 --home "$(python3 -c 'import sys; print(sys.prefix)')" --master \
    --http11-socket "127.0.0.1:$1" --tcp-nodelay --processes 2 --threads 8 --chdir "$(dirname "$0")" --module "$2" \
    --disable-logging --die-on-term --need-app
