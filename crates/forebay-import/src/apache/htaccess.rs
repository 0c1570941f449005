//! Reads the access files (`.htaccess`) of all hosts.

use std::path::Path;

use super::Cx;
use super::sections::{Sections, all, find_access_files, last};
use super::syntax::{self, Directive, is};
use crate::draft::SourceLine;

/// The reason why a directory is closed without a look at all of its access files.
pub const TOO_MANY: &str = "has too many directories";

/// Reads the access files below the directories of all hosts, if the hosts allow such files.
/// Returns each file as a section for its directory.
pub fn read(cx: &mut Cx<'_>, hosts: &[&Directive]) -> Vec<(String, Directive)> {
    let mut found = Vec::new();
    let levels = hosts.iter().map(|host| vec![cx.main, host.inside()]);
    let levels: Vec<Vec<&[Directive]>> = std::iter::once(vec![cx.main]).chain(levels).collect();
    for levels in levels {
        let names = last(&levels, "AccessFileName").map(|names| &names.args[..]);
        let names: Vec<&str> = names.unwrap_or_default().iter().map(String::as_str).collect();
        let names = if names.is_empty() { vec![".htaccess"] } else { names };
        let sections = Sections::new(cx, levels.clone());
        for (directive, dir) in roots(cx, &levels) {
            // Without `AllowOverride`, Apache reads none of these files.
            let allows = |d: &Directive| is(d, "AllowOverride") || is(d, "AllowOverrideList");
            let allows_any = sections.directories.iter().any(|section| {
                section.block.iter().any(|d| allows(d) && !d.arg(0).eq_ignore_ascii_case("none"))
            });
            if !allows_any {
                continue;
            }
            let files = find_access_files(&dir, &names);
            for file in &files.found {
                add(cx, &sections, file, &mut found);
            }
            if !files.is_complete {
                let text = format!("{dir} {TOO_MANY} to look for {}", names[0]);
                cx.note(directive, text);
                found.push((dir.clone(), closed(dir, directive.place.clone())));
            }
        }
    }
    found
}

/// Returns the directories that a host serves.
fn roots<'a>(cx: &Cx<'_>, levels: &[&'a [Directive]]) -> Vec<(&'a Directive, String)> {
    let names = ["DocumentRoot", "Alias", "ScriptAlias", "AliasMatch", "ScriptAliasMatch"];
    let mut found: Vec<(&Directive, String)> = Vec::new();
    for directive in names.iter().flat_map(|name| all(levels, name)) {
        let dir = directive.args.last().map_or("", String::as_str);
        let dir = dir.split('$').next().unwrap_or_default();
        if !dir.is_empty() {
            found.push((directive, cx.path(dir)));
        }
    }
    found
}

/// Adds an access file to `found` as a section for its directory. Skips the file if `found` has the
/// directory, or if `sections` allow no access files there. If the file has an error, the section
/// refuses all requests.
fn add(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    file: &Path,
    found: &mut Vec<(String, Directive)>,
) {
    let dir = file.parent().unwrap_or(file);
    let path = dir.display().to_string();
    if found.iter().any(|(known, _)| *known == path) || !sections.allows_override(&path) {
        return;
    }
    cx.draft.access_files.push(file.to_owned());
    let place = SourceLine { file: file.display().to_string().into(), line: 1 };
    if dir.to_str().is_none() {
        // A configuration cannot name the directory, so close the nearest directory above it.
        let path = dir.ancestors().find_map(Path::to_str).unwrap_or("/").to_owned();
        let next = "the name of its directory is not UTF-8: rename the directory";
        cx.draft.notes.add(&place, ".htaccess", next);
        found.push((path.clone(), closed(path, place)));
        return;
    }
    let directive = match syntax::read_with(file, cx.runs_php) {
        Ok(block) => {
            let directive = Directive::new("Directory", vec![path.clone()], Some(block), place);
            let unread = cx.note_unread(directive.inside());
            cx.draft.comments.extend(unread);
            directive
        }
        Err(error) => {
            // Apache refuses all requests for a directory whose access file has an error.
            cx.draft.notes.add(&place, ".htaccess", error.to_string());
            closed(path.clone(), place)
        }
    };
    found.push((path, directive));
}

/// Returns a section that refuses all requests for a directory.
fn closed(path: String, place: SourceLine) -> Directive {
    let args = vec!["all".into(), "denied".into()];
    let rule = Directive::new("Require", args, None, place.clone());
    Directive::new("Directory", vec![path], Some(vec![rule]), place)
}
