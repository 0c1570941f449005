//! No two top-level modules of a crate depend on each other, directly or by way of others: each can
//! be read, and moved, after those that it names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The module of what `lib.rs` defines itself.
const ROOT: &str = "lib.rs";

/// The modules that each top-level module names by `crate::`.
type Graph = BTreeMap<String, BTreeSet<String>>;

#[test]
fn no_crate_has_a_cycle_of_modules() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut wrong = Vec::new();
    for entry in fs::read_dir(crates).unwrap().map(Result::unwrap) {
        let (name, src) = (entry.file_name().into_string().unwrap(), entry.path().join("src"));
        if !src.join(ROOT).is_file() {
            continue;
        }
        if let Some(cycle) = find_cycle(graph(&src)) {
            wrong.push(format!("{name}: {}", cycle.join(" -> ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_cycle_is_found_through_groups_exports_and_paths() {
    let src = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(src.path().join(name), text).unwrap();
    fs::create_dir(src.path().join("c")).unwrap();
    write(ROOT, "mod a;\nmod b;\nmod c;\npub use c::{\n    First, Second,\n};\n");
    write("a.rs", "use std::fmt;\nuse crate::{\n    b::B as Other,\n};\n");
    write("b.rs", "fn f() -> crate::Second {}\n");
    write("c.rs", "// use crate::a;\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n");
    write("c/inner.rs", "use std::io;\n");
    assert_eq!(find_cycle(graph(src.path())), None);
    write("c/inner.rs", "use crate::a::A;\n");
    assert_eq!(find_cycle(graph(src.path())).unwrap(), ["a", "b", "c", "a"]);
}

/// What the sources below `src` name, tests left out.
fn graph(src: &Path) -> Graph {
    let root = code(&src.join(ROOT));
    let modules = top_level_modules(src);
    let exports = exports(&root);
    let mut graph = Graph::new();
    for (module, files) in modules {
        let edges = graph.entry(module.clone()).or_default();
        for name in files.iter().flat_map(|file| names_of_root(&code(file), "crate::")) {
            let named = exports.get(&name).unwrap_or(&name);
            // What is neither a module nor exported from one is the root's own.
            let is_module = src.join(format!("{named}.rs")).exists() || src.join(named).is_dir();
            edges.insert(if is_module { named.clone() } else { ROOT.to_owned() });
        }
        edges.remove(&module);
    }
    let own: String = root.split(';').filter(|item| !is_declaration(item)).collect();
    let named = graph.keys().filter(|module| own.contains(&format!("{module}::")));
    let named: BTreeSet<_> = named.cloned().collect();
    graph.insert(ROOT.to_owned(), named);
    graph
}

/// Each top-level module, with its files.
fn top_level_modules(src: &Path) -> BTreeMap<String, Vec<PathBuf>> {
    let mut modules = BTreeMap::<_, Vec<_>>::new();
    for path in fs::read_dir(src).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if name != "lib" && name != "main" {
            collect_files(&path, modules.entry(name).or_default());
        }
    }
    modules
}

fn collect_files(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| collect_files(&entry.unwrap().path(), files));
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        files.push(path.to_owned());
    }
}

/// A file without comments and without the tests at its end.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).fold(
        String::new(),
        |mut code, line| {
            code.push_str(line);
            code.push('\n');
            code
        },
    )
}

/// The first part of each path behind `prefix`, and those of each group behind it.
fn names_of_root(code: &str, prefix: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices(prefix) {
        let behind = &code[at + prefix.len()..];
        if let Some(group) = behind.strip_prefix('{') {
            names.extend(group_members(group).into_iter().map(|member| first_name(&member)));
        } else {
            names.insert(first_name(behind));
        }
    }
    names.remove("");
    names
}

/// The members of a group, whose opening brace has been taken off.
fn group_members(group: &str) -> Vec<String> {
    let mut depth = 0;
    let mut members = vec![String::new()];
    for letter in group.chars() {
        match letter {
            '}' if depth == 0 => break,
            ',' if depth == 0 => members.push(String::new()),
            _ => {
                depth += i32::from(letter == '{') - i32::from(letter == '}');
                members.last_mut().unwrap().push(letter);
            }
        }
    }
    members
}

fn first_name(path: &str) -> String {
    path.trim_start().chars().take_while(|&c| c.is_alphanumeric() || c == '_').collect()
}

/// The module of each name that `lib.rs` exports.
fn exports(root: &str) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    for (at, _) in root.match_indices("use ") {
        let Some(path) = root[at + 4..].split(';').next() else { continue };
        let Some((module, items)) = path.split_once("::") else { continue };
        let members = match items.strip_prefix('{') {
            Some(group) => group_members(group),
            None => vec![items.to_owned()],
        };
        for member in members {
            let name = member.rsplit([':', ' ']).next().unwrap_or_default().trim().to_owned();
            exports.insert(name, module.trim().to_owned());
        }
    }
    exports
}

fn is_declaration(item: &str) -> bool {
    let item = item.trim_start();
    ["mod ", "pub mod ", "use ", "pub use ", "pub(crate) use "]
        .iter()
        .any(|way| item.starts_with(way))
}

/// A shortest cycle, from its first module by name back to it.
fn find_cycle(graph: Graph) -> Option<Vec<String>> {
    graph.keys().filter_map(|start| path_back(&graph, start)).min_by_key(Vec::len)
}

/// A shortest way from `start` over its dependencies back to it.
fn path_back(graph: &Graph, start: &String) -> Option<Vec<String>> {
    let mut seen = BTreeSet::new();
    let mut paths = vec![vec![start.clone()]];
    while !paths.is_empty() {
        let mut longer = Vec::new();
        for path in paths {
            for next in graph.get(path.last()?)? {
                let path = [&path[..], std::slice::from_ref(next)].concat();
                if next == start {
                    return Some(path);
                }
                if graph.contains_key(next) && seen.insert(next.clone()) {
                    longer.push(path);
                }
            }
        }
        paths = longer;
    }
    None
}
