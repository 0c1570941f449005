# For the scripts in this directory: a temporary directory, and servers that end with the script.
# shellcheck shell=sh disable=SC2034 # `address` and `pid` are for the caller

tmp=$(mktemp -d)
chmod 755 "$tmp"
others=""
end_all() {
    for id in $others; do
        kill "$id" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    rm -rf "$tmp"
}
trap end_all EXIT
trap 'exit 130' HUP INT TERM

# NAME CONFIGURATION: starts `forebay serve`; sets `address` and `pid`.
start_forebay() {
    printf '%s\n' "$2" >"$tmp/$1.toml"
    # One thread for each server, because the clients need the other core.
    "$forebay" serve --threads "${THREADS:-1}" "$tmp/$1.toml" 2>"$tmp/$1.log" &
    pid=$!
    others="$others $pid"
    for _ in $(seq 100); do
        address=$(sed -n 's|^forebay: serving http://||p' "$tmp/$1.log" | head -n 1)
        [ -z "$address" ] || return 0
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    echo "$1 did not start:" >&2
    cat "$tmp/$1.log" >&2
    exit 3
}

# PID: prints the number of open descriptors of this process.
descriptors() {
    ls "/proc/$1/fd" | wc -l | tr -d ' '
}

# PID: prints the anonymous memory of this process in KiB.
resident() {
    sed -n 's/^RssAnon:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$1/status"
}
