//! Finds scripts in a cgi-bin directory, to name them in an experiment file.

use std::fs;
use std::path::Path;

use forebay_process::beginning;

/// Script name in the templates, which the name of an existing script replaces.
const PLACEHOLDER: &str = "script.pl";
/// Kind of application in the template of the site.
const PERL: &str = "\"perl-cgi\"";
const PYTHON: &str = "\"python-cgi\"";

/// Number of bytes that are read of a script to find its language.
const FIRST_LINE: u64 = 128;

/// Names of the scripts in a directory, sorted.
#[derive(Debug, Default, PartialEq)]
struct Scripts {
    perl: Vec<String>,
    python: Vec<String>,
}

/// Returns the texts `experiment` and `site` for a script in `directory`: the experiment with the
/// script's name, the site with its language. Takes the first Perl script, or the first Python
/// script if there is no Perl script. A comment in the experiment lists the other scripts of the
/// same language. Without scripts, returns the texts unchanged.
pub fn name(directory: &Path, experiment: &str, site: &str) -> (String, String) {
    let Scripts { perl, python } = find(directory);
    let (scripts, kind) = if perl.is_empty() { (python, PYTHON) } else { (perl, PERL) };
    let Some((first, others)) = scripts.split_first() else {
        return (experiment.to_owned(), site.to_owned());
    };
    let experiment = experiment.replace(PLACEHOLDER, first);
    let site = site.replace(PERL, kind);
    if others.is_empty() {
        return (experiment, site);
    }
    let note =
        format!("# Other scripts in cgi-bin that can take its place: {}\n", others.join(", "));
    (experiment.replacen("[load]\n", &format!("{note}[load]\n"), 1), site)
}

/// Returns true if a Perl script in `directory` asks for taint checks in its `#!` line, as in
/// `#!/usr/bin/perl -wT`.
pub fn has_taint_checks(directory: &Path) -> bool {
    find(directory).perl.iter().any(|name| {
        let line = first_line(&directory.join(name));
        let mut words = line.split_whitespace();
        words.any(|word| {
            word.starts_with('-') && !word.starts_with("--") && word.contains(['T', 't'])
        })
    })
}

/// Returns the names of all Perl and Python scripts in `directory`, sorted.
pub fn all(directory: &Path) -> Vec<String> {
    let Scripts { perl, python } = find(directory);
    let mut all = [perl, python].concat();
    all.sort();
    all
}

fn find(directory: &Path) -> Scripts {
    let mut scripts = Scripts::default();
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.path().is_file()) {
        let Ok(name) = entry.file_name().into_string() else { continue };
        // Skip scripts whose names would need escapes in the URL or in the experiment file.
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        if !name.bytes().all(is_plain) || name.starts_with('.') {
            continue;
        }
        let line = first_line(&entry.path());
        if name.ends_with(".pl") || line.contains("perl") {
            scripts.perl.push(name);
        } else if name.ends_with(".py") || line.contains("python") {
            scripts.python.push(name);
        }
    }
    scripts.perl.sort();
    scripts.python.sort();
    scripts
}

/// Returns the line that names the interpreter (`#!`). Returns an empty text if there is no such
/// line.
fn first_line(path: &Path) -> String {
    let bytes = beginning(path, FIRST_LINE).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().next().filter(|line| line.starts_with("#!"));
    line.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPERIMENT: &str = "[load]\npath = \"/kept/script.pl\"\n";

    #[test]
    fn scripts_that_exist_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let named = || name(dir.path(), EXPERIMENT, "kind = \"perl-cgi\"");
        assert_eq!(named().0, EXPERIMENT, "there is none");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("report.py", "");
        write("README", "perl");
        let (experiment, site) = named();
        assert_eq!(experiment, "[load]\npath = \"/kept/report.py\"\n");
        assert_eq!(site, "kind = \"python-cgi\"");
        write("zeit.cgi", "#!/usr/bin/perl -w\nprint 1;");
        write("b b.pl", "");
        write("list.pl", "");
        let (experiment, site) = named();
        assert!(experiment.contains("/kept/list.pl"), "{experiment}");
        assert!(experiment.starts_with("# Other scripts in cgi-bin"), "{experiment}");
        assert!(experiment.contains(": zeit.cgi\n"), "{experiment}");
        assert_eq!(site, "kind = \"perl-cgi\"");
    }
}
