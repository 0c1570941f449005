//! Larger applications of Debian's packages behind one Forebay, with the configuration that the manual
//! shows.

use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use rustix::process::geteuid;

use crate::harness::{Row, row, run, text, writable};
use crate::support::{Forebay, command, serve_command};

const SITE: &str = include_str!("../../../../examples/applications/larger.toml");
const PYTHON: &str = "/usr/bin/python3";

/// The packages of Debian.
const PACKAGES: [&str; 18] = [
    "mediawiki",
    "phpmyadmin",
    "roundcube",
    "roundcube-sqlite3",
    "php-cli",
    "ikiwiki",
    "libcgi-session-perl",
    "libcgi-formbuilder-perl",
    "nagios4-cgi",
    "libcatalyst-perl",
    "jupyter-server",
    "redmine",
    "redmine-sqlite",
    "mailman3-web",
    "python3-defusedxml",
    "python3-json5",
    "python3-jinja2",
    "python3-yaml",
];

/// The expected answers of each application.
const ROWS: [Row; 25] = [
    row("/mediawiki/wiki/Main_Page", 200, "MediaWiki has been installed"),
    row("/mediawiki/index.php?title=Special:Version", 200, "Mill Wiki"),
    row("/mediawiki/api.php?action=query&format=json&meta=siteinfo", 200, "\"Mill Wiki\""),
    row("/mediawiki/load.php?modules=startup&only=scripts&lang=en", 200, "mw.loader"),
    row("/mediawiki/includes/WebStart.php", 403, ""),
    row("/phpmyadmin/", 200, "pma_username"),
    row("/phpmyadmin/js/vendor/jquery/jquery.min.js", 200, "jQuery"),
    row("/roundcube/", 200, "Roundcube Webmail"),
    row("/roundcube/?_task=login&_action=none", 200, "rcmloginuser"),
    row("/roundcube/skins/elastic/images/logo.svg", 200, "<svg"),
    row("/ikiwiki/", 200, "The gates are open"),
    row("/ikiwiki.cgi?do=prefs", 200, "<form"),
    row("/ikiwiki.cgi?do=goto&page=index", 302, ""),
    row("/cgi-bin/nagios4/status.cgi?host=all", 200, "mill"),
    row("/cgi-bin/nagios4/objectjson.cgi?query=hostlist", 200, "\"mill\""),
    row("/catalyst/gate/5", 200, "Gate 5 of /catalyst/"),
    row("/catalyst/none", 404, "no gate"),
    row("/dav/", 200, "gates.txt"),
    row("/dav/gates.txt", 200, "open"),
    row("/jupyter/api", 200, "\"version\""),
    row("/jupyter/api/contents", 200, "gates.ipynb"),
    row("/redmine", 200, "/redmine/login"),
    row("/redmine/login", 200, "authenticity_token"),
    row("/accounts/login/", 200, "csrfmiddlewaretoken"),
    row("/hyperkitty/", 200, "Available lists"),
];

#[test]
fn larger_applications_run_side_by_side() {
    let Some(dav) = peer::pip_folder("wsgidav") else { return };
    if !(peer::has(&PACKAGES) && peer::has_php_fpm()) {
        return;
    }
    let folder = Folder::new();
    set_up_php(&folder);
    set_up_cgi(&folder);
    set_up_python(&folder, text(&dav));
    set_up_redmine(&folder);
    let is_root = geteuid().is_root();
    if is_root {
        run(Command::new("chown").args(["-R", "www-data:"]).arg(folder.path()));
    }
    let user = if is_root { "user" } else { "#user" };
    let site = folder.write("site.toml", SITE.replace("#user", user));
    let mut forebay = command(&["--threads", "1", "--listen", "127.0.0.1:0", text(&site)]);
    forebay.env("APPLICATIONS", folder.path());
    let forebay = serve_command(folder, forebay);
    for row in ROWS.iter().chain(&ROWS) {
        let reply = forebay.get(row.target);
        let body = String::from_utf8_lossy(&reply.body);
        let is_right = reply.status == row.status && body.contains(row.holds);
        assert!(is_right, "{}: {} {body:.2000}\n{}", row.target, reply.status, forebay.output());
    }
    move_over_webdav(&forebay);
}

