//! OCS Inventory's server, with the configuration for mod_perl that Debian installs.

use std::fs;
use std::io::Read;
use std::process::Command;

use flate2::Compression;
use flate2::read::{ZlibDecoder, ZlibEncoder};
use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer;
use forebay_testkit::stream::Address;

use crate::harness::{mariadb, run, text, writable};
use crate::support::{program, serve};

const CONFIGURATION: &str = "/etc/apache2/conf-available/ocsinventory-server.conf";
const SCHEMA: &str = "/usr/share/ocsinventory-reports/files/ocsbase.sql";
const DEVICE: &str = "mill-2026-11-30-10-00-00";

/// Creates the tables in databases: FILE SOCKET DATABASE ...
const CREATE: &str = r#"
my ($file, $socket, @names) = @ARGV;
my $sql = do { local $/; open my $text, '<', $file or die "$file: $!"; <$text> };
my $db = DBI->connect("DBI:mysql:mysql_socket=$socket", 'root', '', { RaiseError => 1, PrintError => 0 });
for my $name (@names) {
    $db->do("CREATE DATABASE $name");
    $db->do("USE $name");
    for (split /;\s*\n/, $sql) { s/^\s*--.*$//mg; $db->do($_) if /\S/ }
}
"#;

/// Prints what an inventory has left: SOCKET DATABASE
const SHOW: &str = r#"
my ($socket, $name) = @ARGV;
my $db = DBI->connect("DBI:mysql:database=$name;mysql_socket=$socket", 'root', '', { RaiseError => 1 });
for ('SELECT DEVICEID, NAME, OSNAME, MEMORY, IPADDR, USERAGENT FROM hardware', 'SELECT SSN, SMODEL FROM bios',
    'SELECT TYPE, TOTAL, FREE FROM drives', 'SELECT IPADDRESS, MACADDR FROM networks',
    'SELECT TAG FROM accountinfo', 'SELECT COUNT(*) FROM software', 'SELECT COUNT(*) FROM locks') {
    print join('|', map { $_ // '' } @$_), "\n" for @{ $db->selectall_arrayref($_) };
}
"#;

#[test]
fn ocs_inventory_answers_as_under_apache() {
    let packages = [
        "ocsinventory-server",
        "ocsinventory-reports",
        "mariadb-server-core",
        "libapache2-mod-perl2",
        "apache2-utils",
    ];
    if !peer::has(&packages) {
        return;
    }
    let folder = Folder::new();
    let database = mariadb(&folder, "unused");
    let socket = folder.path().join("database.sock");
    let perl = |code: &str, arguments: &[&str]| {
        let mut command = Command::new("perl");
        command.args(["-MDBI", "-e", code]).args(arguments);
        command
    };
    run(&mut perl(CREATE, &[SCHEMA, text(&socket), "ours", "theirs"]));
    let docs = writable(&folder, "docs");
    let users = folder.path().join("users");
    run(Command::new("htpasswd").args(["-bcB", text(&users), "anna", "secret"]));
    let configuration = |name: &str| {
        let own = fs::read_to_string(CONFIGURATION)
            .unwrap()
            .replace("APACHE_AUTH_USER_FILE", text(&users))
            .replace("\"SOAP_USER\"", "anna");
        format!(
            "DocumentRoot {docs}\nTypesConfig /etc/mime.types\nMaxRequestWorkers 1\nKeepAlive Off\n{own}\n\
             PerlSetEnv OCS_DB_NAME {name}\nPerlSetEnv OCS_DB_LOCAL {name}\n\
             PerlSetEnv OCS_DB_PORT \"3306;mysql_socket={}\"\n\
             PerlSetEnv OCS_OPT_LOGPATH {}/\n",
            text(&socket),
            writable(&folder, name),
        )
    };
    let imported = folder.write(
        "apache.conf",
        format!("Listen 127.0.0.1:8080\nServerName localhost\n{}", configuration("ours")),
    );
    let output = Command::new(program()).args(["import", "apache"]).arg(imported).output().unwrap();
    let site = String::from_utf8(output.stdout).unwrap();
    assert!(!site.contains("NOT TRANSLATED"), "{site}");
    let forebay = serve(Folder::new(), &site.replace("127.0.0.1:8080", "127.0.0.1:0"));
    let ours: Vec<String> = answers(&forebay.address.into());
    let log = forebay.output();
    forebay.stop();
    let modules = ["alias", "auth_basic", "authn_core", "authn_file", "authz_user", "mime", "perl"];
    let Some(model) = peer::apache(&modules, &configuration("theirs")) else { return };
    let theirs = answers(model.address());
    for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(ours, theirs, "request {at}\n{log}");
    }
    let show = |name| {
        let output = perl(SHOW, &[text(&socket), name]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let left = show("ours");
    assert!(left.contains("|mill|Debian|2048|192.0.2.7|") && left.contains("S1|wheel"), "{left}");
    assert_eq!(left, show("theirs"));
    for part in ["<RESPONSE>SEND</RESPONSE>", "NO_ACCOUNT_UPDATE", "400 ", "500 "] {
        assert!(ours.iter().any(|answer| answer.contains(part)), "{part}: {ours:#?}");
    }
    database.stop();
}

/// What an agent of OCS Inventory sends, and what it should not send.
fn answers(address: &Address) -> Vec<String> {
    let request = |query: &str, content: &str| {
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><REQUEST><DEVICEID>{DEVICE}</DEVICEID>\
             <QUERY>{query}</QUERY>{content}</REQUEST>"
        )
    };
    let prolog = request("PROLOG", "");
    let inventory = |memory: u32| {
        request(
            "INVENTORY",
            &format!(
                "<CONTENT><ACCESSLOG><LOGDATE>2026-11-30 10:00:00</LOGDATE><USERID>N/A</USERID></ACCESSLOG>\
                 <HARDWARE><NAME>mill</NAME><OSNAME>Debian</OSNAME><MEMORY>{memory}</MEMORY>\
                 <IPADDR>192.0.2.7</IPADDR><CHECKSUM>262143</CHECKSUM></HARDWARE>\
                 <BIOS><SSN>S1</SSN><SMODEL>wheel</SMODEL></BIOS>\
                 <DRIVES><TYPE>/</TYPE><TOTAL>100</TOTAL><FREE>50</FREE></DRIVES>\
                 <NETWORKS><IPADDRESS>192.0.2.7</IPADDRESS><MACADDR>02:00:00:00:00:01</MACADDR></NETWORKS>\
                 <SOFTWARES><NAME>sluice</NAME><VERSION>1</VERSION></SOFTWARES></CONTENT>"
            ),
        )
    };
    let agent = "OCS-NG_unified_unix_agent_v2.8.0";
    let send = |agent: &str, body: Option<Vec<u8>>| ask(address, "/ocsinventory", agent, body);
    vec![
        send(agent, None),
        ask(address, "/ocsinventory/deploy/x", agent, None),
        send(agent, Some(prolog.clone().into())),
        send(agent, Some(compressed(&prolog))),
        send(agent, Some(compressed(&inventory(1024)))),
        send(agent, Some(compressed(&prolog))),
        send(agent, Some(inventory(2048).into())),
        send("curl/8", Some(prolog.clone().into())),
        send(agent, Some(b"<?xml version=\"1.0\"?><REQUEST>".to_vec())),
        send(agent, Some(b"rubbish".to_vec())),
        send(agent, Some(Vec::new())),
        send(agent, Some(prolog.replace(DEVICE, "a bad name").into())),
        send(agent, Some(prolog.replace("PROLOG", "UNKNOWN").into())),
        ask(address, "/ocsinterface", "curl/8\r\nAuthorization: Basic YW5uYTpzZWNyZXQ=", None),
    ]
}

fn ask(address: &Address, path: &str, agent: &str, body: Option<Vec<u8>>) -> String {
    let method = if body.is_some() { "POST" } else { "GET" };
    let length = body.as_ref().map(|body| format!("Content-Length: {}\r\n", body.len()));
    let mut client = Client::connect(address);
    client.send(format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nUser-Agent: {agent}\r\n{}\r\n",
        length.unwrap_or_default()
    ));
    client.send(body.unwrap_or_default());
    let reply = client.reply();
    let kind = reply.header("Content-Type").unwrap_or_default();
    let mut text = String::new();
    if ZlibDecoder::new(&reply.body[..]).read_to_string(&mut text).is_err() {
        text = String::from_utf8_lossy(&reply.body).into_owned();
    }
    if text.starts_with("<!DOCTYPE") {
        return format!("{} {kind} page", reply.status);
    }
    // Elements and attributes of hashes have no fixed order.
    let mut words: Vec<&str> = text.split_whitespace().collect();
    words.sort_unstable();
    format!("{} {kind} {}", reply.status, words.join(" "))
}

fn compressed(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    ZlibEncoder::new(text.as_bytes(), Compression::default()).read_to_end(&mut bytes).unwrap();
    bytes
}
