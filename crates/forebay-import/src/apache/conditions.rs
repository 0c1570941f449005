//! Translates `RewriteCond`.

use super::Cx;
use super::around::Around;
use super::networks::network;
use super::syntax::Directive;
use crate::matcher::Matcher;
use crate::pattern::{self, Use, classify};
use crate::value::{Table, Value};

/// Maximum number of alternatives that `[OR]` may give to one rule.
const MOST_ALTERNATIVES: usize = 32;

/// The translation of the `RewriteCond` lines of a rule.
#[derive(Default)]
pub struct Conditions<'d> {
    /// The rule applies to requests that meet one of these matchers. Empty if the rule applies to
    /// no request.
    pub alternatives: Vec<Matcher>,
    /// True if the rule applies only to missing files.
    pub is_missing: bool,
    /// True if the rule applies only to existing files.
    pub is_present: bool,
    /// True if a line compares a path that Apache has not mapped to a file yet. The rule then also
    /// applies to existing files.
    pub is_unmapped: bool,
    /// The first line without a translation.
    pub unknown: Option<&'d Directive>,
}

/// The meaning of one line.
enum Meaning {
    Always,
    Never,
    /// A test for a missing file.
    Missing(FileKind),
    /// A test for an existing file.
    Present(FileKind),
    /// True for all paths, because Apache has not mapped the path to a file yet.
    Unmapped,
    /// The condition is true for requests that meet one of these matchers.
    Requests(Vec<Matcher>),
    Unknown,
}

/// The kind of file that a test is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileKind {
    /// Regular files: `-f`, `-s` and `-F`.
    Regular,
    /// Files and directories: `-e`.
    Any,
    Directory,
    Link,
}

impl FileKind {
    /// Returns the kind of files for a test such as `-f`, or `None` for a test of another kind.
    fn of(test: &str) -> Option<Self> {
        match test {
            "-f" | "-s" | "-F" => Some(Self::Regular),
            "-e" => Some(Self::Any),
            "-d" => Some(Self::Directory),
            "-l" | "-L" | "-h" => Some(Self::Link),
            _ => None,
        }
    }

    /// Returns true if the kind includes all regular files, which the key `files` sends.
    fn has_files(self) -> bool {
        matches!(self, Self::Regular | Self::Any)
    }
}

impl Meaning {
    fn when(when: Table) -> Self {
        Self::Requests(vec![Matcher { when, ..Matcher::default() }])
    }

    /// Returns the condition that is true for requests that do not meet `when`.
    fn not(when: Table) -> Self {
        Self::when(Table::default().with("not", when))
    }
}

/// Translates the `RewriteCond` lines of a rule. `around` is the context of the rule. If some lines
/// have no translation, the field `unknown` of the result names the first of these lines.
pub fn read<'d>(cx: &Cx<'_>, list: &[&'d Directive], around: Around<'_>) -> Conditions<'d> {
    let mut found = Conditions { alternatives: vec![Matcher::default()], ..Conditions::default() };
    let mut group = Vec::new();
    let mut other = None;
    for (at, condition) in list.iter().enumerate() {
        group.push(meaning(cx, condition, around));
        if has_flag(condition, ["OR", "ORNEXT"]) && at + 1 < list.len() {
            continue;
        }
        let meaning = either(std::mem::take(&mut group));
        if matches!(meaning, Meaning::Missing(kind) if !kind.has_files()) {
            other.get_or_insert(*condition);
            continue;
        }
        let is_known = add(&mut found, meaning);
        if !is_known {
            found.unknown.get_or_insert(condition);
        }
    }
    // Alone, a test such as `!-d` also holds for existing files, so the rule is not only for
    // missing files. Together with `!-f`, the test needs no translation.
    if !found.is_missing {
        found.unknown = found.unknown.or(other);
    }
    found
}

/// Returns the meaning of several lines if one of them must hold, and all of them test for existing
/// files. Returns `None` if a line is another test.
fn either_present(group: &[Meaning]) -> Option<Meaning> {
    let kind = |one: &Meaning| if let Meaning::Present(kind) = one { Some(*kind) } else { None };
    let kinds = group.iter().map(kind).collect::<Option<Vec<_>>>()?;
    let files = kinds.iter().find(|kind| kind.has_files());
    // The key `files` cannot tell existing directories or links from missing ones.
    Some(files.map_or(Meaning::Unknown, |kind| Meaning::Present(*kind)))
}

