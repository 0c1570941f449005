//! Checks that ARCHITECTURE.md names files and functions that exist.

use std::fs;
use std::path::Path;

/// Returns the files and functions in the table of steps.
fn places(table: &str) -> Vec<(String, String)> {
    let quoted = table.split('`').skip(1).step_by(2);
    let place = |text: &str| {
        let (file, function) = text.split_once(':')?;
        Some((file.to_owned(), function.to_owned()))
    };
    quoted.map(|text| place(text).unwrap_or_else(|| panic!("{text} names no function"))).collect()
}

/// Returns the rows of the table that begins with this line.
fn rows<'a>(text: &'a str, head: &str) -> Vec<&'a str> {
    let lines = text.lines().skip_while(|line| !line.starts_with(head));
    lines.take_while(|line| line.starts_with('|')).skip(2).collect()
}

#[test]
fn every_step_of_a_request_is_found_where_its_table_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let (table, ones) = (rows(&text, "| step |"), rows(&text, "| part |"));
    let steps = (1..=11).map(|step| format!("| {step} "));
    for step in steps {
        assert!(table.iter().any(|row| row.starts_with(&step)), "there is no row {step}");
    }
    assert!(!ones.is_empty(), "there is no table of what there is one of");
    for row in table.into_iter().chain(ones) {
        let places = places(row);
        assert!(!places.is_empty(), "{row}");
        for (file, function) in places {
            let path = root.join("crates").join(format!("forebay-{file}"));
            let source = fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let is_there = [format!("fn {function}("), format!("fn {function}<")]
                .iter()
                .any(|definition| source.contains(definition));
            assert!(is_there, "{file} has no function {function}: {row}");
        }
    }
}

#[test]
fn the_architecture_names_files_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let crates = root.join("crates");
    let named = text.split('`').skip(1).step_by(2).filter(|name| name.contains("/src/"));
    let files = named.map(|name| name.split_once(':').map_or(name, |(file, _)| file));
    let missing: Vec<_> =
        files.filter(|file| !crates.join(format!("forebay-{file}")).exists()).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names {missing:?}");
}
