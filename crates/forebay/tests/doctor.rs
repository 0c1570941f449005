//! `forebay doctor` on machines and sites with known faults.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use forebay_testkit::folder::Folder;
use forebay_testkit::tls::Authority;
use serde_json::Value;

/// A machine without faults, in files.
fn machine() -> Folder {
    let folder = Folder::new();
    for (path, text) in [
        ("proc/sys/net/core/somaxconn", "4096\n"),
        ("proc/sys/net/core/rmem_max", "4194304\n"),
        ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
        ("proc/sys/net/ipv4/tcp_max_syn_backlog", "128\n"),
        ("proc/sys/net/ipv4/tcp_syncookies", "1\n"),
        ("proc/sys/net/ipv4/tcp_tw_reuse", "2\n"),
        ("proc/sys/net/ipv4/ip_local_reserved_ports", "40000-40002,50000\n"),
        ("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n"),
        ("proc/self/cgroup", "0::/system.slice/forebay.service\n"),
        ("proc/self/status", "Name:\tforebay\nCapEff:\t0000000000000000\n"),
        ("proc/meminfo", "MemTotal:        8000000 kB\nMemFree: 1 kB\n"),
        ("sys/fs/cgroup/system.slice/forebay.service/memory.max", "max\n"),
        ("sys/fs/cgroup/system.slice/forebay.service/cpu.max", "max 100000\n"),
        ("etc/resolv.conf", "# comment\nnameserver 192.0.2.1\n"),
        ("etc/passwd", "root:x:0:0::/root:/bin/sh\nweb:x:12345:12345::/:/bin/sh\n"),
        ("etc/group", "root:x:0:\nweb:x:12345:\nsites:x:23456:other,web\n"),
    ] {
        folder.write(path, text);
    }
    folder
}

fn doctor(machine: &Folder, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.arg("doctor").arg("--root").arg(machine.path()).args(arguments);
    said(command.output().unwrap())
}

fn said(output: Output) -> (Option<i32>, String) {
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

/// Returns only the findings about the site, because this machine may have faults.
fn of_site(machine: &Folder, site: &str) -> String {
    let file = machine.write("site.toml", site.replace("{tmp}", machine.path().to_str().unwrap()));
    let (_, text) = doctor(machine, &[file.to_str().unwrap()]);
    text.split_once("configuration: ").expect("the file is examined").1.to_owned()
}

#[test]
fn faults_of_the_machine_have_a_command_that_mends_them() {
    for (path, text, expected) in [
        ("proc/sys/net/core/somaxconn", "128", "net.core.somaxconn=4096"),
        ("proc/sys/net/ipv4/ip_local_port_range", "60000 60999", "1000 ports for connections"),
        ("proc/sys/net/ipv4/tcp_syncookies", "0", "net.ipv4.tcp_syncookies=1"),
        ("proc/sys/net/ipv4/tcp_tw_reuse", "0", "net.ipv4.tcp_tw_reuse=1"),
        ("proc/sys/kernel/osrelease", "4.19.0-generic", "install a newer kernel"),
        ("sys/fs/cgroup/system.slice/memory.max", "104857600", "warning  memory: 100 MiB"),
        (
            "sys/fs/cgroup/system.slice/forebay.service/memory.max",
            "33554432",
            "error    memory: 32 MiB",
        ),
        (
            "sys/fs/cgroup/system.slice/forebay.service/cpu.max",
            "50000 100000",
            "warning  processors: a quota of 50 % of one processor",
        ),
        ("etc/resolv.conf", "search example.org\n", "no nameserver"),
    ] {
        let machine = machine();
        let (_, before) = doctor(&machine, &[]);
        assert!(!before.contains(expected), "{before}");
        assert!(before.contains("ok       UDP filter: "), "{before}");
        machine.write(path, text);
        let (code, after) = doctor(&machine, &[]);
        assert!(after.contains(expected), "{path}: {after}");
        assert_eq!(code, Some(if expected.starts_with("error") { 2 } else { 1 }), "{after}");
    }
}

#[test]
fn files_that_make_no_sense_are_no_fault_and_no_panic() {
    for text in ["", "\u{fffd}", "-1 -1", "18446744073709551616 0", "0::\n0::/../..", "max"] {
        let machine = machine();
        let mut stack = vec![machine.path().to_owned()];
        while let Some(dir) = stack.pop() {
            for entry in fs::read_dir(dir).unwrap().flatten() {
                if entry.file_type().unwrap().is_dir() {
                    stack.push(entry.path());
                } else {
                    fs::write(entry.path(), text).unwrap();
                }
            }
        }
        let (code, said) = doctor(&machine, &[]);
        assert!(matches!(code, Some(0..=2)), "{text}: {said}");
        assert!(said.contains(" ok, "), "{said}");
    }
}

#[test]
fn a_low_limit_on_files_is_an_error() {
    let shell = |limit: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", limit]);
        command.args([env!("CARGO_BIN_EXE_forebay"), "doctor", "--json"]);
        let output = command.output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["schema"], "forebay.doctor/1");
        let findings = report["findings"].as_array().unwrap();
        let found = findings.iter().find(|finding| finding["topic"] == "open files").unwrap();
        (output.status.code(), report["worst"].clone(), found.clone())
    };
    let (code, worst, found) = shell("200");
    assert_eq!(
        (code, worst.as_str(), found["level"].as_str()),
        (Some(2), Some("error"), Some("error"))
    );
    assert!(found["mend"].as_str().unwrap().contains("LimitNOFILE"), "{found}");
    let (_, _, found) = shell("1024");
    assert_eq!(found["level"], "warning");
    assert!(found["message"].as_str().unwrap().contains("480 clients"), "{found}");
}