/// Returns the meaning of several lines if one of them must hold, and all of them test for missing
/// files. Returns `None` if a line is another test.
fn either_missing(group: &[Meaning]) -> Option<Meaning> {
    let kind = |one: &Meaning| if let Meaning::Missing(kind) = one { Some(*kind) } else { None };
    let kinds = group.iter().map(kind).collect::<Option<Vec<_>>>()?;
    let first = *kinds.first()?;
    let has = |wanted| kinds.contains(&wanted);
    Some(match () {
        // No path is both a regular file and a directory, so one of the tests always holds.
        () if has(FileKind::Regular) && has(FileKind::Directory) => Meaning::Always,
        () if kinds.iter().all(|kind| *kind == first) => Meaning::Missing(first),
        () if kinds.iter().all(|kind| kind.has_files()) => Meaning::Missing(FileKind::Regular),
        () => Meaning::Unknown,
    })
}

/// Returns the meaning of several lines if one of them must hold.
fn either(mut group: Vec<Meaning>) -> Meaning {
    group.retain(|one| !matches!(one, Meaning::Never));
    if group.is_empty() {
        return Meaning::Never;
    }
    if let Some(meaning) = either_present(&group).or_else(|| either_missing(&group)) {
        return meaning;
    }
    let (mut all, mut is_unknown) = (Vec::new(), false);
    for one in group {
        match one {
            Meaning::Always => return Meaning::Always,
            Meaning::Unmapped => return Meaning::Unmapped,
            Meaning::Requests(matchers) => all.extend(matchers),
            Meaning::Never => {}
            Meaning::Missing(_) | Meaning::Present(_) | Meaning::Unknown => is_unknown = true,
        }
    }
    if is_unknown { Meaning::Unknown } else { Meaning::Requests(all) }
}

/// Adds a condition to `found`, so that the old conditions and `meaning` must all hold. Returns
/// false if `meaning` has no translation, or if one route cannot have all of these conditions.
fn add(found: &mut Conditions<'_>, meaning: Meaning) -> bool {
    match meaning {
        Meaning::Always => {}
        Meaning::Never => found.alternatives.clear(),
        Meaning::Missing(_) => found.is_missing = true,
        Meaning::Present(_) => found.is_present = true,
        Meaning::Unmapped => found.is_unmapped = true,
        Meaning::Unknown => return false,
        Meaning::Requests(matchers) => {
            let mut all = Vec::new();
            for own in &found.alternatives {
                for other in &matchers {
                    match both(own, other) {
                        Some(matcher) => all.push(matcher),
                        None if own.conflicts_with(other) => return false,
                        None => {}
                    }
                }
            }
            if all.len() > MOST_ALTERNATIVES {
                return false;
            }
            found.alternatives = all;
        }
    }
    true
}

/// Returns the matcher of requests that meet both matchers. For two values of one field in `not`,
/// the result has a list of both values. Returns `None` if no request meets both matchers, or if
/// one matcher cannot have all of their conditions.
fn both(own: &Matcher, other: &Matcher) -> Option<Matcher> {
    let nots = (own.when.get("not").cloned(), other.when.get("not").cloned());
    let (Some(Value::Table(ours)), Some(Value::Table(theirs))) = nots else {
        return own.and(other);
    };
    let without = |matcher: &Matcher| {
        let mut matcher = matcher.clone();
        matcher.when.remove("not");
        matcher
    };
    let mut merged = without(own).and(&without(other))?;
    let not = if ours == theirs { ours } else { joined(&ours, &theirs)? };
    merged.when.set("not", not);
    Some(merged)
}

/// Returns a table for the requests that meet `ours` or `theirs`. Returns `None` if one of these
/// tables has several keys, or if their keys differ.
fn joined(ours: &Table, theirs: &Table) -> Option<Table> {
    let ([(key, own)], [(other_key, other)]) = (&ours.0[..], &theirs.0[..]) else { return None };
    if key != other_key {
        return None;
    }
    let value = match (own, other) {
        (Value::Table(own), Value::Table(other)) => Value::Table(joined(own, other)?),
        (own, other) => {
            let list = |value: &Value| match value {
                Value::List(list) => Some(list.clone()),
                Value::Text(_) => Some(vec![value.clone()]),
                _ => None,
            };
            Value::List([list(own)?, list(other)?].concat())
        }
    };
    Some(Table::default().with(key, value))
}

