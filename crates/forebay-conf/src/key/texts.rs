//! Texts with placeholders, and regular expressions, whose groups are placeholders.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use schemars::{Schema, SchemaGenerator};

use super::paths::ExistingFile;
use super::{At, Cx, Form, Many, Node, Placed, Resolution, Text, not_empty, plain, text};
use crate::error::{Problem, advice, reason};
use crate::files;
use crate::plan::{
    Geo, Placeholder, Regex, Scope, Template, UnknownPlaceholder, ValueMap, is_taken,
};
use crate::suggest::nearest;

/// What texts with placeholders may name, as far as the configuration has been read.
#[derive(Default)]
pub(crate) struct Names {
    /// The groups of `path_regex` of the route that is read.
    pub captures: Vec<String>,
    /// The tables [map.NAME] by name.
    pub maps: BTreeMap<String, Arc<ValueMap>>,
    /// The databases of countries and autonomous systems.
    pub geo: Option<Arc<Geo>>,
}

impl Names {
    pub fn scope(&self) -> Scope<'_> {
        Scope {
            captures: &self.captures,
            maps: Some(&self.maps),
            geo: self.geo.as_ref(),
            is_page: false,
        }
    }
}

impl Form for Template {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        String::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        let typed = Text::read(node, cx)?;
        if cx.is_partial.get() {
            return Err(Problem::not_whole());
        }
        template(&typed, &node.span(), cx.names.borrow().scope())
    }
}

/// The files of databases of countries and autonomous systems.
pub(crate) struct Databases;

impl Form<()> for Databases {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        Many::<String>::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<()> {
        /// The largest size of a database in bytes. Those of cities have about 120 MB.
        const MAX_SIZE: u64 = 512 * 1024 * 1024;
        // If they cannot be read, the texts that name a country are no further problem.
        cx.names.borrow_mut().geo = Geo::open(Vec::new()).ok().map(Arc::new);
        let paths: Vec<At<PathBuf>> = Many::<Placed<ExistingFile>>::read(node, cx)?;
        not_empty(
            &paths,
            &node.span(),
            "",
            "name a database, such as \"GeoLite2-Country.mmdb\", or leave the key out",
        )?;
        let read = |At { value: path, span }: &At<PathBuf>| {
            let bytes = files::read(path, MAX_SIZE).map_err(|error| {
                Problem::new(span, format!("cannot read {}: {}", path.display(), reason(&error)))
                    .help(advice(&error))
            })?;
            Ok((path.display().to_string(), bytes))
        };
        let databases = paths.iter().map(read).collect::<Resolution<Vec<_>>>()?;
        let opened = Geo::open(databases).map_err(|(number, why)| {
            let message = format!("this database cannot be used: {why}");
            Problem::new(&paths[number].span, message)
                .help("it must be whole and in the MMDB format: download it again")
        })?;
        cx.names.borrow_mut().geo = Some(Arc::new(opened));
        Ok(())
    }
}

/// A text that several requests share.
pub(crate) struct SharedKey;

impl Form<Template> for SharedKey {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        String::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Template> {
        check_shared(Template::read(node, cx)?, &node.span())
    }
}

/// A regular expression for paths, whose named groups become placeholders of the route.
pub(crate) struct PathRegex;

impl Form<Regex> for PathRegex {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        String::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Regex> {
        let regex = path_regex(plain(text(node)?, &node.span())?, &node.span())?;
        cx.names.borrow_mut().captures = regex.names().map(str::to_owned).collect();
        Ok(regex)
    }
}

/// Compiles a regular expression for paths. Its named groups become placeholders of the route.
fn path_regex(typed: &str, span: &Range<usize>) -> Resolution<Regex> {
    if let Some(negated) = typed.strip_prefix('!').filter(|rest| rest.starts_with('~')) {
        let regex = regex(negated, span)?;
        let name = regex.names().next().map(str::to_owned);
        return match name {
            Some(name) => Err(Problem::new(span, format!("the group {name} has no text"))
                .label("no path that the route takes matches")
                .help("leave the name of the group out")),
            None => Ok(regex.negated()),
        };
    }
    let regex = regex(typed, span)?;
    for name in regex.names() {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if is_taken(name) || !name.chars().all(is_name) {
            return Err(Problem::new(span, format!("a group cannot have the name {name}"))
                .label(format!("{{{name}}} means something else"))
                .help("choose another name of letters and digits"));
        }
    }
    Ok(regex)
}

/// Compiles a regular expression. As in nginx, `~*` before the expression ignores case, and `~`
/// does not.
pub(crate) fn regex(typed: &str, span: &Range<usize>) -> Resolution<Regex> {
    let (ignores_case, pattern) = match typed.strip_prefix("~*") {
        Some(pattern) => (true, pattern),
        None => (false, typed.strip_prefix('~').unwrap_or(typed)),
    };
    let (pattern, problem) = (pattern.trim_start(), |why: String| {
        let help = "expressions are those of the Rust crate `regex`: no look-around, no \
                    backreferences; write literal strings in single quotes";
        Problem::new(span, format!("this regular expression is refused: {why}")).help(help)
    });
    Regex::new(pattern, ignores_case).map_err(problem)
}

/// Parses a template. `span` is the position of the value that contains it.
pub(crate) fn template(text: &str, span: &Range<usize>, scope: Scope<'_>) -> Resolution<Template> {
    Template::parse(text, scope).map_err(|UnknownPlaceholder(name)| {
        if matches!(&*name, "country" | "asn") {
            return Problem::new(span, "no database knows where clients are")
                .help("name one in [server]: geo = \"GeoLite2-Country.mmdb\"");
        }
        let problem = Problem::new(span, format!("there is no placeholder \"{{{name}}}\""));
        let mut names: Vec<&str> = Placeholder::names().collect();
        names.extend(scope.captures.iter().map(String::as_str));
        let maps = scope.maps.into_iter().flat_map(BTreeMap::keys);
        let maps: Vec<_> = maps.map(|name| format!("map.{name}")).collect();
        names.extend(maps.iter().map(String::as_str));
        match nearest(&name, names) {
            Some(near) => problem.label(format!("did you mean {{{near}}}?")),
            None => problem,
        }
        .help(
            "there are {client}, {client_port}, {scheme}, {host}, {port}, {method}, {path}, \
             {query}, {uri}, {rest}, {prefix}, {user}, {request_id}, {trace_id}, {span_id}, \
             {tls.subject}, {country}, {asn}, {header.NAME}, {cookie.NAME}, {query.NAME}, {map.NAME} of a table \
             [map.NAME] and the groups of `path_regex`; for a brace before a \
             letter write {{",
        )
    })
}

/// Refuses a key that differs for each request. A limit with such a key would limit nothing, and a
/// cache would store replies that no later request gets.
pub(crate) fn check_shared(key: Template, span: &Range<usize>) -> Resolution<Template> {
    let is_unique = |value: &Placeholder| {
        matches!(value, Placeholder::RequestId | Placeholder::TraceId | Placeholder::SpanId)
    };
    // A table [map.NAME] may use these placeholders, to exempt some requests from a limit.
    if key.uses(is_unique) {
        return Err(Problem::new(span, "no two requests would have the same key")
            .help("leave out {request_id}, {trace_id} and {span_id}"));
    }
    Ok(key)
}
