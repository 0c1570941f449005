//! Resolves the listing of a directory, and parses its template.

mod html;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::value::required;
use super::{Context, Resolution};
use crate::error::{Problem, advice, reason};
use crate::file::{self, At, BoolOr};
use crate::files;
use crate::key::paths::file;
use crate::plan::{Listing, ListingPart, ListingTemplate, ListingValue};
use crate::suggest::nearest;

use html::HtmlPosition;

/// The largest template, in bytes. Templates are kept in memory.
const LARGEST: usize = 256 * 1024;

/// The largest part for an entry, in bytes. A listing repeats this part up to 10,000 times.
const LARGEST_ENTRY: usize = 8 * 1024;

/// The longest name in braces that may be a placeholder.
const LONGEST_NAME: usize = 32;

const BEGIN: &str = "entries";
const END: &str = "/entries";

pub(super) fn listing(
    context: &Context<'_>,
    typed: &Option<At<BoolOr<file::Listing>>>,
) -> Resolution<Listing> {
    let at = match typed {
        None | Some(At { value: BoolOr::Bool(false), .. }) => return Ok(Listing::Never),
        Some(At { value: BoolOr::Bool(true), .. }) => return Ok(Listing::BuiltIn),
        Some(at) => at,
    };
    let BoolOr::Table(table) = &at.value else { return Ok(Listing::BuiltIn) };
    let typed = required(&table.template, &at.span, "template", "\"listing.html\"")?;
    let path = file(context.sources, typed)?;
    let shown = path.display().to_string();
    let problem = |line: Option<usize>, mistake: Mistake| {
        let line = line.map(|line| format!(", line {line}")).unwrap_or_default();
        Problem::new(&typed.span, format!("cannot use {shown}{line}: {}", mistake.what))
            .help(mistake.next)
    };
    let text = read(&path).map_err(|mistake| problem(None, mistake))?;
    let line_of = |at: usize| 1 + text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count();
    let template = parse(&text, path).map_err(|(at, mistake)| problem(at.map(line_of), mistake))?;
    Ok(Listing::Template(Arc::new(template)))
}

/// A mistake in a template, and the next step for the user.
#[derive(Debug, PartialEq, Eq)]
struct Mistake {
    what: String,
    next: String,
}

impl Mistake {
    fn new(what: impl Into<String>, next: impl Into<String>) -> Self {
        Self { what: what.into(), next: next.into() }
    }
}

/// Reads a template. Fails if the file cannot be read, has more than `LARGEST` bytes, or is not
/// UTF-8.
fn read(path: &Path) -> Result<String, Mistake> {
    let bytes = files::read(path, LARGEST as u64)
        .map_err(|error| Mistake::new(reason(&error), advice(&error)))?;
    if bytes.len() > LARGEST {
        let next = "a template has at most 256 KiB: link to large pictures and styles";
        return Err(Mistake::new("it is too large", next));
    }
    String::from_utf8(bytes).map_err(|_| Mistake::new("it is not UTF-8", "save it as UTF-8"))
}

/// Parses a template. An error contains the mistake, and its byte offset in the template. The
/// offset is `None` if the template has no {entries}.
fn parse(typed: &str, file: PathBuf) -> Result<ListingTemplate, (Option<usize>, Mistake)> {
    let mut parser = ListingParser::default();
    let mut at = 0;
    while let Some(found) = typed[at..].find('{') {
        parser.push_text(&typed[at..at + found]);
        at += found;
        let after = &typed[at + 1..];
        if after.strip_prefix('{').is_some_and(|after| name(after).is_some()) {
            parser.push_text("{");
            at += 2;
            continue;
        }
        let is_placeholder = match name(after) {
            Some(name) => parser.placeholder(name, at).map_err(|mistake| (Some(at), mistake))?,
            None => false,
        };
        at += match name(after) {
            Some(name) if is_placeholder => name.len() + 2,
            _ => {
                parser.push_text("{");
                1
            }
        };
    }
    parser.push_text(&typed[at..]);
    parser.finish(file)
}

/// Returns the name before the closing brace. Returns `None` if the text in braces is no name.
fn name(after_brace: &str) -> Option<&str> {
    let bytes = &after_brace.as_bytes()[..after_brace.len().min(LONGEST_NAME + 1)];
    let name = &after_brace[..bytes.iter().position(|byte| *byte == b'}')?];
    let rest = name.strip_prefix('/').unwrap_or(name);
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    (rest.starts_with(|c: char| c.is_ascii_alphabetic()) && rest.chars().all(is_name))
        .then_some(name)
}

#[derive(Default)]
struct ListingParser {
    position: HtmlPosition,
    /// The parts since the last `{entries}` or `{/entries}`.
    parts: Vec<ListingPart>,
    text: String,
    before: Option<Vec<ListingPart>>,
    entry: Option<Vec<ListingPart>>,
    /// The offset of `{entries}` in the template, and its position in the HTML.
    begin: Option<(usize, HtmlPosition)>,
}

