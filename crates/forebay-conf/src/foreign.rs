//! Advice for keys of other servers: the names that Forebay uses for the same things.

use crate::file::places;

/// Returns true if another server has a key with this name, and [`advice`] explains it. The message
/// then does not suggest a similar key of Forebay.
pub(crate) fn is_known(typed: &str) -> bool {
    advice(typed).is_some()
}

/// Returns the advice for a key that nginx, Apache, Caddy, HAProxy or Traefik know by this name.
/// Returns `None` if there is no advice.
pub(crate) fn advice(typed: &str) -> Option<String> {
    let name = typed.to_ascii_lowercase();
    let (_, ours) =
        NAMES.iter().find(|(names, _)| names.split(' ').any(|foreign| foreign == name))?;
    Some(match ours {
        Ours::Key(key) => match places(key).first() {
            Some(place) => format!("Forebay calls `{typed}` `{key}`, a key of {place}"),
            // No table of this version has the key.
            None => return None,
        },
        Ours::Form(form) => format!("Forebay writes `{typed}` as {form}"),
        Ours::Nothing(why) => format!("Forebay needs no `{typed}`: {why}"),
    })
}

enum Ours {
    /// A key of Forebay with the same meaning.
    Key(&'static str),
    /// Another form than one key: several keys, or a key with a value.
    Form(&'static str),
    /// Forebay needs nothing, for this reason.
    Nothing(&'static str),
}

use Ours::{Form, Key, Nothing};

/// Names of keys in other servers, in lower case and separated by spaces, with Forebay's
/// equivalents.
const NAMES: &[(&str, Ours)] = &[
    // Sites.
    ("server_name servername serveralias server_names virtualhost", Key("hosts")),
    ("documentroot document_root alias root_dir webroot", Form("files = \"DIR\" of a route")),
    (
        "location handle handle_path directory files_match locationmatch",
        Form("[[site.route]] with `path`"),
    ),
    ("port bind ports entrypoints address", Key("listen")),
    (
        "ssl_certificate sslcertificatefile cert certfile crt",
        Form("certificate = \"cert.pem\" of [site.tls]"),
    ),
    ("ssl_certificate_key sslcertificatekeyfile keyfile", Form("key = \"key.pem\" of [site.tls]")),
    ("ssl_client_certificate sslcacertificatefile", Form("client_ca = \"ca.pem\" of [site.tls]")),
    ("ssl_verify_client sslverifyclient", Form("client_auth of [site.tls]")),
    ("ssl_stapling_file", Form("ocsp_staple of [site.tls]")),
    (
        "ssl_protocols sslprotocol ssl_ciphers sslciphersuite ssl_session_cache ssl_session_tickets ssl_session_timeout ssl_prefer_server_ciphers",
        Nothing("TLS 1.2 and 1.3 with modern ciphers are the default"),
    ),
    (
        "http2 http_2 protocols",
        Nothing("https:// listeners speak HTTP/2 as well; `http3` adds HTTP/3"),
    ),
    (
        "set_real_ip_from remoteiptrustedproxy remoteipinternalproxy trusted_ips",
        Key("trusted_proxies"),
    ),
    ("real_ip_header remoteipheader", Key("forwarded")),
    ("allowencodedslashes", Key("encoded_slashes")),
    // Backends.
    (
        "proxy_pass proxypass proxypassmatch reverse_proxy reverse-proxy backend default_backend",
        Form("proxy = \"http://HOST:PORT\" of a route"),
    ),
    (
        "fastcgi_pass php_fastcgi",
        Form(
            "fastcgi = { to = \"unix:...\", root = \"DIR\" } of a route; a whole site is kind = \"php\"",
        ),
    ),
    ("uwsgi_pass", Form("uwsgi = { to = \"HOST:PORT\" } of a route")),
    ("scgi_pass proxypassscgi", Form("scgi = { to = \"HOST:PORT\" } of a route")),
    ("grpc_pass", Form("proxy = \"h2c://HOST:PORT\" of a route")),
    (
        "fastcgi_param uwsgi_param scgi_param",
        Form("params = { NAME = \"value\" } of `fastcgi`, `scgi` or `uwsgi`"),
    ),
    ("fastcgi_index", Form("index = \"index.php\" of `fastcgi`")),
    ("setenv passenv env_vars environment", Key("env")),
    (
        "proxy_set_header header_up requestheader customrequestheaders fastcgi_pass_header",
        Key("request_headers"),
    ),
    ("proxypreservehost proxy_preserve_host passhostheader", Form("host = \"client\" of `proxy`")),
    ("proxypassreverse proxy_redirect", Form("redirect of `proxy`; \"rewrite\" is the default")),
    (
        "proxypassreversecookiedomain proxypassreversecookiepath proxy_cookie_path proxy_cookie_domain",
        Nothing("cookies of a backend are rewritten with its redirects"),
    ),
    (
        "proxy_http_version",
        Form("http_version of `proxy`; HTTP/1.1 with kept connections is the default"),
    ),
    ("proxy_buffering fastcgi_buffering flush_interval flushpackets", Key("buffer")),
    ("proxy_request_buffering fastcgi_request_buffering", Key("request_buffering")),
    ("proxy_ignore_client_abort fastcgi_ignore_client_abort", Key("on_abort")),
    (
        "proxy_buffers proxy_buffer_size fastcgi_buffers fastcgi_buffer_size large_client_header_buffers client_header_buffer_size client_body_buffer_size",
        Nothing("buffers grow as needed, up to [server.limits]"),
    ),
    (
        "proxy_read_timeout fastcgi_read_timeout uwsgi_read_timeout proxytimeout response_header_timeout",
        Form("reply_idle of [server.timeouts]"),
    ),
    ("proxy_connect_timeout fastcgi_connect_timeout", Form("connect of [server.timeouts]")),
    (
        "proxy_send_timeout send_timeout",
        Form("write of [server.timeouts] or of `timeouts` of a route"),
    ),
    ("keepalive_timeout keepalivetimeout", Form("keep_alive of [server.timeouts]")),
    (
        "client_header_timeout client_body_timeout timeout requestreadtimeout",
        Form("`head` and `body_idle` of [server.timeouts]"),
    ),
    (
        "proxy_next_upstream",
        Form(
            "retry = { statuses = [502, 503] } of [upstream.NAME]; requests that were not processed are resent anyway",
        ),
    ),
    ("lb_policy lbmethod", Form("`balance` of [upstream.NAME]")),
    ("ip_hash", Form("balance = \"hash\" of [upstream.NAME]")),
    ("sticky_cookie_insert", Form("sticky = { cookie = \"NAME\" } of [upstream.NAME]")),
    ("max_conns maxconn", Key("max_connections")),
    (
        "healthcheck health_uri health_check httpchk",
        Form("health = { path = \"/\" } of `proxy` or [upstream.NAME]"),
    ),
    (
        "resolver",
        Form("dns_servers = \"127.0.0.1:53\" in [server]; not needed for those of the system"),
    ),
    ("resolver_timeout", Nothing("no request waits for DNS")),
    (
        "proxy_ssl_verify proxy_ssl_trusted_certificate proxy_ssl_name tls_insecure_skip_verify",
        Form("tls = { ca = \"ca.pem\", server_name = \"NAME\" } of `proxy`"),
    ),
    // Answers of routes.
    ("try_files fallbackresource", Form("`fallback_to = \"/index.php\"` beside `files`")),
    ("index directoryindex", Form("files = { root = \"DIR\", index = [\"index.html\"] }")),
    ("autoindex indexoptions browse", Form("files = { root = \"DIR\", listing = true }")),
    (
        "headername readmename fancyindex autoindex_format",
        Form("files = { root = \"DIR\", listing = { template = \"listing.html\" } }"),
    ),
    ("file_server static staticfiles", Form("files = \"DIR\" of a route")),
    (
        "return",
        Form("respond = { status = 404 } or redirect = { to = \"URL\", status = 301 } of a route"),
    ),
    (
        "redir redirectmatch redirectpermanent redirectregex redirectscheme redirecttemp",
        Key("redirect"),
    ),
    ("rewriterule rewrite_rule uri_rewrite stripprefix", Key("rewrite")),
    (
        "rewritecond rewriteengine if",
        Form("`path`, `methods` and other conditions of a [[site.route]]"),
    ),
    ("error_page errordocument handle_errors", Key("error_pages")),
    (
        "scriptalias cgi_bin addhandler",
        Form("cgi = \"DIR\" of a route, or an [app.NAME] of kind = \"cgi-bin\""),
    ),
    ("x_accel_redirect xsendfile xsendfilepath", Key("sendfile_root")),
    (
        "gzip gzip_types gzip_min_length gzip_comp_level brotli encode addoutputfilterbydeflate deflatecompressionlevel",
        Key("compress"),
    ),
    ("sub_filter sub_filter_types sub_filter_once substitute replace_response", Key("replace")),
    ("ssi ssi_types ssi_last_modified includes xbithack", Key("ssi")),
    ("gzip_static brotli_static", Form("files = { root = \"DIR\", precompressed = true }")),
    ("disable_symlinks", Form("files = { root = \"DIR\", follow_symlinks = \"owner\" }")),
    (
        "sendfile tcp_nopush tcp_nodelay aio directio open_file_cache enablesendfile enablemmap",
        Nothing("it is always done in the fastest way"),
    ),
    // Fields of replies.
    (
        "add_header header header_down customresponseheaders more_set_headers headers",
        Key("set_headers"),
    ),
    ("proxy_hide_header fastcgi_hide_header more_clear_headers", Key("remove_headers")),
    ("expiresdefault expiresbytype expiresactive", Key("expires")),
    ("server_tokens serversignature servertokens", Nothing("replies do not name the server")),
    // Access and limits.
    (
        "auth_basic auth_basic_user_file authuserfile authtype authname basicauth",
        Form("basic_auth = { file = \"htpasswd\" } of a route"),
    ),
    ("auth_request forwardauth", Key("forward_auth")),
    ("require allow_from deny_from ipallowlist ipwhitelist", Form("`allow` and `deny` of a route")),
    (
        "limit_except limit limitexcept allowmethods",
        Form("`allow_methods` or `open_methods` of a route"),
    ),
    ("limit_req limit_req_zone ratelimit", Key("rate_limit")),
    ("secure_link secure_link_md5 secure_link_secret", Key("signed_url")),
    (
        "proxy_cache proxy_cache_path proxy_cache_valid proxy_cache_key fastcgi_cache fastcgi_cache_path \
         fastcgi_cache_valid fastcgi_cache_key cacheenable",
        Form("cache = true of a route"),
    ),
    ("proxy_mirror request_mirror mirror_request_body", Key("mirror")),
    ("limit_rate limit_rate_after", Key("bandwidth_limit")),
    ("limit_conn limit_conn_zone", Form("`concurrency_limit` of a route")),
    ("client_max_body_size limitrequestbody request_body max_request_body_size", Key("max_body")),
    ("limitrequestfields", Form("`fields` of [server.limits]")),
    ("limitrequestfieldsize limitrequestline", Form("`head_size` and `target` of [server.limits]")),
    ("auth_jwt auth_jwt_key_file authjwt", Form("jwt = { key = \"public.pem\" } of a route")),
    (
        "authdigestprovider authdigestdomain",
        Form("digest_auth = { file = \"htdigest\", realm = \"...\" }"),
    ),
    ("authz_svn_access requireall requireany satisfyany", Key("satisfy")),
    ("copy_headers auth_request_set authresponseheaders", Form("`copy` of `forward_auth`")),
    ("geo valid_referers", Form("`when` of a route, with `client` or `header.Referer`")),
    ("split_clients", Form("`weight` of the servers in `to`")),
    (
        "mod_evasive dospagecount connlimit",
        Form("`rate_limit` of a route, and `connections_per_address`"),
    ),
    (
        "proxy_ignore_headers fastcgi_ignore_headers",
        Nothing("the rules of HTTP decide what may be stored"),
    ),
    ("proxy_cache_bypass proxy_no_cache", Form("`when` of a route without `cache`")),
    ("proxy_intercept_errors fastcgi_intercept_errors proxyerroroverride", Key("intercept")),
    ("proxy_hide_headers header_remove", Key("remove_headers")),
    ("fileetag etag if_modified_since", Nothing("files have an ETag and Last-Modified")),
    ("max_ranges maxranges", Form("`max_ranges` of `files`")),
    (
        "languagepriority addlanguage multiviews",
        Form("files = { root = \"DIR\", languages = [\"en\", \"de\"] }"),
    ),
    ("ignore_invalid_headers", Key("underscores_in_headers")),
    ("hsts strict_transport_security", Form("\"Strict-Transport-Security\" in `set_headers`")),
    ("access_control_allow_origin", Key("cors")),
    ("protocolshonororder listenbacklog acceptfilter reuseport", Nothing("the default is right")),
    ("proxy_bind proxysourceaddress", Nothing("the system chooses the address")),
    (
        "ssl_dhparam ssl_ecdh_curve ssl_buffer_size sslopensslconfcmd",
        Nothing("TLS 1.2 and 1.3 with modern curves are the default"),
    ),
    ("sslengine ssl", Form("the prefix https:// in `listen`")),
    ("fcgiwrapper fcgidwrapper wsgiscriptalias passengerapproot", Form("[app.NAME] with `kind`")),
    (
        "phpadminvalue php_value php_admin_value php_flag",
        Form("`ini` of an application of the kind php"),
    ),
    // The process, logs and files.
    (
        "access_log customlog accesslog",
        Form("access = \"FILE\" of [log], or log = \"FILE\" of a site"),
    ),
    ("log_format logformat", Form("format of [log]")),
    (
        "error_log errorlog loglevel",
        Nothing("errors go to standard error, which the service manager keeps"),
    ),
    ("worker_processes serverlimit nbthread threadsperchild", Form("`threads` of [server]")),
    (
        "worker_connections maxrequestworkers maxclients worker_rlimit_nofile",
        Form("`connections` of [server.limits]"),
    ),
    (
        "import includeoptional snippet",
        Form("include = \"conf.d/*.toml\" at the top, or [set.NAME] with use = [\"NAME\"]"),
    ),
    ("server http vhost", Form("[[site]]")),
    ("stub_status extendedstatus server-status", Form("admin = \"127.0.0.1:9900\" of [server]")),
    (
        "pid pidfile daemon master_process multi_accept use accept_mutex",
        Nothing("the service manager takes care of it"),
    ),
    (
        "email acme_ca letsencrypt autohttps auto_https",
        Form("acme = { email = \"...\" } of [site.tls]"),
    ),
    (
        "upstreams server_group balancer balancermember",
        Form("[upstream.NAME] with to = [\"URL\", \"URL\"]"),
    ),
    (
        "add_type addtype mime forcetype",
        Form("files = { root = \"DIR\", types = { \".foo\" = \"application/x-foo\" } }"),
    ),
    ("adddefaultcharset addcharset source_charset", Key("charset")),
    ("merge_slashes_off mergeslashes", Key("merge_slashes")),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_of_other_servers_are_translated() {
        for (typed, part) in [
            ("client_max_body_size", "`max_body`, a key of"),
            ("LimitRequestBody", "`max_body`, a key of"),
            ("add_header", "`set_headers`, a key of [[site.route]]"),
            ("proxy_pass", "proxy = \"http://HOST:PORT\""),
            ("try_files", "fallback_to"),
            ("ssl_protocols", "needs no `ssl_protocols`"),
            ("php_fastcgi", "kind = \"php\""),
            ("server_name", "`hosts`, a key of [[site]]"),
        ] {
            let advice = advice(typed).unwrap_or_else(|| panic!("{typed}"));
            assert!(advice.contains(part), "{advice}");
        }
        assert_eq!(advice("colour"), None);
    }

    #[test]
    fn each_name_is_in_one_row() {
        let mut seen = HashSet::new();
        for name in NAMES.iter().flat_map(|(names, _)| names.split(' ')) {
            assert!(seen.insert(name), "{name} is given twice");
            assert_eq!(name, name.to_ascii_lowercase());
        }
    }
}
