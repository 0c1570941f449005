//! Tomcat 10, the servlet container: <https://tomcat.apache.org/tomcat-10.1-doc/config/ajp.html>.

use std::process::Command;

use super::{Peer, has, on_a_free_port, restart};
use crate::folder::Folder;
use crate::process::Process;
use crate::stream::Address;

/// Directory of Debian's Tomcat.
const HOME: &str = "/usr/share/tomcat10";

/// Server configuration without a shutdown port. The only applications are JSP pages, which need no
/// compiler.
const SERVER: &str = r#"<Server port="-1">
  <Service name="Catalina">
    {connector}
    <Engine name="Catalina" defaultHost="localhost" jvmRoute="{route}">
      <Host name="localhost" appBase="webapps" unpackWARs="false" autoDeploy="false"/>
    </Engine>
  </Service>
</Server>
"#;

const AJP: &str =
    r#"<Connector protocol="AJP/1.3" address="127.0.0.1" port="{port}" {attributes}/>"#;

/// Connector for HTTP/1.1 and for HTTP/2 with prior knowledge.
const HTTP: &str = r#"<Connector protocol="HTTP/1.1" address="127.0.0.1" port="{port}" maxPostSize="-1">
      <UpgradeProtocol className="org.apache.coyote.http2.Http2Protocol" {attributes}/>
    </Connector>"#;

const WEB: &str = r#"<web-app xmlns="https://jakarta.ee/xml/ns/jakartaee" version="6.0" metadata-complete="true">
  <servlet>
    <servlet-name>jsp</servlet-name>
    <servlet-class>org.apache.jasper.servlet.JspServlet</servlet-class>
  </servlet>
  <servlet-mapping>
    <servlet-name>jsp</servlet-name>
    <url-pattern>*.jsp</url-pattern>
  </servlet-mapping>
</web-app>
"#;

/// Text that Tomcat prints at the end of its start, when its connectors accept requests.
const STARTED: &str = "Server startup in";

/// Starts Tomcat with these JSP pages and an AJP connector on TCP. `connector` contains attributes
/// of the connector, such as `secret="x" packetSize="8192"`, and `route` is the `jvmRoute`. If
/// Tomcat is not installed, reports the test as skipped and returns `None`.
pub fn tomcat(pages: &[(&str, &str)], connector: &str, route: &str) -> Option<Peer> {
    tomcat_with(pages, &AJP.replace("{attributes}", connector), route)
}

/// Works as [`tomcat`] does, with an HTTP connector instead of AJP. `attributes` are those for
/// HTTP/2, such as `maxConcurrentStreams="100"`.
pub fn tomcat_http2(pages: &[(&str, &str)], attributes: &str) -> Option<Peer> {
    tomcat_with(pages, &HTTP.replace("{attributes}", attributes), "t1")
}

fn tomcat_with(pages: &[(&str, &str)], connector: &str, route: &str) -> Option<Peer> {
    if !has(&["tomcat10"]) {
        return None;
    }
    Some(on_a_free_port(|folder, port| {
        for (name, page) in pages {
            folder.write(&format!("webapps/ROOT/{name}"), page);
        }
        folder.write("webapps/ROOT/WEB-INF/web.xml", WEB);
        for name in ["logs", "temp", "work"] {
            folder.write(&format!("{name}/README"), "Tomcat's.\n");
        }
        let text = SERVER.replace("{connector}", connector).replace("{route}", route);
        let text = text.replace("{port}", &port.to_string());
        folder.write("conf/server.xml", text);
        start(folder)
    }))
}

/// Restarts a Tomcat that was killed or stopped, in the same folder and on the same port.
///
/// # Panics
/// Panics if Tomcat does not start, for example because another process has taken the port.
pub fn restart_tomcat(folder: Folder, address: &Address) -> Peer {
    restart(folder, address, start)
}

fn start(folder: &Folder) -> Result<Process, String> {
    let mut command = Command::new(format!("{HOME}/bin/catalina.sh"));
    command.arg("run").env("CATALINA_HOME", HOME).env("CATALINA_BASE", folder.path());
    command.env(
        "CATALINA_OPTS",
        "-Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
         -Dorg.apache.catalina.startup.EXIT_ON_INIT_FAILURE=true",
    );
    super::start_jvm(command, STARTED)
}
