//! Tests may look for their peers only through the list in `scripts/peers`.

use std::fs;
use std::path::{Path, PathBuf};

/// Texts in tests that look for a peer without the list.
const PAST_THE_LIST: [&str; 3] = ["process::find(", "Debian package", "eprintln!(\"skipped"];

#[test]
fn no_test_looks_for_a_peer_past_the_list() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for entry in fs::read_dir(crates).unwrap() {
        sources(&entry.unwrap().path().join("tests"), &mut files);
    }
    assert!(files.len() > 50, "{}", files.len());
    let this = Path::new(file!()).file_name();
    for file in files.iter().filter(|file| file.file_name() != this) {
        let text = String::from_utf8_lossy(&fs::read(file).unwrap()).into_owned();
        for word in PAST_THE_LIST {
            assert!(
                !text.contains(word),
                "{}: {word:?}: use forebay_testkit::peer::has or installed, and add the package to \
                 scripts/peers",
                file.display()
            );
        }
    }
}

fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.extension() {
            Some(extension) if extension == "rs" => files.push(path),
            _ => sources(&path, files),
        }
    }
}
