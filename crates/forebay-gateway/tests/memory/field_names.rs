//! Request fields whose names contain `_` or another mark that applications read as a hyphen.

use std::time::Duration;

use forebay_gateway::{Question, check, explain};

use crate::application::{Application, reply};
use crate::http2_backend::{ADDRESS, Http2Backend};
use crate::http2_client::Http2Client;
use crate::world::{Message, World, in_memory};

/// A site that passes such names.
const PASSING: &str = "[[site]]\nlisten = \"127.0.0.1:80\"\nunderscores_in_headers = true\n";
const PROXY: &str = "proxy = \"http://10.0.0.1:3000\"\n";

async fn get(world: &World, target: &str, fields: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await
}

/// Answers with the value that an application reads as `X-A`, in any spelling.
fn as_read(request: &Message) -> String {
    let is_read = |name: &str| name.replace(|c: char| !c.is_ascii_alphanumeric(), "-") == "x-a";
    let mut values = request.fields.iter().filter(|(name, _)| is_read(name));
    values.next_back().map(|(_, value)| value.clone()).unwrap_or_default()
}

#[test]
fn no_spelling_of_a_name_poisons_stored_replies() {
    for site in ["", PASSING] {
        for (cache, vary) in [("true", "Vary: X-A\r\n"), ("{ key = \"{uri}{header.X-A}\" }", "")] {
            let route = format!("{site}[[site.route]]\n{PROXY}cache = {cache}\n");
            in_memory(&route, async |world| {
                let _application = Application::start(world, move |request, _| {
                    let fields = format!("Cache-Control: max-age=60\r\n{vary}");
                    reply(&fields, &as_read(request))
                });
                let spellings = ["X_A", "x.a", "X~A", "X`A", "X!A", "x_A"];
                for (number, name) in spellings.into_iter().enumerate() {
                    let target = format!("/{number}");
                    get(world, &target, &format!("{name}: evil\r\n")).await;
                    assert_eq!(get(world, &target, "").await.text(), "", "{name}");
                    let both = format!("X-A: good\r\n{name}: evil\r\n");
                    assert_eq!(get(world, &target, &both).await.text(), "good", "{name}");
                    assert_eq!(get(world, &target, "X-A: good\r\n").await.text(), "good", "{name}");
                    let stored = get(world, &target, "X-A: good\r\n").await;
                    let status = stored.field("cache-status").unwrap();
                    assert!(status.starts_with("forebay; hit"), "{name}: {status}");
                }
            });
        }
    }
}

#[test]
fn by_default_no_backend_gets_such_names_and_the_log_says_so() {
    let sent = "X_Api_Key: 1\r\nX.Dot: 2\r\nX-Kept: 3\r\n__: 4\r\n";
    in_memory(&format!("[[site.route]]\n{PROXY}"), async |world| {
        let application = Application::start(world, |_, _| reply("", ""));
        get(world, "/", sent).await;
        let mut client = Http2Client::connect(world).await;
        let stream = client.ask("GET", "/", &[("x_api_key", "1"), ("x-kept", "3")], true);
        client.reply(stream).await;
        for asked in &*application.seen.borrow() {
            assert_eq!(asked.field("x-kept"), Some("3"));
            let is_marked = |(name, _): &&(String, String)| name.contains(['_', '.']);
            assert_eq!(asked.fields.iter().find(is_marked), None);
        }
        let logged = world.errors().join("\n");
        assert!(
            logged.contains("X_Api_Key") && logged.contains("underscores_in_headers"),
            "{logged}"
        );
    });
}

#[test]
fn rules_do_not_see_such_names_by_default() {
    let routes = format!(
        "[[site.route]]\nwhen = {{ variable.http_x_role = \"admin\" }}\nrespond = \"admin\"\n\
         [[site.route]]\n{PROXY}"
    );
    in_memory(&routes, async |world| {
        let _application = Application::start(world, |_, _| reply("", "other"));
        assert_eq!(get(world, "/", "X-Role: admin\r\n").await.text(), "admin");
        assert_eq!(get(world, "/", "X_Role: admin\r\n").await.text(), "other");
    });
}

