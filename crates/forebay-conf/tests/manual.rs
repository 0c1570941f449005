//! Every configuration in the manual is accepted: its keys, and their values.
//!
//! Most blocks are parts of a file, and name files that only their reader has. The test adds what
//! they leave out, and makes the files. What it cannot add is an error of the manual.

use std::fs;
use std::path::{Path, PathBuf};

use forebay_conf::load;

/// The value of each variable and file.
const SECRET: &str = "0123456789abcdef0123456789abcdef";
const SITE: &str = "[[site]]\nlisten = \"127.0.0.1:80\"\n";

/// Places of a block that begins with a key: before a route, in one, and in other tables. A comment
/// may not say where the key stands, but the text above the block does.
const PLACES: [&str; 12] = [
    "BLOCK",
    "[server]\nBLOCK",
    "[server]\nadmin = \"127.0.0.1:9900\"\nBLOCK",
    "[[site]]\nlisten = \"127.0.0.1:80\"\nBLOCK",
    "[[site]]\nBLOCK",
    "[[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\nfiles = \"htdocs\"\nBLOCK",
    "[[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\nproxy = \"@x\"\n[upstream.x]\n\
     to = \"https://127.0.0.1:1\"\nBLOCK",
    "[[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\nrespond = \"x\"\nBLOCK",
    "[[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\nproxy = \"http://127.0.0.1:1\"\nBLOCK",
    "[[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\nBLOCK",
    "[[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\nproxy = \"https://127.0.0.1:1\"\n\
     [site.route.proxy]\nto = \"https://127.0.0.1:1\"\nBLOCK",
    "[[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\napp = \"a\"\n[app.a]\nkind = \"asgi\"\n\
     module = \"a:b\"\nBLOCK",
];

/// The tables of a configuration, as the first line of a block names them.
const TABLES: [&str; 12] = [
    "site", "app", "server", "upstream", "log", "stream", "defaults", "set", "traces", "map",
    "include", "cache",
];

fn pages(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|end| end == "md") {
            found.push(path);
        }
    }
}

/// The indented and fenced blocks of a page, each with the number of its first line.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let (mut blocks, mut block, mut fenced) = (Vec::new(), String::new(), false);
    let mut start = 0;
    for (number, line) in text.lines().chain(["end"]).enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = line.trim_start().starts_with("```toml");
            blocks.push((start, std::mem::take(&mut block)));
            continue;
        }
        let inner = if fenced { Some(line) } else { line.strip_prefix("    ") };
        match inner {
            Some(inner) => {
                if block.trim().is_empty() {
                    start = number + 1;
                }
                block += &format!("{inner}\n");
            }
            None if line.is_empty() => block.push('\n'),
            None => blocks.push((start, std::mem::take(&mut block))),
        }
    }
    blocks
}

/// The first line that is neither empty nor a comment.
fn first_line(block: &str) -> &str {
    let mut lines = block.lines().map(str::trim);
    lines.find(|line| !line.is_empty() && !line.starts_with('#')).unwrap_or_default()
}

/// True if the block is a configuration or a part of one.
fn is_configuration(block: &str) -> bool {
    let first = first_line(block);
    let table = first.trim_start_matches('[');
    let name = table.split(['.', ']', ' ']).next().unwrap_or_default();
    match first.len() - table.len() {
        0 => first.split_once(" = ").is_some_and(|(key, _)| {
            key.chars().all(|c| c.is_ascii_lowercase() || matches!(c, '_' | '.'))
        }),
        _ => TABLES.contains(&name),
    }
}

/// Loads the text, adding what its errors say is missing. Returns the errors that remain.
fn accepted(text: &str, dir: &Path) -> Result<(), String> {
    let mut text = text.to_owned();
    for _ in 0..60 {
        let file = dir.join("site.toml");
        fs::write(&file, &text).unwrap();
        let Err(error) = load(&file) else { return Ok(()) };
        // A test of `expect` may name a route that another block of its page has.
        if error.messages().all(|message| message.starts_with("no route of this site")) {
            return Ok(());
        }
        if !error.messages().any(|message| is_added(message, &mut text, dir)) {
            return Err(format!("{error:?}"));
        }
    }
    Err(format!("too much is missing:\n{text}"))
}

