//! The order of the code: a crate depends only on crates above it, and no files of a crate depend
//! on each other in a circle. So a file can be read, and moved, after the files that it names.
//!
//! A child module may name what its parent defines, because it is a part of the parent.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path as FilePath, PathBuf};

/// All crates; each may depend only on those before it.
const CRATES: [&str; 21] = [
    "testkit",
    "wire",
    "stat",
    "trust",
    "client",
    "conf-derive",
    "conf",
    "import",
    "process",
    "workers",
    "net",
    "store",
    "acme",
    "admin",
    "server",
    "upstream",
    "origin",
    "gateway",
    "load",
    "lab",
    "",
];

/// Dependencies that close a cycle and stay: crate, file, file that it names, and the reason.
const KEPT: &[(&str, &str, &str, &str)] = &[
    (
        "server",
        "http2::connection",
        "http2::stream",
        "each changes the other in place: a trait between them would hide the cycle, or cost a dynamic call for each frame",
    ),
    (
        "upstream",
        "http2::connection",
        "http2::stream",
        "each changes the other in place: a trait between them would hide the cycle, or cost a dynamic call for each frame",
    ),
];

/// The path of a module in its crate.
type Path = Vec<String>;

/// The files that each file names.
type Graph = BTreeMap<Path, BTreeSet<Path>>;

struct File {
    code: String,
    /// Names of the items that the file defines.
    items: BTreeSet<String>,
    /// Imported names, and the paths that they stand for.
    imports: BTreeMap<String, Path>,
}

#[test]
fn a_crate_depends_only_on_crates_before_it() {
    let crates = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for entry in fs::read_dir(&crates).unwrap().map(Result::unwrap) {
        let manifest = entry.path().join("Cargo.toml");
        let Ok(manifest) = fs::read_to_string(manifest) else { continue };
        let name = entry.file_name().into_string().unwrap();
        let place = |name: &str| {
            let short = name.strip_prefix("forebay").unwrap().trim_start_matches('-');
            CRATES.iter().position(|listed| *listed == short)
        };
        let own = place(&name).unwrap_or_else(|| panic!("{name} is not in the list"));
        for line in manifest.lines().filter(|line| line.starts_with("forebay-")) {
            let dependency = line.split(['.', ' ']).next().unwrap();
            assert!(place(dependency).is_some_and(|at| at < own), "{name} depends on {dependency}");
        }
    }
}

