//! Templates: texts with placeholders such as `{client}`, which stand for values of each request.
//!
//! A template is parsed when the configuration is loaded, so that an unknown placeholder is an
//! error at that time. A brace that does not enclose a name is text, because values of fields may
//! contain JSON. `{{` before a letter means one literal `{`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::{Geo, Regex};

/// A text with placeholders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    parts: Vec<TemplatePart>,
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplatePart {
    /// Text that is the same for every request.
    Text(String),
    /// A value of the request.
    Value(Placeholder),
}

/// A value of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placeholder {
    /// `{client}`: the client's address.
    Client,
    /// `{client_port}`: the client's port; 0 if a proxy named the client.
    ClientPort,
    /// `{scheme}`: `http` or `https`.
    Scheme,
    /// `{host}`: the requested host, without its port.
    Host,
    /// `{bare_host}`: the requested host without `www.` at its beginning.
    BareHost,
    /// `{port}`: the port of the listener.
    Port,
    /// `{requested_port}`: a colon and the port in the requested host; empty if it names none. A
    /// redirect to another name on the same listener needs this port, which may differ from the
    /// listener's behind a proxy or a container's port mapping.
    RequestedPort,
    /// `{method}`: the method.
    Method,
    /// `{path}`: the percent-encoded path, as a backend would get it.
    Path,
    /// `{query}`: the query without its question mark.
    Query,
    /// `{uri}`: path and query.
    Uri,
    /// `{rest}`: the part of the path that the `*` of the route matched, or the whole path.
    Rest,
    /// `{prefix}`: the part of the path before the slash that precedes `{rest}`.
    Prefix,
    /// `{user}`: the authenticated user; empty without one.
    User,
    /// `{request_id}`: an identifier of the request, chosen by a trusted proxy or by Forebay.
    RequestId,
    /// `{trace_id}`: the identifier of the request's trace; empty without one.
    TraceId,
    /// `{span_id}`: the identifier of the server's span; empty without one.
    SpanId,
    /// `{tls.subject}`: the subject of the client's certificate; empty without one.
    TlsSubject,
    /// `{country}`: the code of the client's country; empty if it is unknown.
    Country(Arc<Geo>),
    /// `{asn}`: the number of the client's autonomous system; empty if it is unknown.
    Asn(Arc<Geo>),
    /// `{NAME}`: a named group of the route's `path_regex`, by its number from 0.
    Capture(usize),
    /// `{header.NAME}`: the value of a request field. The values of several fields with this name
    /// are joined.
    Header(String),
    /// `{cookie.NAME}`: the value of a cookie.
    Cookie(String),
    /// `{query.NAME}`: the decoded value of a parameter of the query.
    Parameter(String),
    /// `{map.NAME}`: the value of a table [map.NAME].
    Map(Arc<ValueMap>),
    /// `{status}`: the status of the reply. Only for error pages.
    Status,
    /// `{reason}`: the reason phrase of the status. Only for error pages.
    Reason,
}

/// The placeholders that a template may use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scope<'a> {
    /// The names of the groups of the route's `path_regex`.
    pub captures: &'a [String],
    /// The tables [map.NAME].
    pub maps: Option<&'a BTreeMap<String, Arc<ValueMap>>>,
    /// The databases of {country} and {asn}.
    pub geo: Option<&'a Arc<Geo>>,
    /// True for an error page. Such a page may also use `{status}` and `{reason}`, and unknown
    /// placeholders in it are text.
    pub is_page: bool,
}

/// A placeholder that does not exist, without its braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPlaceholder(pub String);

/// The names of placeholders without a parameter.
static NAMES: [(&str, Placeholder); 18] = [
    ("client", Placeholder::Client),
    ("client_port", Placeholder::ClientPort),
    ("scheme", Placeholder::Scheme),
    ("host", Placeholder::Host),
    ("bare_host", Placeholder::BareHost),
    ("port", Placeholder::Port),
    ("requested_port", Placeholder::RequestedPort),
    ("method", Placeholder::Method),
    ("path", Placeholder::Path),
    ("query", Placeholder::Query),
    ("uri", Placeholder::Uri),
    ("rest", Placeholder::Rest),
    ("prefix", Placeholder::Prefix),
    ("user", Placeholder::User),
    ("request_id", Placeholder::RequestId),
    ("trace_id", Placeholder::TraceId),
    ("span_id", Placeholder::SpanId),
    ("tls.subject", Placeholder::TlsSubject),
];

/// The names of placeholders that only error pages have.
static OF_PAGES: [(&str, Placeholder); 2] =
    [("status", Placeholder::Status), ("reason", Placeholder::Reason)];

