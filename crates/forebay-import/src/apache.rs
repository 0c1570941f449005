//! Translates configurations of Apache httpd: <https://httpd.apache.org/docs/2.4/>.

mod access;
mod bases;
mod conditions;
mod expressions;
mod fields;
mod globs;
mod handlers;
mod htaccess;
mod includes;
mod listeners;
mod media;
mod named_files;
mod narrow;
mod networks;
mod place;
mod proxies;
mod regions;
mod rewrites;
mod sections;
mod syntax;
mod targets;
mod vhosts;

use std::path::{Path, PathBuf};

use crate::draft::Draft;
use crate::keys::Keys;
use crate::source::ImportError;
use syntax::{Directive, is, line};

/// The state of a translation.
struct Cx<'a> {
    keys: &'a Keys,
    /// The directives outside of virtual hosts.
    main: &'a [Directive],
    /// Base directory of relative paths (`ServerRoot`).
    root: PathBuf,
    draft: Draft,
}

impl Cx<'_> {
    /// Adds a note: Forebay has no full translation of this directive. Returns the note as a
    /// comment for the draft.
    fn note(&mut self, directive: &Directive, next: impl Into<String>) -> String {
        self.draft.notes.add(&directive.place, &line(directive), next)
    }

    /// Adds notes on the directives that the translation does not read. Returns the notes as
    /// comments.
    fn note_unread(&mut self, block: &[Directive]) -> Vec<String> {
        let unread = block.iter().filter(|directive| !is_read(&directive.name));
        let unread: Vec<&Directive> = unread.collect();
        let notes = unread.iter().map(|found| self.note(found, next_step(&found.name)));
        let mut notes: Vec<_> = notes.collect();
        for section in block.iter().filter(|directive| is_plain_section(directive)) {
            notes.extend(self.note_unread(section.inside()));
        }
        notes
    }

    /// Returns a path as an absolute path without a final slash.
    fn path(&self, path: &str) -> String {
        let path = crate::files::below(&self.root, path);
        if path.len() > 1 { path.trim_end_matches('/').to_owned() } else { path }
    }
}

/// Returns true for a section that a path or a file name selects. Directives in other sections get
/// their notes when the section is translated.
fn is_plain_section(directive: &Directive) -> bool {
    ["Directory", "Location", "Files", "FilesMatch", "Proxy"]
        .iter()
        .any(|name| is(directive, name) && directive.arg(0) != "~")
        && !directive.arg(0).contains(['*', '?', '['])
}

pub fn translate(file: &Path, keys: &Keys) -> Result<Draft, ImportError> {
    let main = syntax::read(file)?;
    let root = main.iter().find(|directive| is(directive, "ServerRoot"));
    let root = root.map_or("/etc/apache2", |root| root.arg(0));
    let mut cx = Cx { keys, main: &main, root: root.into(), draft: Draft::default() };
    if main.is_empty() {
        let message = format!("{} has no directives", file.display());
        return Err(ImportError::new(
            message,
            "give apache2.conf, httpd.conf, or the file of a site",
        ));
    }
    vhosts::translate(&mut cx);
    Ok(cx.draft)
}

/// Directives that the translation reads.
const READ: &[&str] = &[
    "AddDefaultCharset",
    "AddHandler",
    "AddOutputFilter",
    "AddOutputFilterByType",
    "AddType",
    "Alias",
    "AliasMatch",
    "Allow",
    "AllowOverride",
    "AllowOverrideList",
    "AuthName",
    "AuthType",
    "AuthUserFile",
    "AuthBasicProvider",
    "BalancerMember",
    "BrowserMatch",
    "CustomLog",
    "Deny",
    "Directory",
    "DirectoryIndex",
    "DirectoryMatch",
    "DocumentRoot",
    "ErrorDocument",
    "ExpiresActive",
    "ExpiresByType",
    "ExpiresDefault",
    "FallbackResource",
    "Files",
    "FilesMatch",
    "ForceType",
    "Group",
    "Header",
    "KeepAlive",
    "KeepAliveTimeout",
    "LimitRequestBody",
    "Listen",
    "Location",
    "LocationMatch",
    "MaxKeepAliveRequests",
    "Options",
    "Order",
    "Proxy",
    "ProxyMatch",
    "ProxyPass",
    "ProxyPassMatch",
    "ProxyPassReverse",
    "ProxyPassReverseCookieDomain",
    "ProxyPassReverseCookiePath",
    "ProxyPreserveHost",
    "ProxyRequests",
    "ProxySet",
    "ProxyTimeout",
    "Redirect",
    "RedirectMatch",
    "RedirectPermanent",
    "RedirectTemp",
    "RequestHeader",
    "RequestReadTimeout",
    "Require",
    "RequireAll",
    "RequireAny",
    "RequireNone",
    "RewriteBase",
    "RewriteCond",
    "RewriteEngine",
    "RewriteOptions",
    "RewriteRule",
    "Satisfy",
    "ScriptAlias",
    "ScriptAliasMatch",
    "ServerAlias",
    "ServerName",
    "SetHandler",
    "SetOutputFilter",
    "SSLCACertificateFile",
    "SSLCertificateFile",
    "SSLCertificateKeyFile",
    "SSLEngine",
    "SSLVerifyClient",
    "Timeout",
    "User",
    "VirtualHost",
    "XBitHack",
];

