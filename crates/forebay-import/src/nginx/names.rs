//! The names of nginx's directives that may restrict access or answer requests, and the next step
//! for directives without a translation.

/// The next step for a directive that the translation reads only in other blocks.
const ELSEWHERE: &str =
    "Forebay has no such key for this block alone: set it for the site or in [server]";

/// Returns true for a directive that may restrict access and has no translation. The translation
/// closes the location of such a directive.
pub fn restricts(name: &str) -> bool {
    const STARTS: [&str; 13] = [
        "auth_",
        "access_by",
        "rewrite_by",
        "secure_link",
        "modsecurity",
        "naxsi",
        "js_access",
        "shib_",
        "testcookie",
        "wallarm_mode",
        "app_protect",
        "accesskey",
        "waf",
    ];
    // The names of these directives begin with an item of `STARTS`. But the directives have a
    // translation, or only slow refusals down.
    const OTHERS: [&str; 5] =
        ["auth_basic", "auth_basic_user_file", "auth_delay", "auth_request", "auth_request_set"];
    const NAMES: [&str; 8] = [
        "include",
        "perl",
        "SecRulesEnabled",
        "BasicRule",
        "geoip2_deny",
        // Without these two directives, the backend would get another method or body than from
        // nginx.
        "proxy_method",
        "proxy_set_body",
        // `disable_symlinks` makes nginx refuse symbolic links, which Forebay follows.
        "disable_symlinks",
    ];
    let is_gate = STARTS.iter().any(|start| name.starts_with(start));
    is_gate && !OTHERS.contains(&name) || NAMES.contains(&name)
}

/// Returns true for a directive that answers requests and has no translation.
pub fn answers(name: &str) -> bool {
    name.ends_with("_pass")
        || name.starts_with("content_by")
        || matches!(
            name,
            "js_content"
                | "api"
                | "hls"
                | "empty_gif"
                | "image_filter"
                | "random_index"
                | "dav_methods"
                | "passenger_enabled"
                | "passenger_app_root"
                | "echo"
        )
}

/// Returns the next step for a directive without a translation.
pub fn next_step(name: &str) -> &'static str {
    match name {
        "client_header_timeout"
        | "large_client_header_buffers"
        | "real_ip_header"
        | "set_real_ip_from"
        | "stub_status" => ELSEWHERE,
        "access_log" => "write the file in `log` of the route",
        "error_page" => "write the file of the page in `error_pages` of the site or of a route",
        "limit_conn" => "see `concurrency_limit`, and connections_per_address of [server.limits]",
        "proxy_pass_request_body" => "the server gets the client's body",
        "try_files" => "add routes for these files before this one",
        "merge_slashes" => {
            "repeated slashes are removed from the path: set merge_slashes = false \
                            in the site if its routes need them"
        }
        "set" => {
            "this variable changes the request or its limit: see `rewrite` and `bandwidth_limit`"
        }
        "proxy_download_rate" | "proxy_upload_rate" => {
            "streams have no limit on their rate: remove the line"
        }
        "proxy_bind" => "Forebay connects from the address that the system selects",
        "include" => "the file does not exist: copy it here, and import again",
        "auth_delay" => "Forebay limits the rate of wrong passwords: remove the line",
        "proxy_method" | "proxy_set_body" => {
            "let the application accept the client's request, then remove `respond`"
        }
        "disable_symlinks" => "check the symbolic links of the directory, then remove `respond`",
        "ssl_ocsp" => {
            "revoked client certificates are not looked up: issue certificates with a short lifetime"
        }
        "flv" | "mp4" => "the files are sent, with ranges; `?start=` has no effect",
        "mail" => "Forebay has no mail proxy: keep nginx for this block",
        "ssi_silent_errors" => "write <!--#config errmsg=\"\" --> into the pages",
        "mirror_request_body" => "see `max_body` of `mirror`",
        "fastcgi_next_upstream" => {
            "Forebay tries another server after a failed connection by itself"
        }
        "proxy_cookie_flags" => "write the attributes that cookies lack in `cookies`",
        "proxy_cookie_path" | "proxy_cookie_domain" => {
            "cookies get the client's host and prefix by `redirect = \"rewrite\"`, the default; other changes are left to the application"
        }
        "ssl_crl" => {
            "revoked client certificates are not looked up: issue certificates with a short lifetime"
        }
        "autoindex_format" => {
            "with `listing = true`, clients get JSON if they send `Accept: application/json`"
        }
        _ if name.starts_with("autoindex_") || name.starts_with("fancyindex") => {
            "write a page for listings: listing = { template = \"listing.html\" }"
        }
        _ if name.starts_with("proxy_cache") || name.starts_with("fastcgi_cache") => {
            "see `cache` in the guide on caching"
        }
        _ if name.starts_with("secure_link") => "use `signed_url`, then remove `respond`",
        _ if name.starts_with("auth_") => {
            "use `basic_auth` or `forward_auth`, then remove `respond`"
        }
        _ if name.starts_with("limit_") => "see `rate_limit` and [server.limits] of the reference",
        _ if name.contains("_by_lua") || name.starts_with("js_") || name.starts_with("perl") => {
            "move this code into the application"
        }
        _ if name.starts_with("ssl_") => "Forebay has no such key: see the guide on TLS",
        _ => {
            "Forebay has no such key: look for one in the configuration reference, or remove the line"
        }
    }
}

#[cfg(test)]
mod tests;
