//! Each directive changes the configuration, or the report names it, in each context.

use std::path::Path;

use crate::apache::names::{self, READ};
use crate::apache::translate;
use crate::draft::{Draft, DraftRoute};
use crate::keys::Keys;

/// Lines with each directive that the translation reads. Of several lines, the test removes the last
/// one. `{}` is the directory of the site.
const LINES: &[&str] = &[
    "AddDefaultCharset utf-8",
    "Options +ExecCGI\nAddHandler cgi-script .cgi",
    "AddHandler own-handler .own",
    "AddOutputFilter DEFLATE .html",
    "AddOutputFilter OWN .html",
    "AddOutputFilterByType DEFLATE text/html",
    "AddType text/x-a .a",
    "Alias /al {}/sub",
    "AliasMatch ^/am/(.*)$ {}/sub/$1",
    "Order deny,allow\nDeny from all\nAllow from 10.0.0.0/8",
    "AuthType Basic\nAuthUserFile {}/users\nRequire valid-user\nAuthName realm",
    "AuthUserFile {}/users\nRequire valid-user\nAuthType Basic",
    "AuthType Basic\nRequire valid-user\nAuthUserFile {}/users",
    "AuthType Basic\nAuthUserFile {}/users\nRequire valid-user\nAuthBasicProvider ldap",
    "CustomLog /var/log/x combined",
    "Order allow,deny\nAllow from all\nDeny from 10.0.0.0/8",
    "DirectoryIndex start.html",
    "DirectoryIndex index.html /start.html",
    "DirectoryIndex disabled",
    "DocumentRoot {}/sub",
    "ErrorDocument 404 /404.html",
    "ErrorDocument 404 /none.html",
    "ErrorDocument 404 /404.php",
    "ErrorDocument 403 \"Sorry\"",
    "ErrorDocument 500 https://other.example/",
    "ExpiresDefault \"access plus 1 day\"\nExpiresActive On",
    "ExpiresActive On\nExpiresByType text/css \"access plus 1 day\"",
    "ExpiresActive On\nExpiresDefault \"access plus 1 day\"",
    "FallbackResource /index.html",
    "FallbackResource index.html",
    "FcgidInitialEnv OWN_NAME value",
    "ScriptAlias /fc {}/run.fcgi\nFcgidInitialEnv OWN_NAME value",
    "FcgidMaxRequestLen 1000",
    "ScriptAlias /fc {}/run.fcgi\nFcgidMaxRequestLen 1000",
    "ForceType text/plain",
    "Group none-of-these",
    "Header set X-A b",
    "Header always edit X-A b c",
    "KeepAlive Off",
    "KeepAliveTimeout 9",
    "AllowEncodedSlashes NoDecode",
    "LimitRequestBody 1000",
    "LimitRequestBody large",
    "Listen 8081",
    "MaxKeepAliveRequests 9",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler",
    "SetHandler perl-script\nPerlHandler Own::Handler",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlPostReadRequestHandler Own::Phase",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlTransHandler Own::Phase",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlMapToStorageHandler Own::Phase",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlInitHandler Own::Phase",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlHeaderParserHandler Own::Phase",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlAccessHandler Own::Phase",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlTypeHandler Own::Phase",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlFixupHandler Own::Phase",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlInputFilterHandler Own::Phase",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlOutputFilterHandler Own::Phase",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlLogHandler Own::Phase",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlCleanupHandler Own::Phase",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlChildInitHandler Own::Phase",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlChildExitHandler Own::Phase",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nAuthType Own\nRequire valid-user\nPerlAuthenHandler Own::Phase",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nAuthType Own\nRequire valid-user\nPerlAuthenHandler Own::Phase\nPerlAuthzHandler Own::Phase",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nRequire own a\nPerlAddAuthzProvider own Own::Rule",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nAuthType Basic\nAuthBasicProvider own\nRequire valid-user\nPerlAddAuthnProvider own Own::Users",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlSetVar Own a",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlAddVar Own a",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlSetEnv OWN a",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlPassEnv OWN",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlOptions +ParseHeaders",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlSwitches -T",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlModule Own::Module",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlRequire {}/index.html",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlConfigRequire {}/index.html",
    "SetHandler perl-script\nPerlResponseHandler Own::Handler\nPerlPostConfigRequire {}/index.html",
    "SetHandler mono\nMonoApplications /:{}/sub",
    "SetHandler mono\nAddMonoApplications default \"/:{}/sub\"",
    "MonoApplications own /:{}/sub\nSetHandler mono\nMonoSetServerAlias own",
    "SetHandler mono\nMonoSetEnv OWN=a;OTHER=b",
    "SetHandler mono\nMonoIOMAP all",
    "AddHandler mono .aspx .ashx",
    "SetHandler mono\nMonoMaxMemory 100000000",
    "RPAFproxy_ips 127.0.0.1\nRPAFenable On",
    "RPAFenable On\nRPAFproxy_ips 127.0.0.1 10.",
    "RPAFenable On\nRPAFproxy_ips 127.0.0.1\nRPAFheader X-Own",
    "RPAFenable On\nRPAFsethostname On",
    "RemoteIPInternalProxy 127.0.0.1\nRemoteIPHeader X-Forwarded-For",
    "RemoteIPHeader X-Forwarded-For\nRemoteIPInternalProxy 127.0.0.1",
    "RemoteIPHeader X-Forwarded-For\nRemoteIPTrustedProxy 10.0.0.0/8",
    "Options Indexes",
    "Options -FollowSymLinks",
    "Options +MultiViews",
    "ProxyPass /api http://127.0.0.1:9/\nProxyErrorOverride On",
    "ProxyPass /pp http://127.0.0.1:9/",
    "ProxyPassMatch ^/pm/ http://127.0.0.1:9",
    "ProxyPass /api http://127.0.0.1:9/\nProxyPreserveHost On",
    "ProxyRequests On",
    "ProxySet timeout=5",
    "ProxyPass /api http://127.0.0.1:9/\nProxyTimeout 9",
    "BalancerMember http://127.0.0.1:9",
    "Redirect /r https://other.example/",
    "RedirectMatch ^/rm/(.*)$ https://other.example/$1",
    "RedirectPermanent /rp https://other.example/",
    "RedirectTemp /rt https://other.example/",
    "RequestHeader set X-A b",
    "Require ip 10.0.0.0/8",
    "RewriteEngine On\nRewriteRule ^a$ b.html\nRewriteBase /x",
    "RewriteEngine On\nRewriteRule ^/?rr$ https://other.example/ [R]",
    "RewriteEngine On\nRewriteRule ^/?rr$ /index.html",
    "RewriteEngine On\nRewriteRule ^ - [CO=a:b:c]",
    "RewriteEngine On\nRewriteRule ^ - [E=OWN:1]",
    "RewriteEngine On\nRewriteCond %{REQUEST_FILENAME} !-f\nRewriteRule ^ /index.html [L]",
    "RewriteEngine On\nRewriteCond %{DOCUMENT_ROOT}%{REQUEST_URI} !-f\nRewriteRule ^ /index.html",
    "Order deny,allow\nDeny from all\nAuthType Basic\nAuthUserFile {}/users\nRequire valid-user\nSatisfy any",
    "ScriptAlias /sa {}/sub",
    "ScriptAliasMatch ^/sm/(.*)$ {}/sub/$1",
    "ServerAlias b.example",
    "ServerName c.example",
    "SetHandler server-status",
    "SetHandler proxy:fcgi://127.0.0.1:9",
    "SetOutputFilter DEFLATE",
    "SetOutputFilter OWN",
    "SSLEngine on",
    "SSLEngine on\nSSLCertificateFile /none",
    "User none-of-these",
    "Options +Includes\nXBitHack On",
    "UserDir public_html",
    "VirtualDocumentRoot /srv/%0",
    "OwnDirective x",
    "WSGIScriptAlias /w {}/x.py",
    "WSGIScriptAlias /w {}/x.py process-group=g#\nWSGIDaemonProcess g# processes=2",
    "WSGIDaemonProcess g# processes=2\nWSGIScriptAlias /w {}/x.py\nWSGIProcessGroup g#",
    "WSGIScriptAlias /w {}/x.py\nWSGIPythonHome /none",
    "WSGIScriptAlias /w {}/x.py\nWSGIPythonPath /none",
];

