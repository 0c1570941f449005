//! Parses `expect` of a site. Each test has the form `[METHOD] TARGET -> ANSWER`.

use super::Resolution;
use super::value::method;
use super::value::text;
use crate::error::Problem;
use crate::file::{self, ANSWERS, At};
use crate::plan::{Action, Expectation, ExpectedAnswer, Route};
use crate::suggest;

/// The form of a test, for help in messages.
const FORM: &str = "write \"[METHOD] PATH -> ANSWER\", such as \"GET /old -> 301 /new\", \
                    \"/admin/ -> 401\", \"/api/x -> proxy\" or \"/ -> route start\"";

/// Returns the tests of a site. The routes and applications that they name must exist.
pub(super) fn expectations(
    typed: &At<file::Site>,
    routes: &[Route],
) -> Resolution<Vec<Expectation>> {
    let lines = typed.expect.as_ref().map(At::items).unwrap_or_default();
    lines.iter().map(|line| expectation(line, routes)).collect()
}

/// Parses a test of the form `[METHOD] TARGET -> ANSWER`.
fn expectation(typed: &At<&String>, routes: &[Route]) -> Resolution<Expectation> {
    let line = text(typed)?;
    let problem = |what: &str| Problem::new(&typed.span, what).help(FORM);
    let Some((request, answer)) = line.rsplit_once("->") else {
        return Err(problem("this test has no `->`"));
    };
    let mut words = request.split_whitespace();
    let (named, target) = match (words.next(), words.next(), words.next()) {
        (Some(target), None, _) => (None, target),
        (Some(method), Some(target), None) => (Some(method), target),
        _ => return Err(problem("a test begins with a path, or with a method and a path")),
    };
    let is_url = target.starts_with("http://") || target.starts_with("https://");
    if !(target.starts_with('/') || is_url) || !target.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(problem(&format!("\"{target}\" is not a path or URL")));
    }
    let method = match named {
        Some(name) => method(&typed.with(&name.to_owned()))?,
        None => "GET".to_owned(),
    };
    let mut words = answer.split_whitespace();
    let Some(first) = words.next() else { return Err(problem("this test has no answer")) };
    let second = words.next().map(|word| word.trim_matches('"').to_owned());
    if words.next().is_some() {
        return Err(problem("an answer has two words at most"));
    }
    let answer = answered(typed, first, second, routes)?;
    Ok(Expectation { method, target: target.to_owned(), answer })
}

/// Parses the expected answer: a status, a redirection, a kind of route, or a route's name.
fn answered(
    typed: &At<&String>,
    first: &str,
    second: Option<String>,
    routes: &[Route],
) -> Resolution<ExpectedAnswer> {
    let problem = |what: String| Problem::new(&typed.span, what).help(FORM);
    if first.bytes().all(|b| b.is_ascii_digit()) {
        let status = first.parse().ok().filter(|status| (200..600).contains(status));
        let status = status.ok_or_else(|| problem(format!("{first} is not a status")))?;
        if second.is_some() && !(300..400).contains(&status) && status != 201 {
            return Err(problem(format!("a reply of status {status} has no Location")));
        }
        return Ok(ExpectedAnswer::Status(status, second));
    }
    if first == "route" {
        let name = second.ok_or_else(|| problem("which route? Its name is missing".into()))?;
        let mut names = routes.iter().filter_map(|route| route.name.as_deref());
        if names.clone().any(|of_route| of_route == name) {
            return Ok(ExpectedAnswer::Route(name));
        }
        let help = match suggest::nearest(&name, &mut names) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("give the route a name: name = \"{name}\""),
        };
        let message = format!("no route of this site has the name \"{name}\"");
        return Err(Problem::new(&typed.span, message).help(help));
    }
    let kinds = || ANSWERS.iter().map(|(kind, _)| *kind);
    let Some(kind) = kinds().find(|kind| *kind == first) else {
        let help = match suggest::nearest(first, kinds()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => FORM.to_owned(),
        };
        let message = format!("\"{first}\" is neither a status nor a kind of route");
        return Err(Problem::new(&typed.span, message).help(help));
    };
    let of_route = |route: &Route| matches!((&route.action, &second), (Action::App(name), Some(second)) if name == second);
    match &second {
        Some(name) if kind != "app" => {
            Err(problem(format!("\"{name}\" after `{kind}` means nothing")))
        }
        Some(name) if !routes.iter().any(of_route) => {
            Err(problem(format!("no route of this site passes requests to [app.{name}]")))
        }
        _ => Ok(ExpectedAnswer::Kind(kind, second)),
    }
}
