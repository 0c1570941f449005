//! The parts of a regular expression, from its syntax tree.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look, Repetition};

/// Maximum number of texts into which one part of an expression may expand, as `(a|b)c` expands
/// into `ac` and `bc`.
const MOST_TEXTS: usize = 512;

/// A part of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// `^`.
    Start,
    /// `$`.
    End,
    /// `$` or a slash.
    EndOrSlash,
    /// `.*` or `.+`, with the number of the group that contains exactly this part.
    Any(Option<usize>),
    /// A byte of a class that leaves out at most a slash and a line feed, such as `.` or `[^/]`.
    AnyOne,
    /// A choice of texts: the part matches exactly one of them.
    Literals(Vec<String>),
    /// Anything else.
    Other,
}

/// Parses an expression into the parts of each branch.
pub fn parts(text: &str, ignore_case: bool) -> Result<Vec<Vec<Part>>, String> {
    // In PCRE, `\Z` has the meaning of `$`: it matches at the end, or before a line feed at the
    // end.
    let text = text.replace("\\Z", "$");
    let mut builder = ParserBuilder::new();
    // PCRE reads bytes unless it is asked for UTF-8.
    builder.case_insensitive(ignore_case).unicode(false).utf8(false).nest_limit(50);
    let hir = builder.build().parse(&text).map_err(|error| short(&error.to_string()))?;
    Ok(branches(&hir).into_iter().map(merged).collect())
}

/// Returns the parts of each branch. The parser changes `/a.*|/b` to `/(?:a.*|b)`. For this
/// expression, returns the parts of `/a.*` and of `/b`.
fn branches(hir: &Hir) -> Vec<Vec<Part>> {
    match hir.kind() {
        HirKind::Alternation(list) if !is_end_or_slash(hir) && literals(hir).is_none() => {
            list.iter().flat_map(branches).collect()
        }
        HirKind::Concat(list) => {
            let Some((last, before)) = list.split_last() else { return vec![Vec::new()] };
            let before: Vec<Part> = before.iter().flat_map(|part| flat(part, None)).collect();
            let all = branches(last).into_iter().map(|branch| [before.clone(), branch].concat());
            all.collect()
        }
        _ => vec![flat(hir, None)],
    }
}

fn short(error: &str) -> String {
    let last = error.lines().last().unwrap_or_default();
    last.trim_start_matches("error: ").to_owned()
}

fn flat(hir: &Hir, group: Option<usize>) -> Vec<Part> {
    if is_end_or_slash(hir) {
        return vec![Part::EndOrSlash];
    }
    match hir.kind() {
        HirKind::Look(Look::Start) => vec![Part::Start],
        HirKind::Look(Look::End) => vec![Part::End],
        HirKind::Capture(capture) => flat(&capture.sub, Some(capture.index as usize)),
        HirKind::Concat(list) => list.iter().flat_map(|part| flat(part, None)).collect(),
        HirKind::Empty => Vec::new(),
        HirKind::Repetition(repetition) if is_any(repetition) => vec![Part::Any(group)],
        HirKind::Class(class) if is_wide(class) => vec![Part::AnyOne],
        _ => vec![literals(hir).map_or(Part::Other, Part::Literals)],
    }
}

/// Joins adjacent texts. Removes `$` after a part such as `(/.*)?`, because this part already
/// extends to the end of the path.
fn merged(parts: Vec<Part>) -> Vec<Part> {
    let mut merged: Vec<Part> = Vec::new();
    for part in parts {
        match (merged.last_mut(), part) {
            (Some(Part::Literals(before)), Part::Literals(after)) => {
                match product(before, &after) {
                    Some(both) => *before = both,
                    None => merged.push(Part::Other),
                }
            }
            // The part for `(/.*)?` already extends to the end of the path.
            (Some(Part::EndOrSlash), Part::End) => {}
            (_, part) => merged.push(part),
        }
    }
    merged
}

fn is_any(repetition: &Repetition) -> bool {
    let HirKind::Class(class) = repetition.sub.kind() else { return false };
    repetition.min <= 1 && repetition.max.is_none() && is_dot(class)
}