/// Contexts of a line, with the line in place of `@`. The first one is outside of the host.
const CONTEXTS: [&str; 9] = [
    "",
    "@\n",
    "<Directory {}>\n@\n</Directory>\n",
    "<Directory {}/sub>\n@\n</Directory>\n",
    "<Location /sub>\n@\n</Location>\n",
    "<LocationMatch ^/x>\n@\n</LocationMatch>\n",
    "<Files *.txt>\n@\n</Files>\n",
    "<If true>\n@\n</If>\n",
    "# .htaccess\n",
];

const HEAD: &str = "Listen 8080\n";

/// The host of a line. `#` is its name.
const HOST: &str = "<VirtualHost *:8080>\nServerName #.example\nDocumentRoot {}\n\
                    ProxyPass /api http://127.0.0.1:9/\n\
                    <Directory {}>\nAllowOverride All\n</Directory>\n";

#[test]
fn each_line_changes_the_configuration_or_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut lost = Vec::new();
    for (at, context) in CONTEXTS.iter().enumerate() {
        let dir = dir.path().join(at.to_string());
        // A line outside of the hosts applies to all of them.
        let step = if context.is_empty() { 1 } else { LINES.len() };
        for some in LINES.chunks(step) {
            lost.extend(lost_lines(&dir, context, some));
        }
    }
    assert!(lost.is_empty(), "lost:\n{}", lost.join("\n"));
}

