//! Translates simple CEL expressions of matchers to lines of matchers.
//!
//! An expression has a translation if it is a conjunction of calls such as `path('/x*')` or
//! `!method('GET')`, and of the comparisons below. Other expressions have none.

use super::syntax::Directive;

/// Calls that have the meaning of the matcher with the same name.
const CALLS: [&str; 8] = [
    "path",
    "method",
    "host",
    "protocol",
    "remote_ip",
    "client_ip",
    "path_regexp",
    "header_regexp",
];

/// Translates an `expression` to lines of a named matcher. All lines must match. Returns `None`
/// if a term has no translation.
pub fn lines(directive: &Directive) -> Option<Vec<Directive>> {
    let text = directive.args.join(" ");
    let line = |words: Vec<String>| {
        let (name, args) = words.split_first()?;
        Some(directive.with_words(name.clone(), args.to_vec()))
    };
    terms(&text)?.into_iter().map(|term| line(of_term(term.trim())?)).collect()
}

/// Splits an expression at `&&`. Returns `None` if a quoted text does not end.
fn terms(text: &str) -> Option<Vec<&str>> {
    let (mut terms, mut start, mut quote) = (Vec::new(), 0, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, '&') if text[at..].starts_with("&&") && at >= start => {
                terms.push(&text[start..at]);
                start = at + 2;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    quote.is_none().then_some(terms)
}

/// Returns the words of the line for one term of an expression. Returns `None` if the term has no
/// translation.
fn of_term(term: &str) -> Option<Vec<String>> {
    if let Some(negated) = term.strip_prefix('!') {
        let call = call(negated.trim_start())?;
        return Some([vec!["not".to_owned()], call].concat());
    }
    call(term).or_else(|| contains(term)).or_else(|| comparison(term))
}

/// Returns the words of a call such as `path('/a', '/b')`. Returns `None` for other terms.
fn call(term: &str) -> Option<Vec<String>> {
    let (name, rest) = term.split_once('(')?;
    let list = rest.strip_suffix(')')?;
    if !CALLS.contains(&name.trim_end()) {
        return None;
    }
    let mut words = vec![name.trim_end().to_owned()];
    let mut rest = list.trim();
    loop {
        let (text, after) = quoted(rest)?;
        words.push(text.to_owned());
        match after.trim_start() {
            "" => return Some(words),
            after => rest = after.strip_prefix(',')?.trim_start(),
        }
    }
}

/// Returns the words for `{header.NAME}.contains('TEXT')`. Returns `None` for other terms, and for
/// a text with a comma or a space.
fn contains(term: &str) -> Option<Vec<String>> {
    let rest = term.strip_prefix('{')?;
    let (placeholder, rest) = rest.split_once("}.contains(")?;
    let of_request = placeholder.strip_prefix("http.request.").unwrap_or(placeholder);
    let name = of_request.strip_prefix("header.")?;
    let (text, after) = quoted(rest.trim())?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
    // Caddy joins several fields with commas, so a text with a comma could match in two fields at
    // once.
    if after.trim() != ")"
        || text.is_empty()
        || text.contains([',', ' '])
        || !name.chars().all(is_name)
    {
        return None;
    }
    Some(vec!["header_regexp".into(), name.into(), regex_syntax::escape(text)])
}

/// Returns the words for a comparison such as `{method} == 'GET'` or `{path} == '/x'`. Returns
/// `None` for other terms.
fn comparison(term: &str) -> Option<Vec<String>> {
    let (placeholder, text) = term.split_once("==")?;
    let text = text.trim();
    let text = match quoted(text) {
        Some((quoted, "")) => quoted,
        // The parser of the Caddyfile may have removed the quotation marks around the text.
        None if !text.is_empty() && !text.contains([' ', '\'', '"', '(', '{', '|', '+', '?']) => {
            text
        }
        _ => return None,
    };
    let name = match placeholder.trim() {
        "{method}" | "{http.request.method}" => "method",
        "{path}" | "{http.request.uri.path}" if !text.contains(['*', '?', '[', '\\', '%']) => {
            "path"
        }
        "{scheme}" | "{http.request.scheme}" if matches!(text, "http" | "https") => "protocol",
        _ => return None,
    };
    Some(vec![name.into(), text.into()])
}

/// Returns the text in quotation marks at the start, and the text after it. Returns `None` if there
/// is no such text, or if it contains an escape or a placeholder.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| ['\'', '"'].contains(c))?;
    let (inner, after) = text[1..].split_once(quote)?;
    (!inner.contains(['\\', '{'])).then_some((inner, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_simple_expressions_have_a_translation() {
        let words = |text: &str| -> Option<Vec<String>> {
            let found = terms(text)?.into_iter().map(|term| of_term(term.trim()));
            Some(found.collect::<Option<Vec<_>>>()?.iter().map(|words| words.join(" ")).collect())
        };
        for (text, expected) in [
            ("path('/a*', \"/b\")", Some(&["path /a* /b"][..])),
            ("{method} == 'POST' && !path('/x*')", Some(&["method POST", "not path /x*"])),
            ("{method} == POST", Some(&["method POST"])),
            ("{http.request.uri.path} == \"/a && b\"", Some(&["path /a && b"])),
            ("{header.User-Agent}.contains(\"b.t\")", Some(&["header_regexp User-Agent b\\.t"])),
            ("host('a.test') && protocol('https')", Some(&["host a.test", "protocol https"])),
            ("path('/a') || path('/b')", None),
            ("!(path('/a') && method('GET'))", None),
            ("(path('/a'))", None),
            ("{path} == '/a*'", None),
            ("{path} == '/a' ? true : false", None),
            ("{path} != '/a'", None),
            ("{method} == 'A' || true", None),
            ("{path}.startsWith('/a')", None),
            ("{header.X}.contains('a,b')", None),
            ("{header.X}.contains('a') == false", None),
            ("path('/a\\'')", None),
            ("path('{env.X}')", None),
            ("path('/a'", None),
            ("path()", None),
            ("path('/a') == false", None),
            ("&& path('/a')", None),
            ("", None),
            ("'", None),
        ] {
            let expected =
                expected.map(|lines| lines.iter().map(|line| (*line).to_owned()).collect());
            assert_eq!(words(text), expected, "{text}");
        }
    }
}
