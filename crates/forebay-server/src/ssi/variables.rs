//! The variables of a page: variables of the request, and variables that the page sets.

use std::borrow::Cow;

use forebay_net::head::Request;
use forebay_wire::cgi::server_port;
use forebay_wire::http1::host_of;
use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;

use crate::stream::IncludeState;

/// Maximum length of the name of a variable.
const LONGEST_NAME: usize = 128;

/// The document that the client requested. Pages that this document includes use the same
/// variables.
pub(super) struct Document<'a> {
    /// The request of the document.
    pub request: &'a Request,
    /// Time of the last change of the document.
    pub modified: Option<Timestamp>,
    pub state: &'a IncludeState,
    pub time_format: &'a str,
}

impl Document<'_> {
    /// Returns the value of a variable; `None` if it does not exist. Marks the page as private if
    /// the value may depend on the client, for example on a cookie.
    pub(super) fn value(&self, name: &[u8]) -> Option<Cow<'_, [u8]>> {
        let name = std::str::from_utf8(name).ok().filter(|name| name.len() <= LONGEST_NAME)?;
        if let Some(value) = self.state.variable(name) {
            return Some(value.into());
        }
        self.of_url(name).or_else(|| {
            // The page is private even if this visitor gets no value. For example, another visitor
            // may have the cookie.
            if is_of_visitor(name) {
                self.state.is_private.set(true);
            }
            self.of_visitor(name)
        })
    }

    /// Returns the value of the variable `name`, if this value is the same for all visitors of the
    /// URL.
    fn of_url(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let request = self.request;
        let authority = request.head.authority.map(|span| span.of(&request.bytes));
        let authority = authority.unwrap_or_default();
        let uri = || &request.path[..];
        Some(match name {
            "DATE_LOCAL" | "date_local" => {
                format_time(Timestamp::now(), TimeZone::system(), self.time_format)?.into()
            }
            "DATE_GMT" | "date_gmt" => {
                format_time(Timestamp::now(), TimeZone::UTC, self.time_format)?.into()
            }
            "LAST_MODIFIED" => {
                format_time(self.modified?, TimeZone::system(), self.time_format)?.into()
            }
            "DOCUMENT_URI" | "document_uri" | "uri" | "SCRIPT_NAME" => uri().into(),
            "DOCUMENT_NAME" => uri().rsplit(|&b| b == b'/').next().unwrap_or_default().into(),
            "DOCUMENT_ARGS" | "QUERY_STRING" | "query_string" | "args" => request.query()?.into(),
            "QUERY_STRING_UNESCAPED" => shell_escaped(&decoded(request.query()?)).into(),
            "REQUEST_URI" | "request_uri" => request.original_target().into(),
            "REQUEST_METHOD" | "request_method" => request.method().into(),
            "REQUEST_SCHEME" | "scheme" if request.https => b"https"[..].into(),
            "REQUEST_SCHEME" | "scheme" => b"http"[..].into(),
            "HTTPS" | "https" if request.https => b"on"[..].into(),
            "SERVER_NAME" | "host" | "HTTP_HOST" => host_of(authority).into(),
            "SERVER_PORT" | "server_port" => server_port(request.server, authority, request.https)
                .to_string()
                .into_bytes()
                .into(),
            _ => {
                let parameter = name.strip_prefix("arg_")?;
                request.parameter(parameter)?
            }
        })
    }

    fn of_visitor(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let request = self.request;
        Some(match name {
            "REMOTE_ADDR" | "remote_addr" => request.client.ip()?.to_string().into_bytes().into(),
            "REMOTE_PORT" | "remote_port" => request.client.port().to_string().into_bytes().into(),
            "REMOTE_USER" | "remote_user" if request.user.is_empty() => return None,
            "REMOTE_USER" | "remote_user" => request.user[..].into(),
            _ => {
                if let Some(cookie) = name.strip_prefix("cookie_") {
                    return request.cookie(cookie).map(Cow::Borrowed);
                }
                let value = request.joined_field(&field_name(name)?);
                Some(value).filter(|value| !value.is_empty())?
            }
        })
    }

    /// Returns the names of all variables that may have a value, for `printenv`.
    pub(super) fn names(&self) -> Vec<String> {
        const FIXED: [&str; 17] = [
            "DATE_GMT",
            "DATE_LOCAL",
            "DOCUMENT_ARGS",
            "DOCUMENT_NAME",
            "DOCUMENT_URI",
            "HTTPS",
            "LAST_MODIFIED",
            "QUERY_STRING",
            "QUERY_STRING_UNESCAPED",
            "REMOTE_ADDR",
            "REMOTE_PORT",
            "REMOTE_USER",
            "REQUEST_METHOD",
            "REQUEST_SCHEME",
            "REQUEST_URI",
            "SERVER_NAME",
            "SERVER_PORT",
        ];
        let mut names: Vec<String> = FIXED.map(str::to_owned).to_vec();
        let fields = self.request.head.fields.iter();
        names.extend(fields.map(|field| {
            let name = String::from_utf8_lossy(field.name.of(&self.request.bytes));
            format!("HTTP_{}", name.to_ascii_uppercase().replace('-', "_"))
        }));
        names.extend(self.state.names());
        names.sort();
        names.dedup();
        names
    }

    /// Returns the text with the values of `$NAME` and `${NAME}`. A variable without a value is
    /// empty. A `$` after a backslash remains as text. The result has at most `most` bytes.
    pub(super) fn fill(&self, text: &[u8], most: usize) -> Vec<u8> {
        let (mut out, mut at) = (Vec::new(), 0);
        while at < text.len() && out.len() <= most {
            let rest = &text[at..];
            if rest[0] == b'\\' && rest.get(1) == Some(&b'$') {
                out.push(b'$');
                at += 2;
                continue;
            }
            let (name, length) = if rest[0] == b'$' { name(&rest[1..]) } else { (&b""[..], 0) };
            if name.is_empty() {
                out.push(rest[0]);
                at += 1;
            } else {
                out.extend_from_slice(&self.value(name).unwrap_or_default());
                at += 1 + length;
            }
        }
        out.truncate(most);
        out
    }
}