impl Template {
    /// Returns a template without placeholders.
    pub fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        let parts = if text.is_empty() { Vec::new() } else { vec![TemplatePart::Text(text)] };
        Self { parts }
    }

    /// Returns a template of these parts.
    pub fn of(parts: Vec<TemplatePart>) -> Self {
        Self { parts }
    }

    /// Parses a template. `{{` before a name is one brace. An unknown placeholder is text in a
    /// page, and an error in other templates.
    pub fn parse(typed: &str, scope: Scope<'_>) -> Result<Self, UnknownPlaceholder> {
        let (mut parts, mut text, mut rest) = (Vec::new(), String::new(), typed);
        while let Some((before, after)) = rest.split_once('{') {
            text.push_str(before);
            if let Some(after) = after.strip_prefix('{').filter(|after| begins_with_letter(after)) {
                text.push('{');
                rest = after;
                continue;
            }
            let Some((name, after_name)) = name(after) else {
                text.push('{');
                rest = after;
                continue;
            };
            match placeholder(name, scope) {
                Some(value) => {
                    if !text.is_empty() {
                        parts.push(TemplatePart::Text(std::mem::take(&mut text)));
                    }
                    parts.push(TemplatePart::Value(value));
                    rest = after_name;
                }
                // Values from outside are filled in before, so such a name was escaped.
                None if scope.is_page || name.starts_with("env.") || name.starts_with("file.") => {
                    text.push('{');
                    rest = after;
                }
                None => return Err(UnknownPlaceholder(name.to_owned())),
            }
        }
        text.push_str(rest);
        if !text.is_empty() {
            parts.push(TemplatePart::Text(text));
        }
        Ok(Self { parts })
    }

    /// Returns the parts in their order.
    pub fn parts(&self) -> &[TemplatePart] {
        &self.parts
    }

    /// Returns the text of a template without placeholders. Returns `None` for any other template.
    pub fn constant(&self) -> Option<&str> {
        match &self.parts[..] {
            [] => Some(""),
            [TemplatePart::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Returns true if one of the placeholders in the template meets the condition.
    pub fn uses(&self, is_meant: impl Fn(&Placeholder) -> bool) -> bool {
        self.parts.iter().any(|part| matches!(part, TemplatePart::Value(value) if is_meant(value)))
    }
}

/// The template as a person would type it; a group of `path_regex` by its number. The names of
/// shared counters contain this text, so it must stay the same in later versions.
impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            let value = match part {
                TemplatePart::Text(text) => {
                    f.write_str(text)?;
                    continue;
                }
                TemplatePart::Value(value) => value,
            };
            match value {
                Placeholder::Capture(number) => write!(f, "{{{number}}}")?,
                Placeholder::Header(name) => write!(f, "{{header.{name}}}")?,
                Placeholder::Cookie(name) => write!(f, "{{cookie.{name}}}")?,
                Placeholder::Parameter(name) => write!(f, "{{query.{name}}}")?,
                Placeholder::Country(_) => f.write_str("{country}")?,
                Placeholder::Asn(_) => f.write_str("{asn}")?,
                Placeholder::Map(map) => write!(f, "{{map.{}}}", map.name)?,
                fixed => {
                    let mut names = NAMES.iter().chain(&OF_PAGES);
                    let (name, _) = names
                        .find(|(_, value)| value == fixed)
                        .expect("NAMES and OF_PAGES have each placeholder without a parameter");
                    write!(f, "{{{name}}}")?;
                }
            }
        }
        Ok(())
    }
}

impl Template {
    /// Returns true if the text depends on a placeholder that meets the condition, also through a
    /// table [map.NAME].
    pub fn depends_on(&self, is_meant: &dyn Fn(&Placeholder) -> bool) -> bool {
        self.uses(|value| match value {
            Placeholder::Map(map) => map.templates().any(|text| text.depends_on(is_meant)),
            value => is_meant(value),
        })
    }
}

/// A table [map.NAME]. It assigns a value to each text of `from`, like nginx's `map`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValueMap {
    /// NAME of the table.
    pub name: String,
    /// The text that is looked up. It contains no map.
    pub from: Template,
    /// Values whose key must equal the looked-up text.
    pub exact: BTreeMap<String, Template>,
    /// Values of texts with this beginning and this end. Longer patterns come first.
    pub globs: Vec<(String, String, Template)>,
    /// Values of texts that an expression matches. The first expression that matches counts.
    pub expressions: Vec<(Regex, Template)>,
    /// The value of all other texts.
    pub default: Template,
}

impl ValueMap {
    /// Returns the value for a text. The first of these entries applies: the exact text, a pattern
    /// with `*`, a regular expression, the default.
    pub fn value(&self, text: &[u8]) -> &Template {
        let exact = str::from_utf8(text).ok().and_then(|text| self.exact.get(text));
        if let Some(value) = exact {
            return value;
        }
        let fits = |start: &str, end: &str| {
            text.len() >= start.len() + end.len()
                && text.starts_with(start.as_bytes())
                && text.ends_with(end.as_bytes())
        };
        let glob = self.globs.iter().find(|(start, end, _)| fits(start, end));
        if let Some((_, _, value)) = glob {
            return value;
        }
        let found = self.expressions.iter().find(|(expression, _)| expression.is_match(text));
        found.map_or(&self.default, |(_, value)| value)
    }

