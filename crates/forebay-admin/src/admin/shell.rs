//! The frame of all pages: head, style, script and security policy.

use super::{AdminAnswer, escape};

pub const SCRIPT_PATH: &str = "/status/page.js";
pub const STYLE_PATH: &str = "/status/page.css";
pub const SCRIPT: &str = include_str!("assets/page.js");
pub const STYLE: &str = include_str!("assets/page.css");

/// Returns the answer for an HTML page. Its headers forbid the page to load anything from other
/// origins, and forbid all pages to show this page in a frame.
pub fn secured(page: String) -> AdminAnswer {
    const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                          connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; \
                          frame-ancestors 'none'";
    AdminAnswer::new(200, "text/html; charset=utf-8", page)
        .with("Content-Security-Policy", POLICY)
        .with("Referrer-Policy", "no-referrer")
}

/// Returns the beginning of a page, up to `</head>`. `more` is HTML for the head.
pub fn head(title: &str, more: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <link rel=\"icon\" href=\"data:,\"><link rel=\"stylesheet\" href=\"{STYLE_PATH}\">\
         {more}<title>{}</title></head>\n",
        escape(title)
    )
}