/// Returns true if the value of this variable may differ between the visitors of one URL.
fn is_of_visitor(name: &str) -> bool {
    let fixed = ["REMOTE_ADDR", "REMOTE_PORT", "REMOTE_USER"];
    fixed.iter().any(|other| other.eq_ignore_ascii_case(name))
        || name.starts_with("cookie_")
        || field_name(name).is_some()
}

/// Returns the name of the request field for a variable, for example `ACCEPT-LANGUAGE` for
/// `HTTP_ACCEPT_LANGUAGE`. Returns `None` for other variables. As in CGI, also returns `None` for
/// fields with credentials, and for `Proxy`.
fn field_name(variable: &str) -> Option<String> {
    let field = variable.strip_prefix("HTTP_").or_else(|| variable.strip_prefix("http_"))?;
    let field = field.replace('_', "-");
    let is_secret =
        ["authorization", "proxy-authorization", "proxy"].contains(&&*field.to_ascii_lowercase());
    (!is_secret).then_some(field)
}

/// Returns the name at the start of `text`, which follows a `$`. Also returns the name's length in
/// `text`, with any braces. If `text` does not begin with a name, the returned name is empty.
fn name(text: &[u8]) -> (&[u8], usize) {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    if let Some(inner) = text.strip_prefix(b"{") {
        let end = memchr::memchr(b'}', inner).unwrap_or(0);
        return (&inner[..end], end + 2);
    }
    let end = text.iter().position(|byte| !is_name(byte)).unwrap_or(text.len());
    (&text[..end], end)
}

/// Returns a time in a format of `strftime`; `None` if the format is wrong.
pub(super) fn format_time(time: Timestamp, zone: TimeZone, format: &str) -> Option<Vec<u8>> {
    let is_utc = zone == TimeZone::UTC;
    let zoned = time.to_zoned(zone);
    // For UTC, write `GMT`, as `strftime` of C does.
    let format = if is_utc { format.replace("%Z", "GMT") } else { format.to_owned() };
    if format == "%s" {
        return Some(time.as_second().to_string().into_bytes());
    }
    strtime::format(&*format, &zoned).ok().map(String::into_bytes)
}

/// Percent-decodes a text.
pub(super) fn decoded(text: &[u8]) -> Vec<u8> {
    let hex = |byte: Option<&u8>| byte.and_then(|b| (*b as char).to_digit(16));
    let (mut out, mut at) = (Vec::new(), 0);
    while at < text.len() {
        let digits = (hex(text.get(at + 1)), hex(text.get(at + 2)));
        if let (b'%', (Some(high), Some(low))) = (text[at], digits) {
            out.push((high * 16 + low) as u8);
            at += 3;
        } else {
            out.push(text[at]);
            at += 1;
        }
    }
    out
}

/// Puts a backslash before each character that has a meaning in a shell, as Apache does for
/// QUERY_STRING_UNESCAPED.
fn shell_escaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for &byte in text {
        if b"&;`'\"|*?~<>^()[]{}$\\\n\r".contains(&byte) {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out
}
