//! Request Tracker, a large PSGI application.

use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer::{self, Peer};

use crate::harness::{Mask, Requests, Row, compare, row, run, text, writable};
use crate::support::{program, serve};

const RT: &str = "/usr/share/request-tracker5/libexec/rt-server";

const ROWS: [Row; 6] = [
    row("/Admin/Queues/", 200, "General"),
    row("/Ticket/Display.html?id=1", 200, "The wheel turns"),
    row("/REST/1.0/queue/General/show", 200, "Name: General"),
    row("/REST/1.0/ticket/1/show", 200, "Subject: The wheel turns"),
    row("/REST/1.0/ticket/99/show", 200, "does not exist"),
    row("/static/images/favicon.png", 200, "PNG"),
];

/// Times, addresses, ids of forms, and JavaScript objects, which have no fixed order.
const MASKS: [Mask; 7] = [
    ("http://localhost", "/"),
    ("next=", "\""),
    ("Time to display: ", "<"),
    ("&results=", "\""),
    ("RT.CurrentUser = ", ";"),
    ("RT.Config      = ", ";"),
    ("RT.I18N.Catalog = ", "\n"),
];

/// RT's set-up for mod_perl, as its manual has it.
const CONFIGURATION: &str = r#"
<VirtualHost *>
ServerName localhost
AddDefaultCharset UTF-8
DocumentRoot "/usr/share/request-tracker5/html"
<Location />
Require all granted
SetHandler modperl
PerlResponseHandler Plack::Handler::Apache2
PerlSetVar psgi_app /usr/share/request-tracker5/libexec/rt-server
</Location>
<Perl>
use Plack::Handler::Apache2;
Plack::Handler::Apache2->preload("/usr/share/request-tracker5/libexec/rt-server");
</Perl>
</VirtualHost>
"#;

#[test]
fn request_tracker_answers_as_under_apache_with_mod_perl() {
    if !peer::has(&["request-tracker5", "rt5-db-sqlite", "libapache2-mod-perl2"]) {
        return;
    }
    let folder = Folder::new();
    let env = set_up(&folder);
    let env = env.map(|(name, value)| format!("PerlSetEnv {name} {value}\n")).concat();
    let limits = "MaxRequestWorkers 1\nMinSpareServers 1\nMaxSpareServers 1\nKeepAlive Off\n";
    let Some(model) = peer::apache(&["perl"], &format!("{limits}{env}{CONFIGURATION}")) else {
        return;
    };
    // What the section of Perl has made belongs to root.
    run(Command::new("chmod").args(["-R", "a+rwX"]).arg(folder.path()));
    let fields = format!("Cookie: {}\r\n", session(&model));
    let conf = format!("Listen 127.0.0.1:8080\nServerName localhost\n{env}{CONFIGURATION}");
    let conf = folder.write("apache.conf", conf);
    let output = Command::new(program()).args(["import", "apache"]).arg(conf).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("NOT TRANSLATED") && text.contains(RT), "{text}");
    let kind = "kind = \"psgi\"";
    let text = text
        .replace("127.0.0.1:8080", "127.0.0.1:0")
        .replace(kind, &format!("{kind}\nworkers = 4\nqueue_timeout = \"60s\""));
    let forebay = serve(Folder::new(), &text);
    let requests = Requests { rows: &ROWS, fields, masks: &MASKS, ..Requests::default() };
    compare("psgi", &requests, model.address(), forebay);
}

/// Makes a database with RT's initial data. Returns the variables that name it.
fn set_up(folder: &Folder) -> [(&'static str, String); 2] {
    let [mason, sessions, data, none] =
        ["mason", "sessions", "data", "none"].map(|name| writable(folder, name));
    let config = folder.write(
        "RT_SiteConfig.pm",
        format!(
            "Set($rtname, 'mill'); Set($Organization, 'mill.example');\n\
             Set($DatabaseType, 'SQLite'); Set($DatabaseName, '{data}/rt.db');\n\
             Set($WebDomain, 'localhost'); Set($WebPort, 80); Set($Timezone, 'UTC');\n\
             Set($LogToSyslog, undef); Set($LogToSTDERR, 'critical');\n\
             Set($SendmailPath, '/bin/true');\n\
             $RT::MasonDataDir = '{mason}'; $RT::MasonSessionDir = '{sessions}';\n1;\n"
        ),
    );
    let env = [("RT_SITE_CONFIG", text(&config).to_owned()), ("RT_SITE_CONFIG_DIR", none)];
    run(forebay_testkit::process::command("rt-setup-database-5")
        .args(["--action", "init", "--dba", "root", "--dba-password", "", "--skip-create"])
        .envs(env.clone()));
    env
}

/// Logs in and makes a ticket. Returns the cookie.
fn session(model: &Peer) -> String {
    let login = "user=root&pass=password";
    let mut client = Client::connect(model.address());
    client.send(format!(
        "POST /NoAuth/Login.html HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nConnection: close\r\n\r\n{login}",
        login.len()
    ));
    let reply = client.reply();
    let cookie = reply.header("Set-Cookie").unwrap_or_else(|| panic!("no session: {reply:?}"));
    let ticket = "id:%20new%0AQueue:%20General%0ASubject:%20The%20wheel%20turns%0A";
    let reply = Client::connect(model.address())
        .get(&format!("/REST/1.0/ticket/new?{login}&content={ticket}"));
    assert!(reply.text().contains("Ticket 1 created"), "{}", reply.text());
    let (name, id) = cookie.split(';').next().unwrap().split_once('=').unwrap();
    // The cookie's name ends with the port of the server, which differs.
    format!("{name}={id}; RT_SID_mill.{{port}}={id}")
}
