# Starts uWSGI with the application $2 on port $1, with the packages of the first python3 in PATH.
exec uwsgi --plugins http,python3 --home "$(python3 -c 'import sys; print(sys.prefix)')" --master \
    --http "127.0.0.1:$1" --http-keepalive --processes 2 --chdir "$(dirname "$0")" --module "$2" \
    --disable-logging --die-on-term --need-app
