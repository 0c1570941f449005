#!/bin/sh
# Runs Debian's Jetty 9.4 in the foreground: jetty.sh FOLDER PORT, for HTTP/1.1 and HTTP/2 with prior knowledge, with the
# pages of this example. It writes its files to FOLDER/jetty.
set -eu
dir=$(dirname "$0")
base=$1/jetty
mkdir -p "$base/webapps/ROOT" "$base/tmp"
cp "$dir"/*.jsp "$base/webapps/ROOT/"
sed "s/^jetty.http.port=.*/jetty.http.port=$2/" "$dir/start.ini" >"$base/start.ini"
cd "$base"
exec java -Xmx256m -Djava.io.tmpdir="$base/tmp" -jar /usr/share/jetty9/start.jar \
    jetty.home=/usr/share/jetty9 jetty.base="$base"