fn has_flag(condition: &Directive, names: [&str; 2]) -> bool {
    let flags = condition.arg(2).trim_start_matches('[').trim_end_matches(']');
    flags.split(',').any(|flag| names.iter().any(|name| flag.trim().eq_ignore_ascii_case(name)))
}

/// Returns the meaning of a test for a file, or `None` for a test of another kind. `is_server` is
/// true for a rule outside of directories. For such a rule, Apache evaluates `REQUEST_FILENAME`
/// before it maps the path to a file, so the variable is the path of the URL:
/// <https://httpd.apache.org/docs/2.4/mod/mod_rewrite.html>. The translation assumes that no file
/// has the path of a URL, and that only `/` is a directory. For the test `!-d`, even `/` is no
/// directory, because Apache repeats the request for `/` with the path of the index file.
fn file_test(text: &str, test: &str, is_server: bool) -> Option<Meaning> {
    let (is_not, kind) = test.strip_prefix('!').map_or((false, test), |kind| (true, kind));
    let file = FileKind::of(kind)?;
    let text = text.to_ascii_uppercase();
    let is_name = matches!(&*text, "%{REQUEST_FILENAME}" | "%{SCRIPT_FILENAME}");
    let below_root = text.strip_prefix("%{DOCUMENT_ROOT}").map(|rest| rest.trim_start_matches('/'));
    let is_mapped = match below_root {
        Some("%{REQUEST_URI}") => true,
        Some("%{REQUEST_FILENAME}" | "%{SCRIPT_FILENAME}") => is_server,
        _ => text == "%{LA-U:REQUEST_FILENAME}" || is_name && !is_server,
    };
    Some(match (is_mapped, is_name, is_not, kind) {
        (true, _, true, _) => Meaning::Missing(file),
        (true, _, false, _) => Meaning::Present(file),
        (_, true, true, _) => Meaning::Unmapped,
        (_, true, false, "-d" | "-e") => Meaning::Requests(vec![Matcher::path("/")]),
        (_, true, false, _) => Meaning::Never,
        _ => Meaning::Unknown,
    })
}

fn meaning(cx: &Cx<'_>, condition: &Directive, around: Around<'_>) -> Meaning {
    let scheme = around.scheme;
    let (test, pattern) = (condition.arg(0), condition.arg(1));
    let ignores_case = has_flag(condition, ["NC", "NOCASE"]);
    let name = test.strip_prefix("%{").and_then(|rest| rest.strip_suffix('}')).unwrap_or("");
    let name = name.to_ascii_uppercase();
    if let Some(meaning) = file_test(test, pattern, around.url.is_none()) {
        return meaning;
    }
    match (name.as_str(), pattern) {
        ("HTTPS", "off" | "!on" | "!=on" | "=off" | "^off$" | "!^on$") => only(scheme, "http"),
        ("HTTPS", "on" | "!off" | "!=off" | "=on" | "^on$" | "!^off$") => only(scheme, "https"),
        ("SERVER_PORT", "80" | "^80$" | "!443" | "!^443$") => only(scheme, "http"),
        ("SERVER_PORT", "443" | "^443$") => only(scheme, "https"),
        ("REQUEST_METHOD", methods) => method(methods),
        // Such conditions only exclude an icon or the front controller itself, so they need no
        // translation.
        ("REQUEST_URI", "!=/favicon.ico" | "!^/index\\.php") => Meaning::Always,
        ("REQUEST_URI", text) if !text.starts_with(['!', '=', '<', '>', '-']) => {
            match classify(text, ignores_case, cx.keys, Use::Exact) {
                Ok(path) => Meaning::Requests(vec![path.matcher]),
                Err(_) => Meaning::Unknown,
            }
        }
        _ if !cx.keys.route("when") => Meaning::Unknown,
        ("REMOTE_ADDR", text) => address(text),
        ("QUERY_STRING", text) => query(text, ignores_case),
        (name, text) => match field_name(name) {
            Some(field) => field_value(&field, text, ignores_case),
            None => Meaning::Unknown,
        },
    }
}

