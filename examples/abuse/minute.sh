#!/bin/sh
# Kills workers at random under load. minute.sh [SECONDS] [MODE]; the program is target/release/forebay
# or $FOREBAY.
set -eu
seconds=${1:-60}
mode=${2:-registry}
here=$(cd "$(dirname "$0")" && pwd)
forebay=${FOREBAY:-$here/../../target/release/forebay}
url=http://127.0.0.1:8193/time.pl

tmp=$(mktemp -d)
cp -r "$here/scripts" "$tmp"
sed "s/MODE/$mode/" "$here/site.toml" >"$tmp/site.toml"
"$forebay" serve "$tmp/site.toml" >"$tmp/log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null || true; wait $server 2>/dev/null || true; rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

# Prints the children except shells, which guard the workers.
workers() {
    for pid in $(cat /proc/$server/task/*/children 2>/dev/null); do
        { tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -q '^/bin/sh' || echo "$pid"
    done
}

tries=0
until [ "$(workers | wc -l)" = 4 ]; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { cat "$tmp/log"; exit 1; }
    sleep 0.1
done

"$forebay" bench "$url" -c 16 -d "${seconds}s" --allow-failures --quiet --json "$tmp/result" &
bench=$!
kills=0
while kill -0 $bench 2>/dev/null; do
    all=$(workers)
    set -- $all
    if [ $# -gt 0 ]; then
        shift $((kills % $#))
        kill -9 "$1" 2>/dev/null && kills=$((kills + 1))
    fi
    if [ $((kills % 10)) = 0 ]; then
        cp "$here/scripts/time.pl" "$tmp/scripts/new" && mv "$tmp/scripts/new" "$tmp/scripts/time.pl"
        kill -HUP $server
    fi
    sleep 0.1
done
wait $bench || true
echo "$kills workers killed in $seconds s, mode $mode. What clients saw:"
sed -n '/"completed"/p; /"failed"/p; /"status"/,/}/p' "$tmp/result"
sleep 1
echo "workers afterwards: $(workers | wc -l) of 4"
