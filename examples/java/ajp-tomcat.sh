#!/bin/sh
# Runs Debian's Tomcat 10 in the foreground, in the directory $1, which has ajp-server.xml.
set -eu
base=$1/tomcat
mkdir -p "$base/conf" "$base/logs" "$base/temp" "$base/work" "$base/webapps/ROOT/WEB-INF"
cp "$1/ajp-server.xml" "$base/conf/server.xml"
cat >"$base/webapps/ROOT/WEB-INF/web.xml" <<'END'
<web-app xmlns="https://jakarta.ee/xml/ns/jakartaee" version="6.0" metadata-complete="true">
  <servlet>
    <servlet-name>jsp</servlet-name>
    <servlet-class>org.apache.jasper.servlet.JspServlet</servlet-class>
  </servlet>
  <servlet-mapping>
    <servlet-name>jsp</servlet-name>
    <url-pattern>*.jsp</url-pattern>
  </servlet-mapping>
</web-app>
END
cat >"$base/webapps/ROOT/hello.jsp" <<'END'
<%@ page session="false" contentType="text/plain" %>Hello over AJP
END
export CATALINA_HOME=/usr/share/tomcat10 CATALINA_BASE="$base" CATALINA_OPTS="-Xmx256m"
exec "$CATALINA_HOME/bin/catalina.sh" run
