//! The names of Apache's directives: those with a translation, those that need none, and the next
//! step for others.

/// Directives that the translation reads.
pub const READ: &[&str] = &[
    "AddMonoApplications",
    "MonoApplications",
    "MonoIOMAP",
    "MonoSetEnv",
    "MonoSetServerAlias",
    "RPAFenable",
    "RPAFheader",
    "RPAFproxy_ips",
    "RemoteIPHeader",
    "RemoteIPInternalProxy",
    "RemoteIPTrustedProxy",
    "AddDefaultCharset",
    "AddHandler",
    "AddOutputFilter",
    "AddOutputFilterByType",
    "AddType",
    "Alias",
    "AliasMatch",
    "Allow",
    "AllowEncodedSlashes",
    "AuthName",
    "AuthType",
    "AuthUserFile",
    "AuthBasicProvider",
    "BalancerMember",
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
    "FcgidInitialEnv",
    "FcgidMaxRequestLen",
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
    "ProxyErrorOverride",
    "ProxyPass",
    "ProxyPassMatch",
    "ProxyPreserveHost",
    "ProxyRequests",
    "ProxySet",
    "ProxyTimeout",
    "Redirect",
    "RedirectMatch",
    "RedirectPermanent",
    "RedirectTemp",
    "RequestHeader",
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
    "PerlResponseHandler",
    "PerlHandler",
    "PerlPostReadRequestHandler",
    "PerlTransHandler",
    "PerlMapToStorageHandler",
    "PerlInitHandler",
    "PerlHeaderParserHandler",
    "PerlAccessHandler",
    "PerlAuthenHandler",
    "PerlAuthzHandler",
    "PerlAddAuthnProvider",
    "PerlAddAuthzProvider",
    "PerlTypeHandler",
    "PerlFixupHandler",
    "PerlInputFilterHandler",
    "PerlOutputFilterHandler",
    "PerlLogHandler",
    "PerlCleanupHandler",
    "PerlChildInitHandler",
    "PerlChildExitHandler",
    "PerlSetVar",
    "PerlAddVar",
    "PerlSetEnv",
    "PerlPassEnv",
    "PerlOptions",
    "PerlSwitches",
    "PerlModule",
    "PerlRequire",
    "PerlConfigRequire",
    "PerlPostConfigRequire",
    "SetOutputFilter",
    "SSLCACertificateFile",
    "SSLCertificateFile",
    "SSLCertificateKeyFile",
    "SSLEngine",
    "SSLVerifyClient",
    "User",
    "VirtualHost",
    "WSGIDaemonProcess",
    "WSGIProcessGroup",
    "WSGIPythonHome",
    "WSGIPythonPath",
    "WSGIScriptAlias",
    "XBitHack",
];

/// Directives that do not change replies, or that need no key in Forebay. For example, the defaults
/// of Forebay do the work of `ProxyPassReverse`, and `AllowOverride` only decides which access
/// files the import reads.
pub const NEEDLESS: &[&str] = &[
    "AllowOverride",
    "AllowOverrideList",
    "BrowserMatch",
    "ProxyPassReverse",
    "ProxyPassReverseCookieDomain",
    "ProxyPassReverseCookiePath",
    "RequestReadTimeout",
    "Timeout",
    "AcceptFilter",
    "AccessFileName",
    "AddCharset",
    "AddEncoding",
    "AddIcon",
    "AddIconByEncoding",
    "AddIconByType",
    "AddLanguage",
    "AddIconByName",
    "AuthBasicAuthoritative",
    "BrowserMatchNoCase",
    "DefaultIcon",
    "DefaultRuntimeDir",
    "DeflateCompressionLevel",
    "EnableMMAP",
    "EnableSendfile",
    "ErrorLog",
    "ErrorLogFormat",
    "FcgidConnectTimeout",
    "FcgidErrorScanInterval",
    "FcgidIPCDir",
    "FcgidIdleScanInterval",
    "FcgidProcessTableFile",
    "FcgidZombieScanInterval",
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
    "MaxClients",
    "MaxConnectionsPerChild",
    "MaxRequestsPerChild",
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
    "MonoDebug",
    "MonoDocumentRootDir",
    "MonoExecutablePath",
    "MonoListenAddress",
    "MonoListenBacklog",
    "MonoListenPort",
    "MonoMinThreads",
    "MonoPath",
    "MonoRunXSP",
    "MonoServerPath",
    "MonoTargetFramework",
    "MonoUnixSocket",
    "MonoUnixUmask",
    "MonoWapiDir",
    "MonoXSPStartAttempts",
    "MonoXSPStartWaitTime",
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
    "WSGIApplicationGroup",
    "WSGIPassAuthorization",
    "WSGIRestrictEmbedded",
    "WSGIScriptReloading",
    "WSGISocketPrefix",
    "ExtendedStatus",
    "SSLProxyEngine",
    "SSLProxyVerify",
    "SSLProxyCheckPeerName",
    "SSLProxyCheckPeerCN",
    "SSLProxyCheckPeerExpire",
    "Define",
];

