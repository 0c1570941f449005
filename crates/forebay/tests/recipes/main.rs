//! Sends real requests to the recipes of the manual (`examples/recipes`), all in one Forebay. Compares with the
//! configuration of nginx that each recipe replaces, and with its translation by `forebay import`.

mod cases;
mod compare;
mod stage;
mod stub;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cases::{Recipe, Server};
use compare::Comparison;
use forebay_testkit::peer;
use stage::Stage;

/// The largest number of lines of a site, without comments and blank lines.
const LONGEST: usize = 15;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn recipes_answer_as_documented_and_as_nginx_does() {
    let recipes = Recipe::all();
    // Each thread of both Forebays may keep a connection, which occupies a process.
    let Some(php) = peer::php_fpm(8) else { return };
    let Some(fcgiwrap) = peer::fcgiwrap(8) else { return };
    let stage = Stage::new(&recipes, [("php", php.socket()), ("fcgiwrap", fcgiwrap.socket())]);
    let Some(nginx) = peer::nginx(&stage.nginx_http("{port}")) else { return };
    let checked =
        Command::new(support::program()).arg("check").arg(stage.forebay()).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    assert_eq!(checked.status.code(), Some(0), "{said}");
    let warnings = said.lines().filter(|line| line.trim_start().starts_with("! "));
    let warnings: Vec<_> = warnings.filter(|line| !line.contains("as root")).collect();
    assert!(warnings.is_empty(), "{said}");
    let summary = String::from_utf8_lossy(&checked.stdout);
    assert!(summary.ends_with(" tests hold\n"), "{summary}");

    let forebay = stage.serve(&stage.forebay());
    let (imported, notes) = stage.import(nginx.port());
    let imported = stage.serve(&imported);
    let mut comparison = Comparison::new(&stage);
    for recipe in &recipes {
        let unnamed = recipe.unexpected_notes(&notes);
        comparison.wrong.extend(unnamed);
        for case in &recipe.cases {
            for _ in 0..case.times {
                let theirs = comparison.send(case, Server::Nginx, nginx.port());
                let ours = comparison.send(case, Server::Forebay, stage.port);
                let translated = comparison.send(case, Server::Imported, stage.imported_port);
                comparison.judge(case, Server::Forebay, &theirs, &ours);
                comparison.judge(case, Server::Imported, &theirs, &translated);
            }
        }
    }
    for (server, port) in [
        (Server::Nginx, nginx.port()),
        (Server::Forebay, stage.port),
        (Server::Imported, stage.imported_port),
    ] {
        // One tenth of 40, give or take a request for each thread.
        let new = comparison.count(&recipes, server, port, 40);
        assert!((2..=6).contains(&new), "{server:?}: {new} of 40 visitors get the new version");
    }
    let wrong = comparison.wrong;
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
    stage.read_logs();
    drop((forebay, imported));
}

#[test]
fn recipes_are_short_and_in_the_manual() {
    let pages: String = fs::read_dir(root().join("docs/src/recipes"))
        .unwrap()
        .map(|page| fs::read_to_string(page.unwrap().path()).unwrap())
        .collect();
    let recipes = Recipe::all();
    assert!(recipes.len() >= 30, "{} recipes", recipes.len());
    for Recipe { name, .. } in recipes {
        let text =
            fs::read_to_string(root().join(format!("examples/recipes/{name}/site.toml"))).unwrap();
        let counts = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with('#');
        for site in text.split("[[site]]").skip(1) {
            let lines = 1 + site.lines().filter(counts).count();
            assert!(lines <= LONGEST, "{name}: {lines} lines");
        }
        for file in ["site.toml", "nginx.conf"] {
            let include = format!("{{{{#include ../../../examples/recipes/{name}/{file}}}}}");
            assert!(pages.contains(&include), "no page has {include}");
        }
    }
}
