//! Request Tracker, a large PSGI application.

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer::{self, Peer};

use crate::harness::{Mask, Requests, Row, compare, row, run, text, writable};
use crate::support::serve;

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

#[test]
fn request_tracker_answers_as_under_starlet() {
    if !peer::has(&["request-tracker5", "rt5-db-sqlite", "starlet"]) {
        return;
    }
    let folder = Folder::new();
    let env = set_up(&folder);
    let exports = env.iter().map(|(name, value)| format!("$ENV{{{name}}} = '{value}';\n"));
    let exports: String = exports.collect();
    let app = folder.write("app.psgi", format!("{exports}Plack::Util::load_psgi('{RT}');\n"));
    let Some(model) = peer::starlet(&app) else { return };
    let fields = format!("Cookie: {}\r\n", session(&model));
    let env = env.map(|(name, value)| format!("{name} = {value:?}")).join(", ");
    let forebay = serve(
        Folder::new(),
        &format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"rt\"\n\
             [app.rt]\nkind = \"psgi\"\nfile = \"{RT}\"\nworkers = 4\nqueue_timeout = \"60s\"\nenv = {{ {env} }}\n"
        ),
    );
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
