# Runs a web application of Java in Debian's servlet container, with a private directory that Forebay removes: the
# directory, the port, the WAR file (or a directory with WEB-INF). CATALINA_HOME or JETTY_HOME names another container.
set -eu
base=$1/container port=$2 war=$3
jetty=${JETTY_HOME:-} tomcat=${CATALINA_HOME:-}
if [ -z "$jetty$tomcat" ]; then
    for home in /usr/share/tomcat11 /usr/share/tomcat10 /usr/share/tomcat9; do
        [ -z "$tomcat" ] && [ -e "$home/bin/catalina.sh" ] && tomcat=$home
    done
    [ -n "$tomcat" ] || jetty=/usr/share/jetty9
fi
mkdir -p "$base/webapps" "$base/tmp"
if [ -n "$jetty" ]; then
    if [ ! -e "$jetty/start.jar" ]; then
        echo "there is no servlet container: install tomcat10 or jetty9, or set CATALINA_HOME or JETTY_HOME in env" >&2
        exit 1
    fi
    # A property, because a path in XML would need escapes.
    cat >"$base/webapps/ROOT.xml" <<'END'
<?xml version="1.0"?>
<!DOCTYPE Configure PUBLIC "-//Jetty//Configure//EN" "https://www.eclipse.org/jetty/configure_9_3.dtd">
<Configure class="org.eclipse.jetty.webapp.WebAppContext">
  <Set name="contextPath">/</Set><Set name="war"><SystemProperty name="forebay.war"/></Set>
</Configure>
END
    modules=http,deploy,http-forwarded
    # Debian has these in a package of their own.
    ls "$jetty"/lib/jetty-annotations-*.jar >/dev/null 2>&1 && modules=$modules,annotations,jsp
    cd "$base"
    exec java -Djava.io.tmpdir="$base/tmp" -Dforebay.war="$war" -jar "$jetty/start.jar" jetty.home="$jetty" \
        jetty.base="$base" --module="$modules" jetty.http.host=127.0.0.1 jetty.http.port="$port" \
        jetty.deploy.scanInterval=0
fi
mkdir -p "$base/conf" "$base/logs" "$base/work"
if [ -d "$war" ]; then ln -s "$war" "$base/webapps/ROOT"; else cp "$war" "$base/webapps/ROOT.war"; fi
cp "$tomcat/etc/web.xml" "$base/conf/" 2>/dev/null || cp "$tomcat/conf/web.xml" "$base/conf/"
cat >"$base/conf/server.xml" <<END
<Server port="-1"><Service name="Catalina">
<Connector address="127.0.0.1" port="$port"/>
<Engine name="Catalina" defaultHost="localhost"><Host name="localhost" appBase="webapps">
<Valve className="org.apache.catalina.valves.RemoteIpValve" protocolHeader="X-Forwarded-Proto"/>
</Host></Engine></Service></Server>
END
export CATALINA_HOME="$tomcat" CATALINA_BASE="$base" CATALINA_TMPDIR="$base/tmp"
exec "$tomcat/bin/catalina.sh" run
