#!/bin/sh
# Sends requests to Tomcat and Jetty through one front after the other: 700 MB down, 700 MB up, and 170 slow requests at once.
# Prints a row for each: MB/s and processor time for a MB, of the front and of the container, both ways; threads of the front
# before and during the slow requests, connections to the container then, and the number of answered requests.
#   fronts.sh [MB [LINES [MS]]]      700, 10 and 1000: a slow request is LINES lines, one each MS ms
# Set FOREBAY to the program if it is not in PATH.
set -eu
export PATH="$PATH:/usr/sbin:/sbin"
dir=$(cd "$(dirname "$0")" && pwd)
mb=${1:-700} lines=${2:-10} ms=${3:-1000}
forebay=${FOREBAY:-forebay}
tmp=$(mktemp -d)
chmod 755 "$tmp"
containers='' pid=''
end() {
    for one in $containers $pid; do kill "$one" 2>/dev/null || :; done
    for one in $containers $pid; do wait "$one" 2>/dev/null || :; done
    rm -rf "$tmp"
}
trap end EXIT
trap 'exit 130' HUP INT TERM

free_port() {
    perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1:0")->sockport'
}

# Copies a template with its placeholders filled in: fill NAME FOLDER PORT.
fill() {
    mkdir -p "$2"
    sed -e "s|{tmp}|$2|g" -e "s|{port}|$3|g" -e "s|{tomcat.port}|$ajp|g" -e "s|{http.port}|$http|g" \
        -e "s|{jetty.port}|$jetty|g" "$dir/$1" >"$2/$1"
}

