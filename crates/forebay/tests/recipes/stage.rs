//! The files, sockets and backends of all recipes, below one directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::port::free_port;
use forebay_testkit::process::Process;
use forebay_testkit::tls::{Authority, Identity};

use crate::cases::Recipe;
use crate::{root, stub, support};

const PHP: &str = "<?php header('Content-Type: text/plain');\n\
    foreach (['REQUEST_METHOD', 'SCRIPT_NAME', 'SCRIPT_FILENAME', 'PATH_INFO', 'QUERY_STRING', 'REQUEST_URI', \
    'HTTPS', 'HTTP_HOST', 'APP_ENV', 'front_controller_active'] as $name) \
    { echo strtolower($name), ': ', $_SERVER[$name] ?? '', \"\\n\"; }\n";

// fcgiwrap needs a script that reads its body.
const PERL: &str = "#!/usr/bin/perl\nuse strict;\nread STDIN, my $body, $ENV{CONTENT_LENGTH} || 0;\nprint \"Content-Type: text/plain\\n\\n\";\n\
    for my $name (qw(REQUEST_METHOD SCRIPT_NAME PATH_INFO QUERY_STRING REQUEST_URI HTTP_HOST)) {\n\
    print lc($name), ': ', $ENV{$name} // '', \"\\n\";\n}\n";

/// Directories that are moved below the directory of the test.
const MOVED: [&str; 5] = ["/var/", "/srv/", "/etc/", "/opt/", "/home/"];

/// The directory of the test with all that the servers need.
pub struct Stage {
    pub folder: Folder,
    pub authority: Authority,
    pub client: Identity,
    /// Ports of the Forebay with the recipes.
    pub port: u16,
    pub tls_port: u16,
    /// Ports of the Forebay with the translation.
    pub imported_port: u16,
    pub imported_tls_port: u16,
    pub nginx_tls_port: u16,
    names: Vec<String>,
    /// Addresses in the recipes, and those of the backends in their place.
    addresses: BTreeMap<String, String>,
}

impl Stage {
    /// Writes the files of the recipes, and starts their backends. `sockets` are the sockets of real
    /// servers, with a part of the path that stands for them.
    pub fn new(recipes: &[Recipe], sockets: [(&str, &Path); 2]) -> Self {
        let (folder, authority) = (Folder::new(), Authority::new("recipes"));
        let client = authority.issue(&["ann"]);
        let identity = authority.issue(&["*.example.org", "www.django.example.org"]);
        folder.write("server.pem", identity.certificate);
        folder.write("server.key", identity.key);
        folder.write("etc/forebay/clients.pem", &authority.pem);
        for (path, text) in recipes.iter().flat_map(|recipe| &recipe.files) {
            let path = path.trim_start_matches('/');
            match text.as_str() {
                "PHP" => folder.write(path, PHP),
                "PERL" => folder.script(path, PERL),
                text => folder.write(path, text),
            };
        }
        let names = recipes.iter().map(|recipe| recipe.name.clone()).collect();
        let mut stage = Self {
            folder,
            authority,
            client,
            port: free_port(),
            tls_port: free_port(),
            imported_port: free_port(),
            imported_tls_port: free_port(),
            nginx_tls_port: free_port(),
            names,
            addresses: BTreeMap::new(),
        };
        stage.start_backends(sockets);
        for name in stage.names.clone() {
            let (toml, conf) = (
                stage.filled(&source(&name, "site.toml")),
                stage.filled(&source(&name, "nginx.conf")),
            );
            stage.folder.write(&format!("forebay/{name}.toml"), stage.listening(&toml));
            stage.folder.write(&format!("nginx/{name}.conf"), stage.nginx_text(&conf));
        }
        stage
    }

    /// Starts a backend for each address of the recipes.
    fn start_backends(&mut self, sockets: [(&str, &Path); 2]) {
        let texts: Vec<String> = self
            .names
            .iter()
            .flat_map(|name| [source(name, "site.toml"), source(name, "nginx.conf")])
            .collect();
        for address in texts.iter().flat_map(|text| addresses(text)) {
            if self.addresses.contains_key(&address) {
                continue;
            }
            let number = self.addresses.len();
            let found = sockets.iter().find(|(part, _)| address.contains(part));
            let new = match (address.strip_prefix("unix:"), found) {
                (Some(_), Some((_, socket))) => format!("unix:{}", socket.display()),
                (Some(name), None) => {
                    let path = self.folder.path().join(format!("{number}.sock"));
                    stub::start_unix(name, &path);
                    format!("unix:{}", path.display())
                }
                (None, _) => format!("127.0.0.1:{}", stub::start_tcp(&address)),
            };
            self.addresses.insert(address, new);
        }
    }

    /// Returns a recipe's text with the addresses and directories of this test.
    fn filled(&self, text: &str) -> String {
        let mut text = text.to_owned();
        // The longest first: one address may begin with another.
        let mut all: Vec<_> = self.addresses.iter().collect();
        all.sort_by_key(|(address, _)| std::cmp::Reverse(address.len()));
        for (number, (address, _)) in all.iter().enumerate() {
            text = text.replace(*address, &format!("\u{1}{number}\u{1}"));
        }
        let dir = self.folder.path().to_str().unwrap();
        for moved in MOVED {
            for before in ["\"", " ", "'"] {
                text = text.replace(&format!("{before}{moved}"), &format!("{before}{dir}{moved}"));
            }
        }
        for (number, (_, new)) in all.iter().enumerate() {
            text = text.replace(&format!("\u{1}{number}\u{1}"), new);
        }
        text
    }