/// Returns the lines that the import loses: they get no note, and their site is the same without
/// them.
fn lost_lines(dir: &Path, context: &str, all: &[&str]) -> Vec<String> {
    let shared = tree(&dir.join("www"));
    let (mut texts, mut places) = ([HEAD.to_owned(), HEAD.to_owned()], Vec::new());
    for (at, lines) in all.iter().enumerate() {
        let before = lines.rsplit_once('\n').map_or("", |(before, _)| before);
        let name = format!("h{at}");
        for (text, lines) in texts.iter_mut().zip([before, lines]) {
            let in_file = context.starts_with('#');
            // Each `.htaccess` file needs its own directory.
            let root = if in_file { tree(&dir.join(&name)) } else { shared.clone() };
            let fill = |text: &str| text.replace("{}", &root).replace('#', &name);
            let first = text.lines().count() + 1;
            if context.is_empty() {
                text.push_str(&fill(&format!("{lines}\n")));
            }
            let section = if in_file { String::new() } else { context.replace('@', lines) };
            text.push_str(&fill(&format!("{HOST}{section}</VirtualHost>\n")));
            places.push((first, text.lines().count()));
        }
    }
    let file = dir.join("apache2.conf");
    let mut is_whole = false;
    let [old, found] = texts.map(|text| {
        std::fs::write(&file, text).unwrap();
        for (at, lines) in all.iter().enumerate().filter(|_| context.starts_with('#')) {
            let root = dir.join(format!("h{at}"));
            let lines = if is_whole { lines } else { lines.rsplit_once('\n').map_or("", |l| l.0) };
            let lines = lines.replace("{}", root.to_str().unwrap());
            std::fs::write(root.join(".htaccess"), lines).unwrap();
        }
        is_whole = true;
        translate(&file, Keys::shared()).unwrap()
    });
    let mut lost = Vec::new();
    for (at, lines) in all.iter().enumerate() {
        let last = lines.lines().next_back().unwrap();
        let name = last.split(' ').next().unwrap();
        let (first, end) = places[at * 2 + 1];
        let is_named = found.notes.0.iter().any(|note| {
            let is_here = if note.file.ends_with(".htaccess") {
                note.file.ends_with(&format!("/h{at}/.htaccess"))
            } else {
                (first..=end).contains(&note.line)
            };
            is_here && (note.directive.starts_with(name) || note.directive.starts_with('<'))
        });
        let site = |draft: &Draft| site(draft, &format!("h{at}.example"));
        if !is_named && site(&old) == site(&found) && !has_no_effect(name, context, lines) {
            lost.push(format!("{context:?}: {lines:?}"));
        }
    }
    lost
}

/// Returns true for a line without an effect in Apache.
fn has_no_effect(name: &str, context: &str, lines: &str) -> bool {
    let is_section = context.starts_with(['<', '#']);
    match name {
        // Virtual hosts have their own names, directories and rules.
        "ServerName" | "ServerAlias" | "DocumentRoot" => context.is_empty(),
        "RewriteCond" | "RewriteRule" => context.is_empty(),
        // Only directories have a base.
        "RewriteBase" => !is_section,
        // In a section, these two lines have no effect: the `ProxyPass` above them is for paths
        // outside of the section.
        "ProxyPreserveHost" | "ProxyTimeout" => is_section,
        name if name.starts_with("Redirect") => context.contains("sub"),
        _ => lines.is_empty(),
    }
}

#[test]
fn the_lines_above_have_all_directives_that_the_translation_reads() {
    let sections = ["Directory", "Files", "Location", "Proxy", "Require", "VirtualHost"];
    let own =
        ["RewriteOptions", "SSLCACertificateFile", "SSLCertificateKeyFile", "SSLVerifyClient"];
    for name in READ {
        let is_section = sections.iter().any(|s| name.starts_with(s));
        let has = LINES.iter().any(|lines| lines.lines().any(|line| line.starts_with(name)));
        assert!(has || is_section || own.contains(name), "{name}");
    }
    assert!(names::NEEDLESS.iter().all(|name| !READ.contains(name)));
}

/// Creates the files of a host. Returns their directory.
fn tree(root: &Path) -> String {
    std::fs::create_dir_all(root.join("sub")).unwrap();
    for name in ["404.html", "404.php", "index.html", "start.html", "a.txt", "x.py"] {
        std::fs::write(root.join(name), name).unwrap();
    }
    let program = root.join("run.fcgi");
    std::fs::write(&program, "#!/bin/sh\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(program, mode).unwrap();
    std::fs::write(root.join("users"), "ann:$apr1$abcdefgh$w1Qb7IQwGkhQ9lJrzxXQb.\n").unwrap();
    root.display().to_string()
}

/// Returns the tables of the process, of one site and of its applications, without comments.
fn site(draft: &Draft, name: &str) -> String {
    let site = draft.sites.iter().find(|site| site.hosts.iter().any(|host| host == name));
    let uses = |app: &str, route: &DraftRoute| route.keys.get("app") == Some(&app.into());
    let apps = draft.apps.iter().filter(|(app, _)| {
        site.is_some_and(|site| site.routes.iter().any(|route| uses(app, route)))
    });
    let apps: Vec<_> = apps.collect();
    let routes = site.map(|site| {
        let of = |route: &DraftRoute| format!("{:?} {:?}", route.matcher, route.keys);
        (&site.listen, &site.hosts, &site.keys, site.routes.iter().map(of).collect::<Vec<_>>())
    });
    let process = (&draft.server, &draft.limits, &draft.timeouts);
    format!("{routes:?} {apps:?} {process:?}")
}