/// Returns true for a directive that the translation reads, or that needs no translation.
pub fn is_known(name: &str) -> bool {
    READ.iter().any(|known| known.eq_ignore_ascii_case(name)) || is_needless(name)
}

/// Returns true for a directive that does not change replies, or that needs no key in Forebay.
pub fn is_needless(name: &str) -> bool {
    NEEDLESS.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// The next step for a directive that Forebay does not know.
pub const UNKNOWN: &str =
    "Forebay has no such key: look for one in the configuration reference, or remove the line";

/// Returns the next step for the user if a directive has no translation.
pub fn next_step(name: &str) -> &'static str {
    let lower = name.to_ascii_lowercase();
    match lower.as_str() {
        "include" => "the file does not exist: copy it here, and import again",
        "authgroupfile" => "name the members of the group in `users` of `basic_auth`",
        "authdbmuserfile" | "authldapurl" => "users come from a file of htpasswd: see `basic_auth`",
        _ if lower.starts_with("authdigest") => "use `digest_auth` with a file of htdigest",
        "fcgidinitialenv" => "write the variable in `env` of the application",
        "fcgidmaxrequestlen" => "write the size in `max_body` of the application's routes",
        "fcgidwrapper" => {
            "write an application of kind \"php\", or of kind \"command\" with the wrapper in `run`"
        }
        _ if lower.starts_with("fcgid") || lower.starts_with("fastcgi") => {
            "see `workers`, `request_timeout` and the other keys of [app.NAME] of kind \"command\""
        }
        "setenv" | "passenv" => "write the variable in `env` of the application, or in `params`",
        _ if lower.starts_with("wsgi") => {
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
        "virtualdocumentroot" | "virtualdocumentrootip" => "write a site for each host",
        _ if lower.starts_with("modsecurity") || lower.starts_with("sec") => {
            "there is no such filter"
        }
        "perl" => "Forebay runs no Perl of a configuration: write what it configures as routes",
        _ if lower.starts_with("perl") => {
            "write it as a key of an application of kind \"mod-perl\": see the guide \"From mod_perl\""
        }
        _ if lower.starts_with("mono") => {
            "see `max_memory`, `max_requests` and the other keys of [app.NAME] of kind \"mono\""
        }
        "rpafsethostname" => {
            "let the proxy pass the client's Host, as `proxy_set_header Host $host` of nginx does"
        }
        _ if lower.starts_with("dav") => "Forebay serves no WebDAV: PUT and its like are refused",
        _ if lower.starts_with("cache") => {
            "write cache = true in the route: see the guide on caching"
        }
        "userdir" => "write a route with `files` for each user",
        "customlog" => {
            "choose a file that Forebay may write: [log] with access = \"FILE\" and format = \"combined\""
        }
        "errordocument" => "write the page to a file, and name it in `error_pages`",
        "proxyrequests" => "Forebay is no forward proxy: keep Apache for this host",
        _ => UNKNOWN,
    }
}