/// A file that is written, moved and listed.
fn move_over_webdav(forebay: &Forebay) {
    let address = forebay.address;
    for (method, target, fields, body, status) in [
        ("PUT", "/dav/sluice.txt", String::new(), "shut", 201),
        (
            "MOVE",
            "/dav/sluice.txt",
            format!("Destination: http://{address}/dav/weir.txt\r\n"),
            "",
            201,
        ),
        ("PROPFIND", "/dav/", "Depth: 1\r\n".to_owned(), "", 207),
    ] {
        let length = body.len();
        let reply = forebay.ask(format!(
            "{method} {target} HTTP/1.1\r\nHost: {address}\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
        ));
        assert_eq!(reply.status, status, "{method}: {}\n{}", reply.text(), forebay.output());
        assert!(
            status != 207 || reply.text().contains("<D:href>/dav/weir.txt</D:href>"),
            "{}",
            reply.text()
        );
    }
}

fn set_up_php(folder: &Folder) {
    let dir = text(folder.path());
    let data = writable(folder, "data");
    let settings = writable(folder, "mediawiki");
    let install = "/usr/share/mediawiki/maintenance/install.php";
    run(Command::new("php").arg(install).args(["--dbtype", "sqlite", "--dbpath", &data]).args([
        "--confpath",
        &settings,
        "--scriptpath",
        "/mediawiki",
        "--server",
        "http://localhost",
        "--pass",
        "gates-are-open",
        "Mill Wiki",
        "Admin",
    ]));
    let create = format!(
        "$schema = file_get_contents('/usr/share/roundcube/SQL/sqlite.initial.sql');\
         (new PDO('sqlite:{data}/roundcube.db'))->exec($schema);"
    );
    run(Command::new("php").args(["-d", "extension=pdo_sqlite", "-r", &create]));
    folder.write(
        "roundcube/config.inc.php",
        format!(
            "<?php $config = ['db_dsnw' => 'sqlite:///{dir}/data/roundcube.db', 'skin' => 'elastic',\n\
             'imap_host' => '127.0.0.1:1', 'des_key' => 'gates-gates-gates-gates!',\n\
             'log_dir' => '{data}', 'temp_dir' => '{data}'];\n"
        ),
    );
    for name in ["defaults.inc.php", "mimetypes.php"] {
        folder.write(
            &format!("roundcube/{name}"),
            format!("<?php include '/etc/roundcube/{name}';\n"),
        );
    }
}

fn set_up_cgi(folder: &Folder) {
    let dir = text(folder.path());
    folder.write("ikiwiki/source/index.mdwn", "The gates are open.");
    let wiki = format!("{dir}/ikiwiki");
    let (source, html) = (format!("{wiki}/source"), format!("{wiki}/html"));
    let wrapper = ["--cgi", "--wrapper", &format!("{wiki}/ikiwiki.cgi"), "--wrappermode", "0755"];
    for arguments in [&[][..], &wrapper] {
        let mut ikiwiki = Command::new("ikiwiki");
        ikiwiki.args(["--url", "/ikiwiki", "--cgiurl", "/ikiwiki.cgi"]).args(arguments);
        run(ikiwiki.args([&source, &html]));
    }
    folder.write(
        "nagios/cgi.cfg",
        format!("main_config_file={dir}/nagios/nagios.cfg\nuse_authentication=0\n"),
    );
    folder.write(
        "nagios/nagios.cfg",
        format!("object_cache_file={dir}/nagios/objects\nstatus_file={dir}/nagios/status\n"),
    );
    let state = [
        ("objects", "define command", "command_name\tcheck\ncommand_line\t/bin/true"),
        (
            "objects",
            "define host",
            "host_name\tmill\naddress\t127.0.0.1\ncheck_command\tcheck\nmax_check_attempts\t1",
        ),
        ("status", "programstatus", "nagios_pid=1"),
        ("status", "hoststatus", "host_name=mill\ncurrent_state=0\nhas_been_checked=1"),
    ];
    for file in ["objects", "status"] {
        let sections = state.iter().filter(|section| section.0 == file);
        let sections = sections.map(|(_, name, lines)| format!("{name} {{\n{lines}\n}}\n\n"));
        folder.write(&format!("nagios/{file}"), sections.collect::<String>());
    }
    for (name, content) in [
        (
            "Mill.pm",
            "package Mill; use Moose; use Catalyst; extends 'Catalyst';\n__PACKAGE__->setup;\n1;\n",
        ),
        (
            "Mill/Controller/Root.pm",
            "package Mill::Controller::Root; use Moose;\nBEGIN { extends 'Catalyst::Controller' }\n\
             __PACKAGE__->config(namespace => '');\n\
             sub gate :Local :Args(1) { my ($self, $c, $name) = @_;\n\
             $c->res->body(\"Gate $name of \" . $c->uri_for('/')->path) }\n\
             sub default :Path { my ($self, $c) = @_; $c->res->status(404); $c->res->body('no gate') }\n1;\n",
        ),
        ("app.psgi", "use Mill; Mill->psgi_app;\n"),
    ] {
        folder.write(&format!("catalyst/{name}"), content);
    }
}