/// Returns the meaning of a condition that requires the scheme `wanted`. All listeners of a site
/// have the same scheme, so the rule applies to all requests of the site or to none. `scheme` is
/// `None` if the scheme of the site is unknown.
fn only(scheme: Option<&str>, wanted: &str) -> Meaning {
    match scheme {
        Some(scheme) if scheme == wanted => Meaning::Always,
        Some(_) => Meaning::Never,
        None => Meaning::Unknown,
    }
}

fn method(text: &str) -> Meaning {
    let (is_not, text) = text.strip_prefix('!').map_or((false, text), |text| (true, text));
    let text = text.strip_prefix('=').unwrap_or(text);
    let bare = text.trim_start_matches('^').trim_end_matches('$');
    let is_whole = text.starts_with('^') && text.ends_with('$');
    let bare = bare.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')).unwrap_or(bare);
    let bare = bare.strip_prefix("?:").unwrap_or(bare);
    let list: Vec<String> = bare.split('|').map(str::to_owned).collect();
    let is_method =
        |method: &String| !method.is_empty() && method.bytes().all(|b| b.is_ascii_uppercase());
    // Without `^` and `$`, an expression such as `PROP` also matches longer methods such as
    // PROPFIND. So without them, accept only usual methods.
    let usual =
        ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "TRACK", "QUERY"];
    let is_usual = |method: &String| usual.contains(&method.as_str()) || method == "DEBUG";
    if !list.iter().all(is_method) || !is_whole && !list.iter().all(is_usual) {
        return Meaning::Unknown;
    }
    if !is_not {
        return Meaning::Requests(vec![Matcher::default().with_methods(list)]);
    }
    // In Forebay, GET includes HEAD, so a condition that excludes GET also excludes HEAD. Add HEAD
    // again if the list does not name HEAD.
    let head = (list.iter().any(|method| method == "GET")
        && !list.iter().any(|method| method == "HEAD"))
    .then(|| Matcher::default().with_methods(vec!["HEAD".into()]));
    let others = Table::default().with("not", Table::default().with("method", list));
    let others = Matcher { when: others, ..Matcher::default() };
    Meaning::Requests(std::iter::once(others).chain(head).collect())
}

/// Translates a condition on the address of the client, such as `^10\.` or `=192.0.2.1`. Returns
/// `Meaning::Unknown` for expressions of another form.
fn address(text: &str) -> Meaning {
    let (is_not, text) = text.strip_prefix('!').map_or((false, text), |text| (true, text));
    let plain = match text.strip_prefix('=') {
        Some(address) => address.parse::<std::net::IpAddr>().ok().map(|_| address.to_owned()),
        None => text.strip_prefix('^').map(|text| text.replace("\\.", ".")).and_then(|text| {
            let whole =
                text.strip_suffix('$').filter(|text| text.parse::<std::net::IpAddr>().is_ok());
            let is_start = text.ends_with('.') && !text.contains(':');
            whole.map(str::to_owned).or_else(|| is_start.then(|| text.clone()))
        }),
    };
    // The dots of a beginning must be escaped, because `^10.` is also the start of 100.0.0.1.
    let has_plain_dots = text.replace("\\.", "").contains('.') && !text.starts_with('=');
    let network =
        plain.filter(|_| !has_plain_dots || text.ends_with('$')).and_then(|text| network(&text));
    let Some(network) = network else { return Meaning::Unknown };
    let when = Table::default().with("client", vec![network]);
    if is_not { Meaning::not(when) } else { Meaning::when(when) }
}