    /// Returns nginx's text with certificates and included files of this test; `{port}` stays.
    fn nginx_text(&self, text: &str) -> String {
        let dir = self.folder.path().display();
        let line = |line: &str| {
            let trimmed = line.trim_start();
            if trimmed.starts_with("ssl_certificate ") {
                format!("ssl_certificate {dir}/server.pem;\n")
            } else if trimmed.starts_with("ssl_certificate_key ") {
                format!("ssl_certificate_key {dir}/server.key;\n")
            } else if trimmed.starts_with("include ") {
                line.replace("include ", "include /etc/nginx/") + "\n"
            } else {
                line.to_owned() + "\n"
            }
        };
        let text: String = text.lines().map(line).collect();
        text.replace("listen 443", &format!("listen 127.0.0.1:{}", self.nginx_tls_port))
    }

    /// Returns the block `http` of nginx, with the servers of all recipes.
    pub fn nginx_http(&self, port: &str) -> String {
        let own: String = self
            .names
            .iter()
            .map(|name| {
                fs::read_to_string(self.folder.path().join(format!("nginx/{name}.conf"))).unwrap()
            })
            .collect();
        let types = "include /etc/nginx/mime.types;\ndefault_type application/octet-stream;\n";
        format!("{types}{}", own.replace("listen 80", &format!("listen 127.0.0.1:{port}")))
    }

    /// Returns the configuration of Forebay with all recipes.
    pub fn forebay(&self) -> PathBuf {
        let text = fs::read_to_string(root().join("examples/recipes/forebay.toml")).unwrap();
        let dir = self.folder.path().display();
        let text = self
            .listening(&text)
            .replace("*/site.toml", "../*.toml")
            .replace("user = \"www-data\"", "threads = 2")
            .replace("/var/log/forebay/access.log", "off")
            .replace(
                "acme = { email = \"admin@example.org\" }",
                &format!("certificate = \"{dir}/server.pem\", key = \"{dir}/server.key\""),
            );
        self.folder.write("forebay/main/forebay.toml", text)
    }

    /// Returns a text of Forebay with the listeners of this test.
    fn listening(&self, text: &str) -> String {
        text.replace("0.0.0.0:80", &format!("127.0.0.1:{}", self.port))
            .replace("0.0.0.0:443", &format!("127.0.0.1:{}", self.tls_port))
    }

    /// Translates nginx's configuration. Returns the new configuration and the report.
    pub fn import(&self, nginx_port: u16) -> (PathBuf, String) {
        let port = format!("127.0.0.1:{nginx_port}");
        let mut main = "events {}\nhttp {\ninclude /etc/nginx/mime.types;\ndefault_type application/octet-stream;\n".to_owned();
        for name in &self.names {
            let path = self.folder.path().join(format!("nginx/{name}.conf"));
            let text = fs::read_to_string(&path).unwrap();
            fs::write(&path, text.replace("listen 80", &format!("listen {port}"))).unwrap();
            main += &format!("include {};\n", path.display());
        }
        let file = self.folder.write("nginx/main.conf", main + "}\n");
        let mut command = Command::new(support::program());
        let output = command.args(["import", "nginx"]).arg(file).output().unwrap();
        let notes = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{notes}");
        let tls = format!("127.0.0.1:{}", self.nginx_tls_port);
        let toml = String::from_utf8(output.stdout)
            .unwrap()
            .replace(&port, &format!("127.0.0.1:{}", self.imported_port))
            .replace(&tls, &format!("127.0.0.1:{}", self.imported_tls_port));
        if let Some(path) = std::env::var_os("FOREBAY_KEEP_IMPORT") {
            fs::write(path, &toml).unwrap();
        }
        (self.folder.write("imported.toml", toml), notes)
    }

    /// Starts Forebay with a configuration.
    pub fn serve(&self, file: &Path) -> Process {
        let mut process =
            Process::start(support::command(&["--threads", "2", file.to_str().unwrap()]));
        process
            .wait_until("said where it serves", |process| {
                process.output().contains("forebay: serving https")
            })
            .unwrap_or_else(|error| panic!("{error}"));
        process
    }

    /// Checks that each old site has its own log.
    pub fn read_logs(&self) {
        for (file, own, other) in [
            ("old.log", "/cgi-bin/guestbook.pl", "/cgi-bin/hello.pl"),
            ("older.log", "/cgi-bin/hello.pl", "/cgi-bin/guestbook.pl"),
        ] {
            let text =
                fs::read_to_string(self.folder.path().join("var/log/forebay").join(file)).unwrap();
            assert!(text.contains(own) && !text.contains(other), "{file}: {text}");
        }
    }
}

/// Returns the text of a file of a recipe.
fn source(recipe: &str, file: &str) -> String {
    fs::read_to_string(root().join(format!("examples/recipes/{recipe}/{file}"))).unwrap()
}

/// Returns the addresses of backends in a text: `127.0.0.1:PORT` and `unix:PATH`.
fn addresses(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for start in ["127.0.0.1:", "unix:/"] {
        for (at, _) in text.match_indices(start) {
            let rest = &text[at..];
            let is_end = |c: char| c.is_whitespace() || "\";,/'".contains(c);
            let skip = if start.starts_with("unix") {
                rest.find(|c: char| c.is_whitespace() || "\";,'".contains(c))
            } else {
                rest.find(is_end)
            };
            found.push(rest[..skip.unwrap_or(rest.len())].to_owned());
        }
    }
    found
}
