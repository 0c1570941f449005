//! `examples/dotnet` does what its README says.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use forebay_testkit::process::eventually;

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/dotnet")
}

fn compile(folder: &Folder) {
    peer::compile_cs(folder, "Listener.cs", "Listener.exe");
}

#[test]
fn both_applications_are_run_by_its_configuration() {
    if !peer::has_mono() {
        return;
    }
    let folder = Folder::new();
    for name in ["Listener.cs", "site/hello.ashx"] {
        folder.write(name, fs::read(example().join(name)).unwrap());
    }
    compile(&folder);
    let configuration = fs::read_to_string(example().join("site.toml")).unwrap();
    let configuration = configuration.replace("127.0.0.1:8080", "127.0.0.1:0");
    let forebay = support::serve(folder, &configuration);
    assert_eq!(forebay.get("/hello.ashx?n=you").text(), "Hello you from ASP.NET\n");
    let post = "POST /hello.ashx HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
    assert_eq!(forebay.ask(post).text(), "3 bytes\n");
    let mut client = forebay.connect();
    for n in 0..20 {
        let reply = client.get(&format!("/any/{n}"));
        assert_eq!(reply.text(), format!("Hello from .NET at /any/{n}\n"), "{}", forebay.output());
    }
    let source = fs::read_to_string(example().join("Listener.cs")).unwrap();
    forebay.folder.write("Listener.cs", source.replace("Hello from", "Hello again from"));
    compile(&forebay.folder);
    let is_new = || client.get("/any").text() == "Hello again from .NET at /any\n";
    assert!(eventually(is_new), "{}", forebay.output());
    forebay.stop();
}