    /// Returns `from` and all values of the table.
    pub fn templates(&self) -> impl Iterator<Item = &Template> {
        std::iter::once(&self.from).chain(self.values())
    }

    /// Returns all values of the table.
    pub fn values(&self) -> impl Iterator<Item = &Template> {
        let globs = self.globs.iter().map(|(_, _, value)| value);
        let expressions = self.expressions.iter().map(|(_, value)| value);
        std::iter::once(&self.default).chain(self.exact.values()).chain(globs).chain(expressions)
    }
}

impl Placeholder {
    /// Returns the names of all placeholders without a parameter.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }
}

fn begins_with_letter(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// Returns the name before the closing brace, and the text after that brace. Returns `None` if the
/// text in braces is no name.
fn name(after_brace: &str) -> Option<(&str, &str)> {
    let (name, after) = after_brace.split_once('}')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    (begins_with_letter(name) && name.chars().all(is_name)).then_some((name, after))
}

/// Returns the placeholder with this name. A group of the route's regular expression takes
/// precedence. Returns `None` for an unknown name.
fn placeholder(name: &str, scope: Scope<'_>) -> Option<Placeholder> {
    if let Some(group) = scope.captures.iter().position(|capture| capture == name) {
        return Some(Placeholder::Capture(group));
    }
    let of_pages = OF_PAGES.iter().filter(|_| scope.is_page);
    let mut fixed = NAMES.iter().chain(of_pages);
    if let Some((_, value)) = fixed.find(|(fixed, _)| *fixed == name) {
        return Some(value.clone());
    }
    match (name, scope.geo) {
        ("country", Some(geo)) => return Some(Placeholder::Country(geo.clone())),
        ("asn", Some(geo)) => return Some(Placeholder::Asn(geo.clone())),
        _ => {}
    }
    let (kind, parameter) = name.split_once('.').filter(|(_, parameter)| !parameter.is_empty())?;
    let parameter = parameter.to_owned();
    match kind {
        "header" => Some(Placeholder::Header(parameter)),
        "cookie" => Some(Placeholder::Cookie(parameter)),
        "query" => Some(Placeholder::Parameter(parameter)),
        "map" => scope.maps?.get(&parameter).cloned().map(Placeholder::Map),
        _ => None,
    }
}

/// Returns true if a group of a `path_regex` cannot have this name, because a placeholder has it.
pub(crate) fn is_taken(name: &str) -> bool {
    matches!(name, "country" | "asn")
        || NAMES.iter().chain(&OF_PAGES).any(|(taken, _)| *taken == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<TemplatePart>, UnknownPlaceholder> {
        let captures = ["title".to_owned()];
        let scope = Scope { captures: &captures, ..Scope::default() };
        Template::parse(text, scope).map(|template| template.parts)
    }

    fn text(text: &str) -> TemplatePart {
        TemplatePart::Text(text.into())
    }

    #[test]
    fn placeholders_are_found_between_text() {
        let value = TemplatePart::Value;
        for (typed, parts) in [
            ("", vec![]),
            ("plain", vec![text("plain")]),
            ("{client}", vec![value(Placeholder::Client)]),
            ("a{host}b", vec![text("a"), value(Placeholder::Host), text("b")]),
            ("{title}{rest}", vec![value(Placeholder::Capture(0)), value(Placeholder::Rest)]),
            ("{header.X-A}", vec![value(Placeholder::Header("X-A".into()))]),
            ("{cookie.a_b}", vec![value(Placeholder::Cookie("a_b".into()))]),
            ("{query.q}", vec![value(Placeholder::Parameter("q".into()))]),
            ("{tls.subject}", vec![value(Placeholder::TlsSubject)]),
        ] {
            assert_eq!(parse(typed), Ok(parts), "{typed}");
        }
    }

    #[test]
    fn other_braces_are_text() {
        for typed in [
            "{\"group\":{\"a\":[1]}}",
            "{ client }",
            "{",
            "}",
            "{}",
            "{client",
            "{1}",
            "a{b c}",
            "{env.A}",
        ] {
            assert_eq!(parse(typed), Ok(vec![text(typed)]), "{typed}");
        }
        assert_eq!(parse("{{client}"), Ok(vec![text("{client}")]));
        assert_eq!(parse("{{\"a\""), Ok(vec![text("{{\"a\"")]));
    }

    #[test]
    fn an_unknown_placeholder_is_named() {
        for (typed, name) in [("a{clent}", "clent"), ("{header.}", "header."), ("{enw.A}", "enw.A")]
        {
            assert_eq!(parse(typed), Err(UnknownPlaceholder(name.into())));
        }
        assert_eq!(parse("{status}"), Err(UnknownPlaceholder("status".into())));
    }

    #[test]
    fn a_page_keeps_braces_that_it_does_not_know() {
        let scope = Scope { is_page: true, ..Scope::default() };
        let page = Template::parse("a{color:red}{b}{status}", scope).unwrap();
        assert_eq!(page.parts, [text("a{color:red}{b}"), TemplatePart::Value(Placeholder::Status)]);
    }
}