/// Directives that do not change replies, or that need no key in Forebay.
const NEEDLESS: &[&str] = &[
    "AcceptFilter",
    "AccessFileName",
    "AddCharset",
    "AddEncoding",
    "AddIcon",
    "AddIconByEncoding",
    "AddIconByType",
    "AddLanguage",
    "AddIconByName",
    "AllowEncodedSlashes",
    "AuthBasicAuthoritative",
    "BrowserMatchNoCase",
    "DefaultIcon",
    "DefaultRuntimeDir",
    "DeflateCompressionLevel",
    "EnableMMAP",
    "EnableSendfile",
    "ErrorLog",
    "ErrorLogFormat",
    "FileETag",
    "ForceLanguagePriority",
    "HostnameLookups",
    "HttpProtocolOptions",
    "IndexIgnore",
    "IndexOptions",
    "IndexStyleSheet",
    "KeptBodySize",
    "LanguagePriority",
    "LoadModule",
    "LogFormat",
    "LogLevel",
    "MaxConnectionsPerChild",
    "MaxRanges",
    "MaxRequestWorkers",
    "MaxSpareServers",
    "MaxSpareThreads",
    "MinSpareServers",
    "MinSpareThreads",
    "Mutex",
    "NameVirtualHost",
    "PidFile",
    "Protocols",
    "ProtocolsHonorOrder",
    "ProxyAddHeaders",
    "ProxyBadHeader",
    "ProxyStatus",
    "ProxyVia",
    "ReceiveBufferSize",
    "SSLCertificateChainFile",
    "SSLCipherSuite",
    "SSLCompression",
    "SSLHonorCipherOrder",
    "SSLInsecureRenegotiation",
    "SSLOpenSSLConfCmd",
    "SSLOptions",
    "SSLPassPhraseDialog",
    "SSLProtocol",
    "SSLRandomSeed",
    "SSLSessionCache",
    "SSLSessionCacheTimeout",
    "SSLSessionTickets",
    "SSLStaplingCache",
    "SSLStrictSNIVHostCheck",
    "SSLUseStapling",
    "SSLVerifyDepth",
    "ScriptSock",
    "ServerAdmin",
    "ServerLimit",
    "ServerSignature",
    "ServerTokens",
    "SetEnvIf",
    "SetEnvIfNoCase",
    "StartServers",
    "StartThreads",
    "ThreadLimit",
    "ThreadStackSize",
    "ThreadsPerChild",
    "TraceEnable",
    "TransferLog",
    "TypesConfig",
    "UseCanonicalName",
    "VirtualDocumentRootIP",
    "ExtendedStatus",
    "SSLProxyEngine",
    "SSLProxyVerify",
    "SSLProxyCheckPeerName",
    "SSLProxyCheckPeerCN",
    "SSLProxyCheckPeerExpire",
    "UserDir",
    "Define",
];

fn is_read(name: &str) -> bool {
    READ.iter().chain(NEEDLESS).any(|known| known.eq_ignore_ascii_case(name))
}

/// Returns the next step for the user if a directive has no translation.
fn next_step(name: &str) -> &'static str {
    let lower = name.to_ascii_lowercase();
    match lower.as_str() {
        "include" => "the file does not exist: copy it here, and import again",
        "authgroupfile" | "authdbmuserfile" | "authdigestdomain" | "authldapurl" => {
            "users come from a file of htpasswd: see `basic_auth`"
        }
        "setenv" | "passenv" => "write the variable in `env` of the application, or in `params`",
        "wsgiscriptalias" | "wsgidaemonprocess" | "wsgiprocessgroup" | "wsgipythonpath" => {
            "run the application with [app.NAME], kind = \"wsgi\", dir and module = \"wsgi:application\""
        }
        "php_value" | "php_flag" | "php_admin_value" | "php_admin_flag" => {
            "write the setting in `ini` of the PHP application, or in php-fpm's pool"
        }
        "substitute" => "write the texts in `replace`: see the guide on changing pages",
        "defaulttype" => {
            "Apache 2.4 ignores it. For files without a known type: `default_type` of `files`"
        }
        "headername" | "readmename" => {
            "listings have no text of their directory: use listing = { template = \"listing.html\" }"
        }
        "limit" | "limitexcept" => {
            "write `allow_methods` for 405, or `open_methods` to exempt methods from a rule"
        }
        "if" | "else" | "elseif" => "Forebay has no such condition: see `when` of a route",
        "virtualdocumentroot" => "write a site for each host",
        _ if lower.starts_with("modsecurity") || lower.starts_with("sec") => {
            "there is no such filter"
        }
        _ if lower.starts_with("perl") => {
            "handlers need mod_perl: keep Apache for them. Scripts of ModPerl::Registry: kind = \"perl-cgi\""
        }
        _ if lower.starts_with("dav") => "Forebay serves no WebDAV: PUT and its like are refused",
        _ if lower.starts_with("cache") => {
            "write cache = true in the route: see the guide on caching"
        }
        _ => {
            "Forebay has no such key: look for one in the configuration reference, or remove the line"
        }
    }
}
