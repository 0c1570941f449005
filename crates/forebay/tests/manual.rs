//! Follows the tutorials of the manual word for word, each in a clean directory.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer::has_php_fpm;
use support::serve;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the indented blocks of a page that are configurations, in their order.
fn configurations(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let (mut blocks, mut block) = (Vec::new(), String::new());
    for line in text.lines().chain(["end"]) {
        match line.strip_prefix("    ") {
            Some(line) => block += &format!("{line}\n"),
            None if line.is_empty() => block.push('\n'),
            None => blocks.push(std::mem::take(&mut block)),
        }
    }
    let begins = |block: &String| {
        let text = block.trim_start();
        text.starts_with("[[site]]") || text.starts_with("[server]")
    };
    blocks.into_iter().filter(begins).filter(|block| block.contains("[[site]]")).collect()
}

/// Returns a directory with what the pages take for granted.
fn directory() -> Folder {
    let folder = Folder::new();
    let time = fs::read_to_string(root().join("examples/cgi-or-persistent/time.pl")).unwrap();
    folder.write("examples/cgi-or-persistent/time.pl", time);
    for (name, text) in [
        ("examples/README", "examples"),
        ("blog/index.php", "<?php echo 'blog ', $_SERVER['REQUEST_URI'];"),
        ("blog/wp-content/uploads/x.php", "<?php echo 'run';"),
        (
            "shop/app.py",
            "def application(environ, start):\n    start('200 OK', [])\n    return [b'shop']\n",
        ),
        ("shop/static/a.css", "css"),
        (
            "usr/lib/cgi-bin/hello.pl",
            "#!/usr/bin/perl\nprint \"Content-Type: text/plain\\n\\nhello\";\n",
        ),
        ("srv/app/static/a.css", "css"),
        ("shop/venv/bin/none", ""),
    ] {
        folder.write(name, text);
    }
    for script in ["examples/cgi-or-persistent/time.pl", "usr/lib/cgi-bin/hello.pl"] {
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder.path().join(script), mode).unwrap();
    }
    symlink("/usr/bin/python3", folder.path().join("shop/venv/bin/python")).unwrap();
    folder
}

/// Returns a configuration of a page with the ports and directories of a test. Without root, leaves
/// the users out, as the pages say.
fn here(text: &str, folder: &Folder) -> String {
    let is_root = rustix::process::geteuid().is_root();
    let lines = text.lines().filter(|line| is_root || !line.trim_start().starts_with("user = "));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    let dir = folder.path().display();
    text.replace("127.0.0.1:8080", "127.0.0.1:0")
        .replace("\"/usr/lib", &format!("\"{dir}/usr/lib"))
        .replace("\"/srv", &format!("\"{dir}/srv"))
}

#[test]
fn every_configuration_of_a_tutorial_passes_check() {
    let mut count = 0;
    for page in fs::read_dir(root().join("docs/src/tutorials")).unwrap() {
        let page = page.unwrap().path();
        for text in configurations(&page) {
            if text.contains("\"php\"") && !has_php_fpm() {
                continue;
            }
            let folder = directory();
            let file = folder.write("site.toml", here(&text, &folder));
            let output = Command::new(support::program()).arg("check").arg(&file).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{}:\n{text}\n{said}", page.display());
            let warnings = said.lines().filter(|line| line.trim_start().starts_with("! "));
            let others: Vec<_> = warnings.filter(|line| !line.contains("as root")).collect();
            assert!(others.is_empty(), "{}:\n{text}\n{said}", page.display());
            count += 1;
        }
    }
    assert!(count >= 4, "{count} configurations");
}

#[test]
fn the_first_site_answers_as_its_page_says() {
    let folder = directory();
    let text = configurations(&root().join("docs/src/tutorials/first-site.md")).remove(0);
    let text = here(&text, &folder);
    let forebay = serve(folder, &text);
    let time = forebay.get("/time.pl");
    assert_eq!(time.status, 200, "{time:?}");
    assert!(time.text().starts_with("The time is"), "{time:?}");
    let list = forebay.get("/");
    assert_eq!(list.status, 200, "{list:?}");
    assert!(list.text().contains("README"), "{list:?}");
}

#[test]
fn the_sites_of_the_php_page_run_scripts_and_never_uploads() {
    if !has_php_fpm() {
        return;
    }
    let pages = configurations(&root().join("docs/src/tutorials/php.md"));
    assert!(pages[0].contains("kind = \"php\""), "the page leads with the short form");
    for text in &pages {
        let folder = directory();
        let text = here(text, &folder);
        let forebay = serve(folder, &text);
        assert_eq!(forebay.get("/2026/hello").text(), "blog /2026/hello", "{text}");
        assert_eq!(forebay.get("/wp-content/uploads/x.php").status, 404, "{text}");
    }
}