#[test]
fn a_site_may_pass_such_names_but_no_field_that_forebay_sets_is_forged() {
    let route = format!(
        "{PASSING}[[site.route]]\nproxy = \"h2c://{ADDRESS}\"\n\
         request_headers = {{ X-User = \"real\", X-Gone = \"\" }}\n"
    );
    in_memory(&route, async |world| {
        let mut backend = Http2Backend::new(world);
        let mut client = Http2Client::connect(world).await;
        let fields = [
            ("x_user", "forged"),
            ("x.user", "forged"),
            ("x_gone", "forged"),
            ("x_forwarded_proto", "forged"),
            ("x_real.ip", "forged"),
            ("x-one", "kept"),
            ("x_one", "forged"),
            ("x_two", "forged"),
            ("x.two", "forged"),
            ("user_id", "kept"),
        ];
        let stream = client.ask("GET", "/", &fields, true);
        let (asked, _) = tokio::join!(backend.answer("ok"), client.reply(stream));
        assert!(!asked.fields.iter().any(|(_, value)| value == "forged"), "{asked:?}");
        let kept = asked.fields.iter().filter(|(_, value)| value == "kept");
        let kept: Vec<_> = kept.map(|(name, _)| name.as_str()).collect();
        assert_eq!(kept, ["x-one", "user_id"]);
    });
}

#[test]
fn applications_get_such_names_as_variables_only_if_the_site_passes_them() {
    let fields = "Api_Key: kept\r\nX-User: one\r\nX_User: forged\r\nX_Real_IP: forged\r\n\
                  Content_Type: forged\r\nX_Twice: forged\r\nx.twice: forged\r\n";
    for (protocol, name) in
        [("scgi", "HTTP_API_KEY"), ("uwsgi", "HTTP_API_KEY"), ("ajp", "Api_Key")]
    {
        for site in ["", PASSING] {
            let route =
                format!("{site}[[site.route]]\n{protocol} = {{ to = \"10.0.0.1:9000\" }}\n");
            in_memory(&route, async |world| {
                let mut application = world.backend("10.0.0.1:9000");
                let mut client = world.client();
                client.send(format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await;
                let mut connection = application.accept().await;
                // The clock jumps when the gateway has sent everything.
                let quiet = Duration::from_secs(1);
                while let Ok(Ok(true)) = tokio::time::timeout(quiet, connection.more()).await {}
                let text = String::from_utf8_lossy(connection.unread()).into_owned();
                assert!(!text.contains("forged"), "{protocol}: {text:?}");
                assert_eq!(text.contains(name), !site.is_empty(), "{protocol}: {text:?}");
            });
        }
    }
}

#[test]
fn explain_removes_such_names_as_the_server_does() {
    let route = "[[site.route]]\nwhen = { header.X_A = \"1\" }\nrespond = { status = 403 }\n\
                 [[site.route]]\nrespond = \"open\"\n";
    let removing = PASSING.replace("true", "false");
    for (site, line, is_removed) in [(&*removing, "line 7", true), (PASSING, "line 4", false)] {
        let text = format!("{site}{route}");
        let plan = forebay_conf::parse(&text, "test.toml", std::path::Path::new("/")).unwrap();
        let fields = ["X_A: 1".to_owned()];
        let question = Question { url: "/", method: "GET", fields: &fields, body: None };
        let answer = explain(&plan, &question).unwrap();
        assert!(answer.contains(&format!("route     {line}")), "{answer}");
        assert_eq!(answer.contains("such as X_A"), is_removed, "{answer}");
    }
}

#[test]
fn check_warns_of_names_that_the_site_removes() {
    let removing = PASSING.replace("true", "false");
    for (keys, name) in [
        ("when = { header.X_A = \"1\" }", Some("X-A")),
        ("when = { not = { header.\"x.a\" = true } }", Some("x-a")),
        ("set_headers = { X-B = \"{header.X_A}\" }", Some("X-A")),
        ("when = { header.X-A = \"1\" }", None),
    ] {
        for (site, name) in [(&*removing, name), (PASSING, None)] {
            let text = format!("{site}[[site.route]]\n{keys}\nrespond = \"x\"\n");
            let plan = forebay_conf::parse(&text, "test.toml", std::path::Path::new("/")).unwrap();
            let warnings = check(&plan).unwrap().map(|found| found.to_string());
            let warnings = warnings.unwrap_or_default();
            assert_eq!(
                warnings.contains("the site removes the field"),
                name.is_some(),
                "{warnings}"
            );
            assert!(warnings.contains(name.unwrap_or_default()), "{warnings}");
        }
    }
}