/// Adds what this message says is missing, to the text or to the directory.
fn is_added(message: &str, text: &mut String, dir: &Path) -> bool {
    let quoted = message.split('"').nth(1).unwrap_or_default();
    if let Some(path) = message.strip_prefix("no such directory: ") {
        return is_made(Path::new(path), text, dir, |path| fs::create_dir_all(path).is_ok());
    }
    if let Some(path) = message.strip_prefix("no such file: ") {
        return is_made(Path::new(path), text, dir, |path| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text = match path.extension().and_then(|end| end.to_str()) {
                Some("map") => "/old /new\n",
                Some("html") => "{entries}{name}{/entries}",
                _ => "x",
            };
            fs::write(path, text).is_ok()
        });
    }
    if message.starts_with("cannot read ")
        && let Some(file) = text.split("{file.").nth(1).and_then(|rest| rest.split('}').next())
    {
        *text = text.replace(&format!("{{file.{file}}}"), SECRET);
        return true;
    }
    let first = |table: &str| format!("{table}\n");
    if message.starts_with("there is no app") {
        *text += &format!("\n[app.{quoted}]\nkind = \"perl-cgi\"\ndir = \".\"\n");
    } else if message.starts_with("there is no upstream") {
        *text += &format!("\n[upstream.{quoted}]\nto = \"127.0.0.1:1\"\n");
    } else if let Some(name) = message.strip_prefix("the environment has no variable ") {
        *text = text.replace(&format!("{{env.{name}}}"), SECRET);
    } else if message == "there is no site" {
        *text += &format!("\n{SITE}");
    } else if message == "this site has no route" {
        *text += "\n[[site.route]]\nrespond = \"x\"\n";
    } else if message == "this site listens nowhere" && text.contains("[[site]]\n") {
        *text = text.replacen(&first("[[site]]"), SITE, 1);
    } else if message == "this site listens on https:// and has no certificate" {
        let own = "[[site]]\ntls = { certificate = \"made.pem\", key = \"made.key\" }\n";
        *text = text.replacen(&first("[[site]]"), own, 1);
    } else if message.ends_with("without an https:// listener") {
        *text = text.replacen("\"127.0.0.1:80\"", "\"https://127.0.0.1:443\"", 1);
    } else if message == "ACME needs host names, and this site has none" {
        *text = text.replacen(&first("[[site]]"), "[[site]]\nhosts = \"example.org\"\n", 1);
    } else if message.starts_with("there is no list of networks named") {
        *text = text.replace(&format!("\"{quoted}\""), "\"192.0.2.0/24\"");
    } else if message.starts_with("there is no text for crawlers named") {
        *text = text.replace(&format!("\"{quoted}\""), "\"User-agent: *\"");
    } else if message == "this route does not say what answers" {
        *text = text.replacen(&first("[[site.route]]"), "[[site.route]]\nrespond = \"x\"\n", 1);
    } else {
        return false;
    }
    true
}

/// Makes a path, below `dir`: the text gets another path if it names one elsewhere.
fn is_made(path: &Path, text: &mut String, dir: &Path, make: impl Fn(&Path) -> bool) -> bool {
    if path.starts_with(dir) {
        return make(path);
    }
    let before = text.len();
    for start in ["\"", "unix:"] {
        let elsewhere = format!("{start}{}", path.display());
        *text = text.replace(&elsewhere, &format!("{start}{}{}", dir.display(), path.display()));
    }
    text.len() != before
}

/// The block as a file: with the site and the route that it is a part of.
fn whole(block: &str) -> String {
    let begins = |table: &str| block.lines().any(|line| line.trim_start().starts_with(table));
    let mut text = String::new();
    if !begins("[[site]]") {
        if begins("[[site.") || begins("[site.") {
            text += "[[site]]\nlisten = \"127.0.0.1:80\"\n";
        }
        if begins("[site.route.") && !begins("[[site.route]]") {
            text += "[[site.route]]\nproxy = \"http://127.0.0.1:1\"\n";
        }
    }
    // What stands before the first table belongs to the file.
    let at = block.find("[[site").or_else(|| block.find("[site")).unwrap_or(0);
    let (before, rest) = block.split_at(if text.is_empty() { 0 } else { at });
    format!("{before}{text}{rest}")
}

/// Accepts the keys if they may stand in one of the [`PLACES`], or each in one of its own.
fn of_some_place(block: &str, dir: &Path) -> Result<(), String> {
    let places = PLACES.iter().map(|place| place.replacen("BLOCK", block, 1));
    let outcomes: Vec<_> = places.map(|text| accepted(&whole(&text), dir)).collect();
    if outcomes.iter().any(Result::is_ok) {
        return Ok(());
    }
    let lines: Vec<_> = block.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.len() > 1 && lines.iter().all(|line| of_some_place(line, dir).is_ok()) {
        return Ok(());
    }
    let errors = outcomes.into_iter().filter_map(Result::err);
    let of_place =
        |error: &String| !["unknown key", "given twice"].iter().any(|no| error.contains(no));
    Err(errors.filter(of_place).collect::<Vec<_>>().join("\n"))
}

#[test]
fn every_configuration_of_the_manual_is_accepted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src");
    let mut all = Vec::new();
    pages(&root, &mut all);
    let (mut checked, mut wrong) = (0, Vec::new());
    for page in all {
        let text = fs::read_to_string(&page).unwrap();
        for (line, block) in blocks(&text).into_iter().filter(|(_, b)| is_configuration(b)) {
            let dir = tempfile::tempdir().unwrap();
            let dir = dir.path().canonicalize().unwrap();
            checked += 1;
            // Commands may follow a configuration.
            let block = block.split("\nforebay ").next().unwrap();
            let outcome = if first_line(block).starts_with('[') {
                accepted(&whole(block), &dir)
            } else {
                of_some_place(block, &dir)
            };
            if let Err(error) = outcome {
                let page = page.strip_prefix(&root).unwrap().display();
                wrong.push(format!("{page}:{line}: {error}\n{block}"));
            }
        }
    }
    assert!(checked > 90, "only {checked} blocks were found");
    assert!(wrong.is_empty(), "{} of {checked}:\n{}", wrong.len(), wrong.join("\n"));
}