impl ListingParser {
    fn push_text(&mut self, text: &str) {
        self.text.push_str(text);
        text.bytes().for_each(|byte| self.position.push(byte));
    }

    /// Adds a placeholder. Returns false if the template keeps the braces as text. Returns an error
    /// for a misspelt placeholder, and for a placeholder that must not be at this position.
    fn placeholder(&mut self, name: &str, at: usize) -> Result<bool, Mistake> {
        if name == BEGIN || name == END {
            self.mark(name == BEGIN, at)?;
            return Ok(true);
        }
        let known = ListingValue::ALL.iter().find(|(known, _)| *known == name);
        let Some((_, value)) = known else {
            let names = ListingValue::ALL.iter().map(|(known, _)| *known).chain([BEGIN, END]);
            return match nearest(name, names) {
                Some(near) => Err(Mistake::new(
                    format!("there is no placeholder {{{name}}}"),
                    format!("write {{{near}}}; for a brace before a name write {{{{"),
                )),
                // The name resembles no placeholder, so the braces may belong to a style or a
                // script, and stay text.
                None => Ok(false),
            };
        };
        if value.is_of_entry() && (self.before.is_none() || self.entry.is_some()) {
            return Err(Mistake::new(
                format!("{{{name}}} belongs to an entry"),
                "move it between {entries} and {/entries}; for a brace before a name write {{",
            ));
        }
        if value.is_free_text() && !self.position.takes_free_text() {
            return Err(Mistake::new(
                format!("{{{name}}} could become a script or a link here"),
                "use it in text, or in quotes as the value of `title`, `alt`, `value`, \
                 `download`, `aria-...` or `data-...`; {href} is for links",
            ));
        }
        if value.is_link() && !self.position.takes_link() {
            return Err(Mistake::new(
                format!("{{{name}}} could become a part of a script or of another link here"),
                format!("begin a quoted attribute with it, such as href=\"{{{name}}}\""),
            ));
        }
        self.end_text();
        self.parts.push(ListingPart::Value(*value));
        // Values contain no markup, so in the HTML a value has the same effect as a letter.
        self.position.push(b'x');
        Ok(true)
    }

    /// Records {entries} or {/entries} at the offset `at`. A listing repeats the part between
    /// {entries} and {/entries} for each entry.
    fn mark(&mut self, is_begin: bool, at: usize) -> Result<(), Mistake> {
        self.end_text();
        match (is_begin, &self.begin, &self.entry) {
            (true, None, _) => {
                self.begin = Some((at, self.position.clone()));
                self.before = Some(std::mem::take(&mut self.parts));
                Ok(())
            }
            (true, Some(_), _) => Err(Mistake::new("{entries} is given twice", "leave one out")),
            (false, Some((begin, position)), None) => {
                if at - begin > LARGEST_ENTRY {
                    return Err(Mistake::new(
                        "the part for an entry is too large",
                        "keep at most 8 KiB between {entries} and {/entries}",
                    ));
                }
                if !position.is_same_place(&self.position) {
                    return Err(Mistake::new(
                        "the part for an entry begins or ends within a tag",
                        "put {entries} and {/entries} between tags",
                    ));
                }
                self.entry = Some(std::mem::take(&mut self.parts));
                Ok(())
            }
            (false, ..) => {
                Err(Mistake::new("{/entries} has no {entries} before it", "put {entries} first"))
            }
        }
    }

    fn end_text(&mut self) {
        if !self.text.is_empty() {
            self.parts.push(ListingPart::Text(std::mem::take(&mut self.text)));
        }
    }

