//! `examples/dotnet` does what its README says.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use forebay_testkit::port::free_port;
use forebay_testkit::process::{self, Process};

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/dotnet")
}

#[test]
fn both_applications_are_served_by_its_configuration() {
    let folder = Folder::new();
    for name in ["Listener.cs", "site/hello.ashx"] {
        folder.write(name, fs::read(example().join(name)).unwrap());
    }
    let site = Folder::new();
    site.write("hello.ashx", fs::read(example().join("site/hello.ashx")).unwrap());
    let Some(mono) = peer::mono_fastcgi(&site, &["/multiplex=True"]) else { return };
    let compiled = Command::new("mcs").arg("Listener.cs").current_dir(folder.path()).output();
    assert!(compiled.is_ok_and(|output| output.status.success()), "it compiles");
    if process::find("mono").is_none() {
        return peer::skip("mono is not installed (Debian package mono-runtime)");
    }
    let port = free_port();
    let mut command = Command::new("mono");
    command.arg("Listener.exe").arg(port.to_string()).current_dir(folder.path());
    let mut listener = Process::start(command);
    listener.wait_for_output("listening");
    let configuration = fs::read_to_string(example().join("site.toml")).unwrap();
    let configuration = configuration
        .replace("127.0.0.1:8080", "127.0.0.1:0")
        .replace("127.0.0.1:8100", &format!("127.0.0.1:{port}"))
        .replace("mono.sock", mono.socket().to_str().unwrap())
        .replace("root = \"site\"", &format!("root = \"{}\"", site.path().display()));
    let forebay = support::serve(folder, &configuration);
    assert_eq!(forebay.get("/hello.ashx?n=you").text(), "Hello you from ASP.NET\n");
    let post = "POST /hello.ashx HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
    assert_eq!(forebay.ask(post).text(), "3 bytes\n");
    let mut client = forebay.connect();
    for n in 0..20 {
        let reply = client.get(&format!("/any/{n}"));
        assert_eq!(reply.text(), format!("Hello from .NET at /any/{n}\n"), "{}", forebay.output());
    }
    forebay.stop();
}