/// Returns true for a class such as `.`: every byte, except perhaps a line feed.
fn is_dot(class: &Class) -> bool {
    leaves_out_only(class, b"\n")
}

/// Returns true for a class such as `.` or `[^/]`: every byte, except perhaps a slash and a line
/// feed.
fn is_wide(class: &Class) -> bool {
    leaves_out_only(class, b"\n/")
}

/// Returns true if the class has every byte that is not in `bytes`.
fn leaves_out_only(class: &Class, bytes: &[u8]) -> bool {
    let Class::Bytes(class) = class else { return false };
    let has = |byte: u8| class.ranges().iter().any(|r| (r.start()..=r.end()).contains(&byte));
    (0..=u8::MAX).all(|byte| bytes.contains(&byte) || has(byte))
}

/// Returns true for `(?:$|/)`, `(?:$|/.*)`, and `(?:/.*)?`. For `(?:/.*)?`, does not check that the
/// expression ends after it.
fn is_end_or_slash(hir: &Hir) -> bool {
    let hir = inner(hir);
    match hir.kind() {
        HirKind::Alternation(branches) => {
            let [first, second] = &branches[..] else { return false };
            let is_end = |hir: &Hir| matches!(hir.kind(), HirKind::Look(Look::End));
            is_end(first) && begins_with_slash(second) || is_end(second) && begins_with_slash(first)
        }
        HirKind::Repetition(repetition) => {
            (repetition.min, repetition.max) == (0, Some(1))
                && begins_with_slash(&repetition.sub)
                && !matches!(inner(&repetition.sub).kind(), HirKind::Literal(_))
        }
        _ => false,
    }
}

/// Returns true for `/` and `/.*`.
fn begins_with_slash(hir: &Hir) -> bool {
    let is_slash = |hir: &Hir| matches!(hir.kind(), HirKind::Literal(text) if *text.0 == *b"/");
    match inner(hir).kind() {
        HirKind::Concat(list) => {
            let [slash, any] = &list[..] else { return false };
            let HirKind::Repetition(repetition) = inner(any).kind() else { return false };
            is_slash(slash) && is_any(repetition) && repetition.min == 0
        }
        _ => is_slash(inner(hir)),
    }
}

fn inner(hir: &Hir) -> &Hir {
    match hir.kind() {
        HirKind::Capture(capture) => inner(&capture.sub),
        _ => hir,
    }
}

/// Returns all texts that an expression matches. Returns `None` if there are too many, for example
/// for `.*`.
fn literals(hir: &Hir) -> Option<Vec<String>> {
    match hir.kind() {
        HirKind::Empty => Some(vec![String::new()]),
        HirKind::Literal(text) => Some(vec![String::from_utf8(text.0.to_vec()).ok()?]),
        HirKind::Class(Class::Bytes(bytes)) => {
            let all = bytes.ranges().iter().flat_map(|range| range.start()..=range.end());
            let all: Vec<u8> = all.take(MOST_TEXTS).collect();
            let is_few = all.len() <= 10 && all.is_ascii();
            is_few.then(|| all.into_iter().map(|byte| char::from(byte).to_string()).collect())
        }
        HirKind::Capture(capture) => literals(&capture.sub),
        HirKind::Repetition(repetition) => {
            if (repetition.min, repetition.max) != (0, Some(1)) {
                return None;
            }
            let mut texts = literals(&repetition.sub)?;
            texts.push(String::new());
            Some(texts)
        }
        HirKind::Concat(list) => {
            let mut texts = vec![String::new()];
            for part in list {
                texts = product(&texts, &literals(part)?)?;
            }
            Some(texts)
        }
        HirKind::Alternation(list) => {
            let mut texts = Vec::new();
            for branch in list {
                texts.extend(literals(branch)?);
            }
            (texts.len() <= MOST_TEXTS).then_some(texts)
        }
        _ => None,
    }
}

fn product(before: &[String], after: &[String]) -> Option<Vec<String>> {
    if before.len() * after.len() > MOST_TEXTS {
        return None;
    }
    let all =
        before.iter().flat_map(|first| after.iter().map(move |second| format!("{first}{second}")));
    Some(all.collect())
}