    /// Returns the template, or the same kind of error as `parse`.
    fn finish(mut self, file: PathBuf) -> Result<ListingTemplate, (Option<usize>, Mistake)> {
        self.end_text();
        match (self.before, self.entry) {
            (Some(before), Some(entry)) => {
                Ok(ListingTemplate { file, before, entry, after: self.parts })
            }
            (Some(_), None) => {
                let begin = self.begin.map(|(at, _)| at);
                Err((begin, Mistake::new("{entries} has no end", "add {/entries} after it")))
            }
            (None, _) => Err((
                None,
                Mistake::new(
                    "it has no part for the entries",
                    "add one, such as {entries}<li><a href=\"{href}\">{name}</a>{/entries}",
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> Result<ListingTemplate, String> {
        parse(text, PathBuf::new()).map_err(|(at, mistake)| format!("{at:?}: {}", mistake.what))
    }

    #[test]
    fn a_template_has_text_and_values() {
        let found = template(
            "<style>a{color:red}</style>{path}{{name} {x}{entries}<a href={href}>{name}</a>\
             {/entries}{é}{",
        )
        .unwrap();
        let text = |text: &str| ListingPart::Text(text.into());
        let value = ListingPart::Value;
        assert_eq!(
            found.before,
            [text("<style>a{color:red}</style>"), value(ListingValue::Path), text("{name} {x}")]
        );
        assert_eq!(
            found.entry,
            [
                text("<a href="),
                value(ListingValue::Href),
                text(">"),
                value(ListingValue::Name),
                text("</a>")
            ]
        );
        assert_eq!(found.after, [text("{é}{")]);
        let braces = "{".repeat(LARGEST);
        assert!(template(&braces).unwrap_err().contains("no part for the entries"));
    }

    #[test]
    fn mistakes_are_found() {
        for (text, what) in [
            ("", "None: it has no part"),
            ("{entries}{name}", "Some(0): {entries} has no end"),
            ("{/entries}", "Some(0): {/entries} has no {entries}"),
            ("{entries}{/entries}{/entries}", "Some(19): {/entries} has no {entries}"),
            ("{entries}{/entries}{entries}", "Some(19): {entries} is given twice"),
            ("{entries}{entries}", "Some(9): {entries} is given twice"),
            ("{name}{entries}{/entries}", "Some(0): {name} belongs to an entry"),
            ("{entries}{/entries}{size}", "Some(19): {size} belongs to an entry"),
            ("{entries}{nmae}{/entries}", "Some(9): there is no placeholder {nmae}"),
            ("{entrie}{/entries}", "Some(0): there is no placeholder {entrie}"),
            (
                "{entries}<a title=\"{name}{/entries}\">",
                "Some(25): the part for an entry begins or ends",
            ),
        ] {
            let found = template(text).unwrap_err();
            assert!(found.starts_with(what), "{text}: {found}");
        }
        let long = format!("{{entries}}{}{{/entries}}", "x".repeat(LARGEST_ENTRY));
        assert!(template(&long).unwrap_err().contains("too large"));
    }

    #[test]
    fn names_cannot_become_scripts_or_links() {
        for (entry, is_permitted) in [
            ("{name}", true),
            ("<a href=\"{href}\" title='{name}'>{name}</a>", true),
            ("<i data-name = \"a {name} b\" ARIA-label=\"{name}\">", true),
            ("<!-- <script> --><textarea><script>{name}</textarea>", true),
            ("<script>f('<b>')</script >{name}", true),
            ("<a href=\"{name}\">", false),
            ("<a href='./{name}'>", false),
            ("<a HREF = \"{path}\">", false),
            ("<a title={name}>", false),
            ("<a title=x{name}>", false),
            ("<a {name}>", false),
            ("<{name}>", false),
            ("<a onclick=\"f('{name}')\">", false),
            ("<a style=\"{name}\">", false),
            ("<script>var a = \"{name}\"</script>", false),
            ("<SCRIPT type='x'>{name}</script>", false),
            ("<style>{name}</style>", false),
            ("<script>\"</scripty>{name}\"</script>", false),
            ("<iframe srcdoc=\"{name}\"></iframe>", false),
            ("<meta http-equiv=refresh content=\"{path}\">", false),
        ] {
            let found = template(&format!("{{entries}}{entry}{{/entries}}"));
            assert_eq!(found.is_ok(), is_permitted, "{entry}: {found:?}");
        }
    }

    #[test]
    fn links_cannot_become_scripts_or_parts_of_other_links() {
        for (entry, is_permitted) in [
            ("<a href=\"{href}\">{href}</a>", true),
            ("<a href='{href}' title='to {href}'>", true),
            ("<a href={href}>", true),
            ("<a href = \"{href}?x=1\" data-to=\"a {href}\">", true),
            ("<img src=\"{href}\"><form action='{href}'><object data=\"{href}\">", true),
            ("<tr data-size='{bytes}' class=\"a {kind}\" style=\"--size: {bytes}\">", true),
            ("<title>{href}</title><!-- {href} -->", true),
            ("<script>x({bytes})</script>", true),
            ("<a href=\"javascript:open('{href}')\">", false),
            ("<a href=\" {href}\">", false),
            ("<a href=\"/{href}\">", false),
            ("<a href=x{href}>", false),
            ("<a href=\"{size}:{href}\">", false),
            ("<a onclick=\"{href}\">", false),
            ("<a OnClick='open(\"{href}\")'>", false),
            ("<a style=\"{href}\">", false),
            ("<i style='background: url({href})'>", false),
            ("<iframe srcdoc=\"{href}\">", false),
            ("<a {href}>", false),
            ("<a ={href}>", false),
            ("<{href}>", false),
            ("<script>'{href}'</script>", false),
            ("<style>{href}</style>", false),
            ("<iframe>{href}</iframe>", false),
            ("<meta http-equiv=refresh content=\"0;url={href}\">", false),
        ] {
            let found = template(&format!("{{entries}}{entry}{{/entries}}"));
            assert_eq!(found.is_ok(), is_permitted, "{entry}: {found:?}");
        }
        for link in ["{parent}", "{sort.name}", "{sort.size}", "{sort.time}"] {
            let of = |text: &str| template(&format!("{text}{{entries}}{{/entries}}"));
            assert!(of(&format!("<a href=\"{link}\">")).is_ok(), "{link}");
            assert!(of(&format!("<a href=\"javascript:{link}\">")).is_err(), "{link}");
        }
    }
}
