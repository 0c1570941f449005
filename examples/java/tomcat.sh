#!/bin/sh
# Runs Debian's Tomcat 10 in the foreground: tomcat.sh FOLDER CONNECTORS, with CONNECTORS as its server.xml and the
# pages of this example. It writes its files to FOLDER/tomcat.
set -eu
dir=$(dirname "$0")
base=$1/tomcat
mkdir -p "$base/conf" "$base/logs" "$base/temp" "$base/work" "$base/webapps/ROOT/WEB-INF"
cp "$2" "$base/conf/server.xml"
cp "$dir/web.xml" "$base/webapps/ROOT/WEB-INF/"
cp "$dir"/*.jsp "$base/webapps/ROOT/"
export CATALINA_HOME=/usr/share/tomcat10 CATALINA_BASE="$base" CATALINA_OPTS="-Xmx256m"
exec "$CATALINA_HOME/bin/catalina.sh" run
