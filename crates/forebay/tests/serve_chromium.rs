//! Chromium, headless, with a page of `forebay serve` over TLS: HTTP/2, and a WebSocket within it
//! (RFC 8441).

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, iter};

use forebay_testkit::chromium;
use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use forebay_testkit::process::Process;
use forebay_testkit::scripted::{ScriptStep, ScriptedBackend};
use forebay_testkit::tls::Authority;
use serde_json::{Value, json};

use support::{Forebay, serve};

const IMAGES: usize = 100;

fn own(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chromium").join(name)
}

/// A page with images, a WebSocket backend that echoes over HTTP/1.1, and a target for the page's
/// report.
fn site(reports: &ScriptedBackend) -> Forebay {
    let folder = Folder::new();
    let identity = Authority::new("of the test").issue(&["localhost"]);
    folder.write("cert.pem", identity.certificate);
    folder.write("key.pem", identity.key);
    folder.write("htdocs/page.html", fs::read(own("page.html")).unwrap());
    for number in 0..IMAGES {
        let svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" height=\"9\" width=";
        folder.write(&format!("htdocs/images/{number}.svg"), format!("{svg}\"{}\"/>", number + 1));
    }
    let configuration = format!(
        "[log]\naccess = \"{{tmp}}/log\"\nformat = \"%r %s\"\n\
         [[site]]\nlisten = \"https://127.0.0.1:0\"\n\
         tls = {{ certificate = \"cert.pem\", key = \"key.pem\" }}\n\
         [[site.route]]\npath = \"/report\"\nproxy = \"http://127.0.0.1:{}\"\n\
         [[site.route]]\npath = \"/echo\"\napp = \"echo\"\n\
         [[site.route]]\nfiles = \"htdocs\"\n\
         [app.echo]\nkind = \"command\"\nspeaks = \"http\"\n\
         run = [\"/usr/bin/python3\", \"{}\", \"{{port}}\"]\n",
        reports.port(),
        own("echo.py").display()
    );
    serve(folder, &configuration)
}

/// Returns the name that Chromium uses for the one trusted key.
fn key_name(folder: &Folder) -> String {
    let output = Command::new("sh")
        .args([
            "-c",
            "openssl x509 -in cert.pem -noout -pubkey | openssl pkey -pubin -outform der | \
             openssl dgst -sha256 -binary | openssl base64",
        ])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let name = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    assert_eq!(name.len(), 44, "{}", String::from_utf8_lossy(&output.stderr));
    name
}

fn chromium(forebay: &Forebay) -> Process {
    let folder = forebay.folder.path();
    let mut command = chromium::command(&folder.join("profile"));
    command
        .args(["--remote-debugging-port=0", "--host-resolver-rules=MAP localhost 127.0.0.1"])
        .arg(format!("--ignore-certificate-errors-spki-list={}", key_name(&forebay.folder)))
        .arg(format!("https://localhost:{}/page.html", forebay.address.port()));
    Process::start(command)
}

#[test]
fn a_page_with_100_images_and_a_websocket_is_shown_by_http2_alone() {
    if !peer::has(&["chromium", "openssl", "python3"]) {
        return;
    }
    let thanks = ScriptStep::send("HTTP/1.1 204 No Content\r\n\r\n");
    let reports = ScriptedBackend::tcp([vec![ScriptStep::ReadHead, thanks]]);
    let forebay = site(&reports);
    let browser = chromium(&forebay);
    reports.wait_for_connection();
    let received = reports.finish().remove(0).received;
    let received = String::from_utf8(received).unwrap();
    let exit = browser.stop();
    let report = received.lines().find_map(|line| line.strip_prefix("x-report: "));
    let report = report.unwrap_or_else(|| panic!("no report: {received}{}", exit.output));
    let report: Value = serde_json::from_str(report).unwrap();
    assert_eq!(report["messages"], json!([0, 9, 100_000]));
    assert_eq!(report["closed"], 1000);
    assert_eq!(report["widths"], (1..=IMAGES).collect::<Value>());
    let h2 = iter::repeat_n("h2", IMAGES + 1).collect::<Value>();
    assert_eq!(report["protocols"], h2, "the page and its images");
    let (_, folder) = forebay.stop();
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(log.contains("GET /echo HTTP/2.0 101\n"), "{log}");
    let images = log.lines().filter(|line| line.ends_with(".svg HTTP/2.0 200"));
    assert_eq!((images.count(), log.matches("HTTP/1.1").count()), (IMAGES, 0), "{log}");
}