#[test]
fn certificates_and_keys_are_examined() {
    let machine = machine();
    let authority = Authority::new("test");
    let site = "[[site]]\nlisten = \"https://127.0.0.1:8443\"\n\
                tls = { certificate = \"{tmp}/cert\", key = \"{tmp}/key\" }\n\
                [[site.route]]\nrespond = \"x\"\n";
    let write = |certificate: &str, key: &str, mode: u32| {
        machine.write("cert", certificate);
        let key = machine.write("key", key);
        fs::set_permissions(key, fs::Permissions::from_mode(mode)).unwrap();
    };
    let good = authority.issue(&["localhost"]);
    write(&good.certificate, &good.key, 0o600);
    let said = of_site(&machine, site);
    assert!(said.contains("ok       certificate: "), "{said}");
    assert!(!said.contains("private key"), "{said}");
    write(&good.certificate, &good.key, 0o644);
    let said = of_site(&machine, site);
    assert!(said.contains("warning  private key: every user"), "{said}");
    assert!(said.contains("mend: chmod 600 "), "{said}");
    let expired = authority.issue_expired(&["localhost"]);
    write(&expired.certificate, &expired.key, 0o600);
    let said = of_site(&machine, site);
    assert!(said.contains("error    certificate: ") && said.contains("days ago"), "{said}");
    write(&good.certificate, "nonsense", 0o600);
    let said = of_site(&machine, site);
    assert!(said.contains("error    certificate: "), "{said}");
}

#[test]
fn files_that_the_servers_user_cannot_read_are_named() {
    let machine = machine();
    machine.write("public/index.html", "x");
    let public = machine.path().join("public");
    fs::set_permissions(machine.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let site = "[server]\nuser = \"web\"\n[[site]]\nlisten = \"127.0.0.1:8080\"\n\
                [[site.route]]\nfiles = \"{tmp}/public\"\n";
    for (mode, expected) in [
        (0o755, "ok       directory: "),
        (0o750, "error    directory: web may not read "),
        (0o777, "warning  directory: every user of this machine can change"),
    ] {
        fs::set_permissions(&public, fs::Permissions::from_mode(mode)).unwrap();
        let said = of_site(&machine, site);
        assert!(said.contains(expected), "{mode:o}: {said}");
    }
    fs::set_permissions(&public, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(machine.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let said = of_site(&machine, site);
    let mend = format!("mend: chmod o+x {}\n", machine.path().display());
    assert!(said.contains(&mend), "{said}");
}

#[test]
fn ports_and_names_are_examined() {
    let machine = machine();
    let said = of_site(
        &machine,
        "[[site]]\nlisten = [\"127.0.0.1:80\", \"127.0.0.1:40001\", \"127.0.0.1:45000\"]\n\
         [[site.route]]\nproxy = \"http://name.invalid:81\"\n",
    );
    assert!(said.contains("error    port: this user may not listen on 127.0.0.1:80 "), "{said}");
    assert!(said.contains("ok       port: 127.0.0.1:40001 "), "{said}");
    assert!(said.contains("warning  port: ") && said.contains("reserved_ports=45000"), "{said}");
    assert!(said.contains("warning  names: the backend name.invalid:81 has no address"), "{said}");
}

#[test]
fn a_file_that_serve_refuses_is_an_error() {
    let machine = machine();
    let file = machine.write("site.toml", "[[site]]\nlisten = 1\n");
    let (code, said) = doctor(&machine, &[file.to_str().unwrap()]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("error    configuration: ") && said.contains("forebay check "), "{said}");
    let missing = machine.path().join("none.toml");
    let (code, said) = doctor(&machine, &[missing.to_str().unwrap()]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("none.toml"), "{said}");
}
