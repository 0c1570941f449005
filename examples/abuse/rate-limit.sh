#!/bin/sh
# Eight clients send ten times as many requests as `rate_limit` allows, to a server with two threads. The script prints
# the number of admitted requests beside the allowed number, and fails if they differ by more than 2 %.
# The allowed number is that of the rate, and a burst of one second at the start.
#   sh examples/abuse/rate-limit.sh [SECONDS] [RATE]
set -eu

here=$(cd "$(dirname "$0")" && pwd)
forebay=${FOREBAY:-$here/../../target/release/forebay}
seconds=${1:-10}
rate=${2:-100}

# shellcheck source=common.sh
. "$here/common.sh"

THREADS=2
start_forebay limited "[[site]]
listen = [\"127.0.0.1:0\"]
[[site.route]]
path = \"/*\"
rate_limit = { rate = \"$rate/s\" }
respond = \"admitted\""

"$forebay" bench -c 8 -t 1 -r $((10 * rate)) -d "${seconds}s" --allow-failures --json "$tmp/result.json" \
    "http://$address/" >"$tmp/bench.log" || { cat "$tmp/bench.log" >&2; exit 1; }

python3 - "$tmp/result.json" "$rate" <<'END'
import json
import sys

with open(sys.argv[1]) as file:
    result = json.load(file)
rate = int(sys.argv[2])
admitted = result["requests"]["status"].get("200", 0)
allowed = rate * (result["duration_s"] + 1)
percent = 100 * admitted / allowed
print(f"{admitted} of {result['requests']['completed']} requests admitted, {percent:.2f} % of {allowed:.0f}")
sys.exit(abs(percent - 100) > 2)
END