#[test]
fn no_crate_has_a_cycle_of_files() {
    let crates = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut wrong = Vec::new();
    for entry in fs::read_dir(crates).unwrap().map(Result::unwrap) {
        let (name, src) = (entry.file_name().into_string().unwrap(), entry.path().join("src"));
        if !src.is_dir() {
            continue;
        }
        let mut graph = graph(&read(&src));
        for (_, from, to, _) in KEPT.iter().filter(|kept| name == format!("forebay-{}", kept.0)) {
            let is_there = graph.get_mut(&path(from)).is_some_and(|named| named.remove(&path(to)));
            if !is_there {
                wrong.push(format!("{name}: {from} no longer names {to}: remove it from KEPT"));
            }
        }
        if let Some(cycle) = find_cycle(&graph) {
            let cycle: Vec<_> = cycle.iter().map(|path| path.join("::")).collect();
            wrong.push(format!("{name}: {}", cycle.join(" -> ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_cycle_is_found_through_groups_exports_and_aliases() {
    let src = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(src.path().join(name), text).unwrap();
    let cycle = || {
        let cycle = find_cycle(&graph(&read(src.path())))?;
        Some(cycle.iter().map(|path| path.join("::")).collect::<Vec<_>>().join(" "))
    };
    fs::create_dir(src.path().join("c")).unwrap();
    write("lib.rs", "mod a;\nmod b;\nmod c;\npub use c::{\n    First, inner::Second,\n};\n");
    write("a.rs", "use std::fmt;\nuse crate::{\n    b::B as Other,\n};\npub struct A;\n");
    write("b.rs", "use crate::c as other;\npub struct B;\nfn f() -> crate::Second {}\n");
    write(
        "c.rs",
        "// use crate::a;\nmod inner;\npub struct First;\nfn f() { inner::g() }\n\
         #[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
    );
    write("c/inner.rs", "use super::First;\npub struct Second;\n");
    assert_eq!(cycle(), None, "a child may name its parent");
    write("c/inner.rs", "use crate::a::A;\npub struct Second;\n");
    assert_eq!(cycle().unwrap(), "a b c::inner a");
    write("c/inner.rs", "pub struct Second;\n");
    write("b.rs", "use crate::c as other;\npub struct B;\nfn f() { other::First }\n");
    write("c.rs", "pub struct First;\nfn f() { super::a::A }\n");
    assert_eq!(cycle().unwrap(), "a b c a");
}

fn path(text: &str) -> Path {
    text.split("::").map(str::to_owned).collect()
}

/// Reads the sources below `src`, without tests.
fn read(src: &FilePath) -> BTreeMap<Path, File> {
    let mut paths = Vec::new();
    collect_files(src, &mut paths);
    let mut files = BTreeMap::new();
    let mut tests = Vec::new();
    for file in paths {
        let name = file.strip_prefix(src).unwrap().with_extension("");
        let mut path: Path = name.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        if matches!(path[0].as_str(), "lib" | "main") {
            path.clear();
        }
        let text = fs::read_to_string(&file).unwrap();
        for declared in text.split("#[cfg(test)]\nmod ").skip(1) {
            tests.push([&path[..], &[first_name(declared)]].concat());
        }
        files.insert(path, File::new(&text));
    }
    files.retain(|path, _| !tests.iter().any(|test| path.starts_with(test)));
    files
}

fn collect_files(path: &FilePath, files: &mut Vec<PathBuf>) {
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| collect_files(&entry.unwrap().path(), files));
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        files.push(path.to_owned());
    }
}

impl File {
    fn new(text: &str) -> Self {
        let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        let text = lines.collect::<Vec<_>>().join("\n");
        let (mut code, mut imports, mut items) = (String::new(), BTreeMap::new(), BTreeSet::new());
        for statement in text.split_inclusive([';', '{', '}']) {
            items.extend(defined(statement));
            code.push_str(statement);
        }
        // A group in an import contains braces, so imports are found in the whole text.
        for (at, _) in text.match_indices("use ") {
            let line = text[..at].rsplit('\n').next().unwrap_or_default();
            if !matches!(line.trim(), "" | "pub" | "pub(crate)" | "pub(super)") {
                continue;
            }
            let Some(tree) = text[at + 4..].split(';').next() else { continue };
            imports.extend(expand(tree));
            if !line.trim().is_empty() {
                // A parent that exports what its child defines does not use it.
                code = code.replacen(tree, "", 1);
            }
        }
        Self { code, items, imports }
    }
}

/// Returns the name of the item that a statement defines at the outermost level, if it does.
fn defined(statement: &str) -> Option<String> {
    const KINDS: [&str; 9] =
        ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules!"];
    let line = statement.lines().rev().find(|line| {
        line.starts_with(|letter: char| letter.is_ascii_lowercase()) && !line.starts_with("where")
    })?;
    let mut words = line.split([' ', '(', '<', ':', ';', '=', '{']).filter(|word| !word.is_empty());
    let kind = words.find(|word| KINDS.contains(word))?;
    let name = words.find(|word| kind != "const" || !["fn", "unsafe", "async"].contains(word))?;
    Some(name.to_owned())
}

/// Returns each name of a tree of imports, with its path.
fn expand(tree: &str) -> Vec<(String, Path)> {
    let tree = tree.trim();
    if let Some((prefix, group)) = tree.split_once('{') {
        let prefix = path(prefix.trim().trim_end_matches("::"));
        let group = group.trim_end().trim_end_matches('}');
        let members = group_members(group);
        let all = members.iter().flat_map(|member| expand(member));
        return all
            .map(|(name, path)| match path.first().map(String::as_str) {
                Some("self") => (prefix.last().cloned().unwrap_or_default(), prefix.clone()),
                _ => (name, [&prefix[..], &path].concat()),
            })
            .collect();
    }
    let (from, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
    let from: Path = path(from.trim()).into_iter().map(|part| part.trim().to_owned()).collect();
    let name = if alias.is_empty() { from.last().cloned() } else { Some(alias.trim().to_owned()) };
    name.filter(|name| !name.is_empty()).map(|name| (name, from)).into_iter().collect()
}

/// The members of a group without its braces.
fn group_members(group: &str) -> Vec<String> {
    let mut depth = 0;
    let mut members = vec![String::new()];
    for letter in group.chars() {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        match letter {
            ',' if depth == 0 => members.push(String::new()),
            _ => members.last_mut().unwrap().push(letter),
        }
    }
    members
}

fn first_name(text: &str) -> String {
    text.trim_start().chars().take_while(|&c| c.is_alphanumeric() || c == '_').collect()
}

fn graph(files: &BTreeMap<Path, File>) -> Graph {
    let mut graph = Graph::new();
    for (from, file) in files {
        let written = file.imports.values().cloned().chain(written_paths(&file.code));
        let named = written.filter_map(|path| resolve(files, from, &path, 0));
        graph.insert(from.clone(), named.filter(|named| !from.starts_with(named)).collect());
    }
    graph
}

/// The paths in the code, of at least two parts.
fn written_paths(code: &str) -> Vec<Path> {
    let is_of_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let words = code.split(|letter| !is_of_path(letter));
    words.filter(|word| word.contains("::")).map(|word| path(word.trim_matches(':'))).collect()
}

/// Returns the file that defines the item that the path `written` names in the module `from`.
/// Returns `None` for a module, and for an item of another crate.
fn resolve(
    files: &BTreeMap<Path, File>,
    from: &Path,
    written: &[String],
    depth: u8,
) -> Option<Path> {
    if depth > 8 {
        return None;
    }
    let (mut at, mut rest) = match written.first()?.as_str() {
        "crate" => (Path::new(), &written[1..]),
        "self" => (from.clone(), &written[1..]),
        "super" => (from.clone(), written),
        _ => (from.clone(), written),
    };
    let is_local = at == *from && written[0] != "self";
    while rest.first().is_some_and(|part| part == "super") {
        at.pop()?;
        rest = &rest[1..];
    }
    loop {
        let part = rest.first()?;
        let file = files.get(&at)?;
        let child = [&at[..], std::slice::from_ref(part)].concat();
        if file.items.contains(part) {
            return Some(at);
        }
        if files.contains_key(&child) {
            (at, rest) = (child, &rest[1..]);
            continue;
        }
        let Some(import) = file.imports.get(part).filter(|import| import.first() != Some(part))
        else {
            return if is_local && at == *from { None } else { Some(at) };
        };
        return resolve(files, &at, &[&import[..], &rest[1..]].concat(), depth + 1);
    }
}

/// A shortest cycle, from its first file by name back to it.
fn find_cycle(graph: &Graph) -> Option<Vec<Path>> {
    graph.keys().filter_map(|start| path_back(graph, start)).min_by_key(Vec::len)
}

/// A shortest way from `start` over its dependencies back to it.
fn path_back(graph: &Graph, start: &Path) -> Option<Vec<Path>> {
    let mut seen = BTreeSet::new();
    let mut ways = vec![vec![start.clone()]];
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            for next in graph.get(way.last()?).into_iter().flatten() {
                let way = [&way[..], std::slice::from_ref(next)].concat();
                if next == start {
                    return Some(way);
                }
                if seen.insert(next.clone()) {
                    longer.push(way);
                }
            }
        }
        ways = longer;
    }
    None
}
