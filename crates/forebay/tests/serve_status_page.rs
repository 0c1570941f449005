//! The page of `/status` in Chromium: it follows the server, loads nothing from elsewhere, and can be
//! read on a telephone, in light and in dark.

mod support;

use std::net::SocketAddr;

use forebay_testkit::chromium::{self, brightness};
use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer;
use forebay_testkit::port::free_port;
use serde_json::Value;
use support::echo::Echo;
use support::{Forebay, serve};

/// Shows the page in a frame of a telephone's width, and records the result.
const HARNESS: &str = r##"<!DOCTYPE html>
<link rel="icon" href="data:,">
<iframe id="page" style="width: 400px; height: 800px; border: 0" src="/status"></iframe>
<script>
onload = () => setTimeout(() => {
  const frame = document.getElementById("page").contentWindow, page = frame.document;
  const all = selector => [...page.querySelectorAll(selector)];
  const style = frame.getComputedStyle(page.body);
  document.title = JSON.stringify({
    loaded: frame.performance.getEntriesByType("resource").map(entry => new URL(entry.name).pathname)
      .filter((path, at, paths) => paths.indexOf(path) === at).sort(),
    width: page.documentElement.scrollWidth,
    tiles: all(".tile").map(e => e.textContent),
    cells: all("#live td").map(e => e.textContent),
    changes: all("#live p.warn").map(e => e.textContent),
    charts: all("svg.chart").length,
    images: all("img").length,
    paper: style.backgroundColor, ink: style.color,
  });
}, 7000);
</script>"##;

/// Runs Chromium. Returns the harness's observations, and the console's messages. `scheme`: 0 is
/// dark, 1 light.
fn show(forebay: &Forebay, scheme: u8) -> (Value, Vec<String>) {
    let profile = forebay.folder.path().join("profile");
    let url = format!("http://{}/harness.html", forebay.address);
    let (seen, console) = chromium::show(&profile, &url, 12_000, scheme);
    (serde_json::from_str(&seen).unwrap(), console)
}

fn page(admin: SocketAddr) -> (String, String) {
    let mut client = Client::connect(admin);
    client.send("GET /status HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n\r\n");
    let reply = client.reply();
    let policy = reply.header("Content-Security-Policy").unwrap().to_owned();
    (policy, reply.text().to_owned())
}

#[test]
fn the_page_follows_the_server_in_light_and_dark_and_loads_nothing_else() {
    if !peer::has(&["chromium"]) {
        return;
    }
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let echo = Echo::start();
    // The page cannot be framed. The harness frames it with another value of that one directive.
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                  img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
    let framed = policy.replace("frame-ancestors 'none'", "frame-ancestors 'self'");
    let folder = Folder::new();
    folder.write("files/harness.html", HARNESS);
    let configuration = format!(
        "[server]\nadmin = \"{admin}\"\nadmin_token = \"0123456789abcdefgh\"\n\
         [[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/harness.html\"\nfiles = \"files\"\n\
         [[site.route]]\npath = \"/shop/*\"\n\
         proxy = {{ to = [\"{}\", \"http://127.0.0.1:9/\"] }}\n\
         [[site.route]]\nproxy = {{ to = \"http://{admin}\" }}\n\
         [site.route.set_headers]\nContent-Security-Policy = \"{framed}\"\n",
        echo.url()
    );
    let forebay = serve(folder, &configuration);
    assert_eq!(page(admin).0, policy);
    let mut client = Client::connect(admin);
    let body = r#"{"backend": "127.0.0.1:9", "state": "drain"}"#;
    client.send(format!(
        "POST /control/backend HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \
         0123456789abcdefgh\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert_eq!(client.reply().status, 200);
    assert_eq!(forebay.get("/shop/x").status, 200);
    for (scheme, is_dark) in [(0, true), (1, false)] {
        let (seen, console) = show(&forebay, scheme);
        assert_eq!(console, [""; 0]);
        let own = serde_json::json!(["/status.json", "/status/page.css", "/status/page.js"]);
        assert_eq!(seen["loaded"], own);
        assert!(seen["width"].as_u64() <= Some(400), "{seen}");
        let tiles = seen["tiles"].as_array().unwrap();
        assert!(tiles.iter().any(|tile| tile.as_str().unwrap().ends_with("requests/s")), "{seen}");
        assert_eq!((&seen["charts"], &seen["images"]), (&1.into(), &0.into()), "{seen}");
        let cells = seen["cells"].as_array().unwrap();
        assert!(cells.iter().any(|cell| cell == "drain, up"), "{seen}");
        assert_eq!(seen["changes"], serde_json::json!(["Changed: backend 127.0.0.1:9 drains"]));
        let [paper, ink] = ["paper", "ink"].map(|name| brightness(seen[name].as_str().unwrap()));
        assert!(if is_dark { ink > paper + 450 } else { paper > ink + 450 }, "{seen}");
    }
    forebay.stop();
}