fn set_up_python(folder: &Folder, packages: &str) {
    let dir = text(folder.path());
    writable(folder, "dav/files");
    folder.write("dav/files/gates.txt", "open\n");
    folder.write(
        "dav/dav.py",
        format!(
            "import sys; sys.path.append('{packages}')\n\
             from wsgidav.wsgidav_app import WsgiDAVApp\n\
             application = WsgiDAVApp({{'provider_mapping': {{'/': '{dir}/dav/files'}},\n\
             'mount_path': '/dav', 'simple_dc': {{'user_mapping': {{'*': True}}}},\n\
             'logging': {{'enable': False}}}})\n"
        ),
    );
    folder.write(
        "jupyter/gates.ipynb",
        "{\"cells\":[],\"metadata\":{},\"nbformat\":4,\"nbformat_minor\":5}",
    );
    folder.write(
        "jupyter/settings.py",
        "c.ServerApp.base_url = '/jupyter'\nc.ServerApp.open_browser = False\n\
         c.ServerApp.token = c.ServerApp.password = ''\nc.ServerApp.allow_root = True\n",
    );
    folder.write(
        "mailman/mill_settings.py",
        format!(
            "from settings import *\nSECRET_KEY = 'gates'\nALLOWED_HOSTS = ['*']\nLOGGING = {{}}\n\
             COMPRESS_ENABLED = False\nDATABASES = {{'default': {{\n\
             'ENGINE': 'django.db.backends.sqlite3', 'NAME': '{dir}/mailman/lists.db'}}}}\n"
        ),
    );
    folder.write(
        "mailman/mailman.py",
        "import os, sys\nsys.path.append('/usr/share/mailman3-web')\n\
         os.environ['DJANGO_SETTINGS_MODULE'] = 'mill_settings'\n\
         from django.core.wsgi import get_wsgi_application\napplication = get_wsgi_application()\n",
    );
    let migrate = "import mailman\nfrom django.core.management import call_command\n\
        call_command('migrate', verbosity=0)\n";
    run(Command::new(PYTHON).args(["-c", migrate]).current_dir(folder.path().join("mailman")));
}

/// Makes a copy of Redmine, because its package keeps one database for each machine.
fn set_up_redmine(folder: &Folder) {
    let dir = folder.path().join("redmine");
    run(Command::new("cp").args(["-r", "/usr/share/redmine"]).arg(&dir));
    run(Command::new("rm").args(["-f", "instances", "config/database.yml"]).current_dir(&dir));
    for part in ["config", "files", "log", "tmp"] {
        writable(folder, &format!("redmine/instances/default/{part}"));
    }
    let database =
        format!("production:\n  adapter: sqlite3\n  database: {}/lists.db\n", text(&dir));
    for file in ["config/database.yml", "instances/default/config/database.yml"] {
        folder.write(&format!("redmine/{file}"), database.clone());
    }
    folder.write("redmine/instances/default/config/secret_key.txt", "0123456789abcdef".repeat(4));
    let mut migrate = Command::new("rake");
    run(migrate.arg("db:migrate").env("RAILS_ENV", "production").current_dir(&dir));
}