# Waits until a process listens on a port: listens PORT.
listens() {
    for _ in $(seq 600); do
        perl -MIO::Socket::INET -e 'exit !IO::Socket::INET->new(PeerAddr => "127.0.0.1:$ARGV[0]")' "$1" && return
        sleep 0.1
    done
    echo "nobody listens on $1" >&2
    cat "$tmp"/*.log >&2
    exit 1
}

# The processes of a front.
processes() { echo "$1" && pgrep -P "$1" || :; }

# Processor time in ms and threads of a front.
cpu() {
    for one in $(processes "$1"); do sed 's/.*) //' "/proc/$one/stat"; done |
        awk -v tick="$(getconf CLK_TCK)" '{ sum += $12 + $13 } END { printf "%d", sum * 1000 / tick }'
}
threads() { for one in $(processes "$1"); do ls "/proc/$one/task"; done | wc -l; }

# Established connections to a port.
connections() {
    awk -v port="$(printf ':%04X$' "$1")" '$3 ~ port && $4 == "01"' /proc/net/tcp /proc/net/tcp6 | wc -l
}

# Runs a front and sends the requests: front NAME TEMPLATE CONTAINER COMMAND...
front() {
    name=$1 template=$2 container=$3
    shift 3
    port=$(free_port)
    folder=$tmp/$(echo "$name" | tr -dc a-zA-Z0-9)
    fill "$template" "$folder" "$port"
    "$@" "$folder/$template" >"$folder.log" 2>&1 &
    pid=$!
    listens "$port"
    ask "$name" "$pid" "$port" "$container"
    kill "$pid" && wait "$pid" || :
    pid=
}

# Sends the requests to the server on a port, in the process $2: ask NAME PROCESS PORT CONTAINER. CONTAINER is
# PROCESS:PORT.
ask() {
    url=http://127.0.0.1:$3 behind=${4%:*} bench_url=$scheme://127.0.0.1:$3
    # Meanwhile the container compiles its pages and the virtual machine compiles the container.
    curl -sf $prior_knowledge -o /dev/null "$url/large.jsp?mb=$mb"
    curl -sf $prior_knowledge -o /dev/null -T "$tmp/body" -H Expect: -X POST "$url/count.jsp?piece=32768"
    curl -sf $prior_knowledge -o /dev/null "$url/lines.jsp?n=1&ms=1"
    at=$(cpu "$2") at_behind=$(cpu "$behind")
    down=$(curl -sf $prior_knowledge -o /dev/null -w '%{size_download} %{time_total}' "$url/large.jsp?mb=$mb")
    down="$down $(($(cpu "$2") - at)) $(($(cpu "$behind") - at_behind))"
    at=$(cpu "$2") at_behind=$(cpu "$behind")
    up=$(curl -sf $prior_knowledge -T "$tmp/body" -H Expect: -w ' %{time_total}' -X POST "$url/count.jsp?piece=32768")
    up="$up $(($(cpu "$2") - at)) $(($(cpu "$behind") - at_behind))"
    idle=$(threads "$2")
    "$forebay" bench -c 170 -n 170 --timeout 30m --json "$tmp/slow.json" "$bench_url/lines.jsp?n=$lines&ms=$ms" \
        >"$tmp/bench.log" 2>&1 &
    bench=$!
    # Counts in the middle of the slow requests.
    sleep "$(awk "BEGIN { print $lines * $ms / 2000 }")"
    during=$(threads "$2") open=$(connections "${4#*:}")
    wait "$bench" || :
    echo "$1|$mb $down $up|$idle, $during | $open | $(answered "$tmp/slow.json") |" | awk -F '|' '{
        split($2, n, " ")
        if (n[2] != n[1] * 1048576 || n[6] != n[2]) { print $1 ": " n[2] " bytes down, " n[6] " up"; exit 1 }
        printf "| %s | %.0f | %.2f, %.2f | %.0f | %.2f, %.2f | %s|%s|%s|\n", $1, n[1] / n[3], n[4] / n[1], n[5] / n[1],
            n[1] / n[7], n[8] / n[1], n[9] / n[1], $3, $4, $5 }'
}

answered() { perl -MJSON::PP -0ne '$r = decode_json $_; print $r->{requests}{status}{200} // 0' "$1"; }

ajp=$(free_port) http=$(free_port) jetty=$(free_port)
truncate -s "${mb}M" "$tmp/body"
fill ajp-server.xml "$tmp/ajp" "$ajp"
fill http-server.xml "$tmp/http" "$http"
sh "$dir/tomcat.sh" "$tmp/ajp" "$tmp/ajp/ajp-server.xml" >"$tmp/ajp.log" 2>&1 & by_ajp=$!:$ajp containers=$!
sh "$dir/tomcat.sh" "$tmp/http" "$tmp/http/http-server.xml" >"$tmp/http.log" 2>&1 & by_http=$!:$http containers="$containers $!"
sh "$dir/jetty.sh" "$tmp/jetty" "$jetty" >"$tmp/jetty.log" 2>&1 & by_jetty=$!:$jetty containers="$containers $!"
listens "$ajp"
listens "$http"
listens "$jetty"

echo '| front, protocol, container | down MB/s | CPU ms/MB | up MB/s | CPU ms/MB | threads before, during | connections | answered |'
echo '|---|---|---|---|---|---|---|---|'
# The protocol of the clients.
scheme=http prior_knowledge=
ask 'Tomcat, HTTP/1.1, directly' "${by_http%:*}" "$http" "$by_http"
ask 'Jetty, HTTP/1.1, directly' "${by_jetty%:*}" "$jetty" "$by_jetty"
scheme=h2c prior_knowledge=--http2-prior-knowledge
ask 'Tomcat, HTTP/2, directly' "${by_http%:*}" "$http" "$by_http"
ask 'Jetty, HTTP/2, directly' "${by_jetty%:*}" "$jetty" "$by_jetty"
scheme=http prior_knowledge=
front 'Forebay, AJP, Tomcat' ajp-forebay.toml "$by_ajp" "$forebay" serve
front 'Forebay, HTTP/2, Tomcat' forebay-h2c.toml "$by_http" "$forebay" serve
front 'Forebay, HTTP/2, Jetty' forebay-jetty.toml "$by_jetty" "$forebay" serve
front 'Forebay, HTTP/1.1, Tomcat' forebay-http.toml "$by_http" "$forebay" serve
front 'nginx, HTTP/1.1, Tomcat' nginx.conf "$by_http" sh "$dir/../peers/nginx.sh"
front 'Apache, mod_jk, Tomcat' ajp-jk.conf "$by_ajp" sh "$dir/apache.sh"
front 'Apache, mod_proxy_ajp, Tomcat' ajp-proxy.conf "$by_ajp" sh "$dir/apache.sh"