/// Translates a condition on one parameter, such as `(^|&)id=1`. Forebay compares decoded values
/// and accepts the parameter anywhere in the query, so the condition may hold for further requests
/// than in Apache. Returns `Meaning::Unknown` for expressions of another form.
fn query(text: &str, ignores_case: bool) -> Meaning {
    let start = ["(^|&)", "(?:^|&)", "(&|^)", "\\b", "^"].iter().find_map(|s| text.strip_prefix(s));
    let Some((name, value)) = start.and_then(|rest| rest.split_once('=')) else {
        return Meaning::Unknown;
    };
    let is_plain =
        |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    let ends = ["(&|$)", "(?:&|$)", "(.*)$", "(.*)", ".*", "$"];
    let (value, end) =
        ends.iter().find_map(|end| Some((value.strip_suffix(end)?, *end))).unwrap_or((value, ""));
    // Forebay distinguishes upper and lower case in the names of parameters, so the flag NC has no
    // translation.
    if name.is_empty() || !is_plain(name) || !is_plain(value) || ignores_case {
        return Meaning::Unknown;
    }
    let is_whole = end.ends_with("$)") || end == "$";
    let value = match value {
        "" if is_whole => return Meaning::Unknown,
        "" => Value::Bool(true),
        value if is_whole => Value::from(value),
        value => Value::Text(format!("~^{value}")),
    };
    Meaning::when(Table::default().with("query", Table::default().with(name, value)))
}

/// Returns the request field of a variable such as `HTTP_USER_AGENT` or `HTTP:X-Key`. Returns
/// `None` for other variables, and for fields that begin with `X-Forwarded-`.
fn field_name(name: &str) -> Option<String> {
    let field = match name {
        "HTTP_USER_AGENT" => "User-Agent",
        "HTTP_REFERER" => "Referer",
        "HTTP_COOKIE" => "Cookie",
        "HTTP_HOST" => "Host",
        "HTTP_ACCEPT" => "Accept",
        "HTTP:CONNECTION" => "Connection",
        "HTTP:UPGRADE" => "Upgrade",
        "HTTP:X-FORWARDED-PROTO" => "X-Forwarded-Proto",
        // Forebay sets its own values for other `X-Forwarded` fields.
        _ => name.strip_prefix("HTTP:").filter(|field| {
            !field.starts_with("X-FORWARDED-")
                && !field.is_empty()
                && field.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        })?,
    };
    Some(field.to_owned())
}

/// Translates a condition on the value of the request field `field`. Returns `Meaning::Unknown` if
/// the condition has no translation.
fn field_value(field: &str, text: &str, ignores_case: bool) -> Meaning {
    let (is_not, text) = text.strip_prefix('!').map_or((false, text), |text| (true, text));
    let header = |value: &str| Table::default().with("header", Table::default().with(field, value));
    let any = || header("~.");
    match (text, is_not) {
        ("^$" | "=" | "=\"\"", false) | (".", true) => return Meaning::not(any()),
        ("^$" | "=" | "=\"\"", true) | ("." | ".+", false) => return Meaning::when(any()),
        ("^-?$", false) => {
            let empty = Table::default().with("not", any());
            let alternatives = [empty, header("-")];
            let matcher = |when| Matcher { when, ..Matcher::default() };
            return Meaning::Requests(alternatives.map(matcher).to_vec());
        }
        (".*" | "^" | "^.*$", false) => return Meaning::Always,
        _ => {}
    }
    // A client may send a field twice. Apache compares both values as one text, but Forebay
    // compares each value, so `not` would hold for fewer requests. Readers use only one value of
    // the fields below, so `not` is correct for these fields.
    let single = ["User-Agent", "Referer", "Host", "Upgrade", "X-Forwarded-Proto"];
    if is_not && !single.contains(&field) {
        return Meaning::Unknown;
    }
    let value = match text.strip_prefix('=') {
        Some("") => return Meaning::Unknown,
        Some(value) if ignores_case => format!("~*^{}$", regex_syntax::escape(value)),
        Some(value) if value.starts_with('~') => return Meaning::Unknown,
        Some(value) => value.to_owned(),
        None => {
            let is_other = text.starts_with(['<', '>', '-']);
            // In Apache, an expression that matches an empty text also holds for a missing field.
            // In Forebay, it does not, so such an expression has no translation.
            if is_other || !pattern::is_readable(text) || pattern::may_be_empty(text) {
                return Meaning::Unknown;
            }
            format!("{}{text}", if ignores_case { "~*" } else { "~" })
        }
    };
    if is_not { Meaning::not(header(&value)) } else { Meaning::when(header(&value)) }
}
