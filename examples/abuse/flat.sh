#!/bin/sh
# 100,000 requests, and the memory after each tenth. flat.sh [REQUESTS]; the program is
# target/release/forebay or $FOREBAY.
set -eu
requests=${1:-100000}
here=$(cd "$(dirname "$0")" && pwd)
forebay=${FOREBAY:-$here/../../target/release/forebay}
url=http://127.0.0.1:8193/time.pl

tmp=$(mktemp -d)
cp -r "$here/scripts" "$tmp"
sed "s/MODE/registry/" "$here/site.toml" >"$tmp/site.toml"
"$forebay" serve "$tmp/site.toml" >"$tmp/log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null || true; wait $server 2>/dev/null || true; rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
tries=0
until "$forebay" bench "$url" -n 100 --quiet >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 50 ] || { cat "$tmp/log"; exit 1; }
    sleep 0.1
done

memory() {
    for pid in $server $(cat /proc/$server/task/*/children); do
        awk '/^VmRSS/ { printf "%6d", $2 }' "/proc/$pid/status"
    done
    echo
}

echo "resident KiB of forebay, then of each child (the first is a shell that guards the others):"
for tenth in 1 2 3 4 5 6 7 8 9 10; do
    # Its exit code is 1 if a single request fails.
    "$forebay" bench "$url" -c 16 -n $((requests / 10)) --quiet >/dev/null
    printf '%3d%%' $((tenth * 10))
    memory
done
echo "$requests requests, none failed"
