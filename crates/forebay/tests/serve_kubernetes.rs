//! `forebay serve` on Kubernetes: mounted configuration that changes, the drain after SIGTERM, and the
//! manifests of `deploy/kubernetes`.

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use forebay_testkit::process::eventually;
use forebay_testkit::stream::Address;
use forebay_testkit::tls::{Authority, Identity};
use rustix::process::Signal;
use support::{command, program, serve, serve_command};

const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/kubernetes");

fn respond(text: &str) -> String {
    format!("[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nrespond = \"{text}\"\n")
}

/// Updates a mounted ConfigMap as the kubelet does: writes a new directory, and swaps the link to it.
fn mount(folder: &Path, version: &str, configuration: &str) {
    let data = format!("..2026_11_27_{version}");
    fs::create_dir(folder.join(&data)).unwrap();
    fs::write(folder.join(&data).join("site.toml"), configuration).unwrap();
    let former = fs::read_link(folder.join("..data")).ok();
    symlink(&data, folder.join("..data_tmp")).unwrap();
    fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    match former {
        Some(former) => fs::remove_dir_all(folder.join(former)).unwrap(),
        None => symlink("..data/site.toml", folder.join("site.toml")).unwrap(),
    }
}

#[test]
fn a_mounted_configuration_is_read_again_after_a_swap_and_an_error_changes_nothing() {
    let folder = Folder::new();
    let secret = folder.write("secret/word", "first");
    let text = |before: &str| {
        let word = format!("{before} {{file.{}}}", secret.display());
        respond(&word)
    };
    let mounted = folder.path().join("mounted");
    fs::create_dir(&mounted).unwrap();
    mount(&mounted, "1", &text("one"));
    let file = mounted.join("site.toml");
    let mut forebay =
        serve_command(folder, command(&["--watch", "--threads", "1", file.to_str().unwrap()]));
    let is = |forebay: &support::Forebay, text: &str| forebay.get("/").text() == text;
    assert!(is(&forebay, "one first"));
    mount(&mounted, "2", &text("two"));
    assert!(eventually(|| is(&forebay, "two first")), "{}", forebay.output());
    mount(&mounted, "3", "nonsense");
    forebay.wait_for_output("not reloaded, the old configuration stays in use");
    assert!(is(&forebay, "two first"));
    mount(&mounted, "4", &text("four"));
    assert!(eventually(|| is(&forebay, "four first")), "{}", forebay.output());
    // The value of a placeholder, in another directory.
    fs::write(&secret, "second").unwrap();
    assert!(eventually(|| is(&forebay, "four second")), "{}", forebay.output());
    // A file that is missing for a moment.
    fs::remove_file(&secret).unwrap();
    assert!(eventually(|| forebay.output().matches("not reloaded").count() == 2));
    fs::write(&secret, "third").unwrap();
    assert!(eventually(|| is(&forebay, "four third")), "{}", forebay.output());
    forebay.stop();
}

#[test]
fn watching_needs_a_file() {
    let folder = Folder::new();
    let output = command(&["--watch", folder.path().to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("--watch needs a configuration file"), "{error}");
}

#[test]
fn after_sigterm_readiness_fails_first_and_requests_are_still_served() {
    let folder = Folder::new();
    let admin = Address::from(&folder.path().join("admin.sock"));
    let configuration = format!(
        "[server]\nadmin = \"unix:{{tmp}}/admin.sock\"\ndrain_delay = \"1h\"\n{}",
        respond("hello")
    );
    let mut forebay = serve(folder, &configuration);
    let status = |path: &str| {
        let mut client = forebay_testkit::http::Client::connect(admin.clone());
        client.get(path).status
    };
    assert_eq!((status("/readyz"), status("/healthz")), (200, 200));
    forebay.signal(Signal::TERM);
    assert!(eventually(|| status("/readyz") == 503));
    assert_eq!(status("/healthz"), 200, "a pod that drains is alive");
    assert_eq!(forebay.get("/").text(), "hello");
    // A reload does not end the delay. A second SIGTERM does.
    forebay.signal(Signal::HUP);
    assert_eq!(forebay.get("/").text(), "hello");
    forebay.stop();
}

/// Returns the text of `site.toml` in the ConfigMap.
fn configured() -> String {
    let manifest = fs::read_to_string(format!("{MANIFESTS}/configmap.yaml")).unwrap();
    let (_, text) = manifest.split_once("  site.toml: |\n").expect("a block of text");
    text.lines().map(|line| format!("{}\n", line.strip_prefix("    ").unwrap_or(line))).collect()
}

#[test]
fn the_configuration_of_the_config_map_passes_the_check() {
    let folder = Folder::new();
    let Identity { certificate, key } = Authority::new("x").issue(&["h.example"]);
    folder.write("tls/tls.crt", certificate);
    folder.write("tls/tls.key", key);
    let manifest = fs::read_to_string(format!("{MANIFESTS}/secret.yaml")).unwrap();
    let (_, secrets) = manifest.split_once("stringData:\n").unwrap();
    for line in secrets.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let (name, value) = line.trim().split_once(": ").unwrap();
        folder.write(&format!("secret/{name}"), value.trim_matches('"'));
    }
    let base = folder.path().to_str().unwrap();
    // No Redis runs here. The check would wait for it, and then warn.
    let text = configured().replace("/etc/forebay", base).replace("redis:6379", "127.0.0.1:1");
    let file = folder.write("site.toml", text);
    let output = Command::new(program()).arg("check").arg(file).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{error}");
}

#[test]
fn the_manifests_fit_the_published_schemas() {
    if !peer::has(&["python3-yaml", "python3-jsonschema"]) {
        return;
    }
    let Some(pip) = peer::pip_folder("kubernetes_validate") else { return };
    let all = pip.join("kubernetes_validate/kubernetes-json-schema");
    let script = format!("{MANIFESTS}/validate.py");
    let validate = |version: &str, file: &Path| {
        let schemas = all.join(format!("v{version}.0-local-strict"));
        let mut python = Command::new("/usr/bin/python3");
        python.args(["-W", "ignore", &script]).arg(schemas).arg(file);
        let output = python.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let files = [
        "configmap.yaml",
        "deployment.yaml",
        "horizontalpodautoscaler.yaml",
        "poddisruptionbudget.yaml",
        "secret.yaml",
        "service.yaml",
    ];
    for version in ["1.30", "1.37"] {
        for file in files {
            let outcome = validate(version, &Path::new(MANIFESTS).join(file));
            assert_eq!(outcome, (Some(0), String::new()), "{version}");
        }
    }
    let folder = Folder::new();
    let manifest = fs::read_to_string(format!("{MANIFESTS}/deployment.yaml")).unwrap();
    let wrong = folder.write("wrong.yaml", manifest.replace("maxSurge: 1", "maxSurg: 1"));
    let (code, error) = validate("1.37", &wrong);
    assert!(code == Some(1) && error.contains("'maxSurg' was unexpected"), "{error}");
}

#[test]
fn the_playbook_for_plain_machines_has_no_error_of_syntax() {
    let Some(program) = peer::installed("ansible-playbook") else { return };
    let folder = Folder::new();
    let mut ansible = Command::new(program);
    ansible.current_dir(Path::new(MANIFESTS).with_file_name("ansible"));
    ansible.args(["--syntax-check", "-i", "inventory.ini", "site.yaml"]);
    let output = ansible.env("ANSIBLE_LOCAL_TEMP", folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
