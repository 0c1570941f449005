//! Redirects and cookies of an HTTP backend that does not know its public address.

use crate::world::{Message, in_memory};

fn shop(keys: &str) -> String {
    format!(
        "[[site.route]]\npath = \"/shop/*\"\nproxy = {{ to = \"http://10.0.0.1:3000\"{keys} }}\n"
    )
}

/// Returns the replies for a client of www.example if the backend answers with these fields. In
/// each of them, `{own}` is the backend's authority and `{host}` the `Host` that it receives.
fn replied(keys: &str, answers: &[&str]) -> Vec<Message> {
    let mut replies = Vec::new();
    in_memory(&shop(keys), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for answer in answers {
            let mut client = world.client();
            client.send("GET /shop/x HTTP/1.1\r\nHost: www.example\r\n\r\n").await;
            let mut connection = backend.accept().await;
            let asked = connection.request().await;
            let fields = answer.replace("{own}", "10.0.0.1:3000");
            let fields = fields.replace("{host}", asked.field("host").unwrap());
            let head = "HTTP/1.1 302 Found\r\nConnection: close\r\nContent-Length: 0\r\n";
            connection.send(format!("{head}{fields}\r\n\r\n")).await;
            replies.push(client.reply("GET ").await);
        }
    });
    replies
}

#[test]
fn a_backend_behind_a_stripped_prefix_redirects_to_below_it() {
    for (sent, expected) in [
        ("/login?a", "/shop/login?a"),
        ("/", "/shop/"),
        ("http://{own}/a", "/shop/a"),
        ("http://{host}/a", "http://www.example/shop/a"),
        ("/shop/a", "/shop/a"),
        ("a", "a"),
        ("http://elsewhere.example/a", "http://elsewhere.example/a"),
        ("//elsewhere.example/a", "//elsewhere.example/a"),
    ] {
        let fields =
            format!("Location: {sent}\r\nContent-Location: {sent}\r\nRefresh: 3; url={sent}");
        let reply = replied(", strip_prefix = \"/shop\"", &[&fields]).remove(0);
        assert_eq!(reply.values("location"), [expected], "{sent}");
        assert_eq!(reply.values("content-location"), [expected], "{sent}");
        assert_eq!(reply.values("refresh"), [format!("3; url={expected}")], "{sent}");
    }
}

#[test]
fn a_backend_that_is_given_its_own_host_redirects_to_the_clients() {
    let fields = "Location: http://{host}/a?b\r\nSet-Cookie: a=b; Domain=10.0.0.1";
    let reply = replied(", host = \"backend\"", &[fields]).remove(0);
    assert_eq!(reply.field("location"), Some("/a?b"));
    assert_eq!(reply.field("set-cookie"), Some("a=b"));
}

#[test]
fn no_redirection_becomes_one_to_another_host() {
    for path in ["//evil.example/", "/\\evil.example/", "\\evil.example"] {
        let fields = format!("Location: http://{{host}}{path}");
        let reply = replied(", host = \"backend\"", &[&fields]).remove(0);
        assert_eq!(reply.field("location"), Some(&*format!("http://10.0.0.1:3000{path}")));
    }
}

#[test]
fn cookies_of_a_backend_behind_a_stripped_prefix_are_for_what_is_below_it() {
    let fields = "Set-Cookie: a=1; Path=/; HttpOnly\r\nSet-Cookie: b=2\r\n\
        Set-Cookie: a=3; path=/x\r\nSet-Cookie: __Host-c=4; Path=/; Secure\r\n\
        Set-Cookie: d=5; Path=/shop/y";
    let reply = replied(", strip_prefix = \"/shop/\"", &[fields]).remove(0);
    assert_eq!(
        reply.values("set-cookie"),
        [
            "a=1; Path=/shop; HttpOnly",
            "b=2",
            "a=3; path=/shop/x",
            "__Host-c=4; Path=/; Secure",
            "d=5; Path=/shop/y"
        ]
    );
}

#[test]
fn redirections_pass_as_they_are_where_the_route_says_so() {
    let keys = ", strip_prefix = \"/shop\", host = \"backend\", redirect = \"off\"";
    let fields = "Location: http://{own}/a\r\nSet-Cookie: a=1; Path=/";
    let reply = replied(keys, &[fields]).remove(0);
    assert_eq!(reply.field("location"), Some("http://10.0.0.1:3000/a"));
    assert_eq!(reply.field("set-cookie"), Some("a=1; Path=/"));
}

/// Returns status and `Location` of each reply.
fn redirected(routes: &str, requests: &[(&str, &str)]) -> Vec<(u16, Option<String>)> {
    let mut replies = Vec::new();
    in_memory(routes, async |world| {
        for (target, host) in requests {
            let mut client = world.client();
            client.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
            let reply = client.reply("GET ").await;
            replies.push((reply.status(), reply.field("location").map(str::to_owned)));
        }
    });
    replies
}

#[test]
fn old_addresses_of_a_file_redirect_and_others_are_left_to_the_routes_below() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("moved.map");
    let lines = "/old /new\n/a%20b https://e.example/c 302\n/i?id=1 /one\n/i /all\n/x.php /x\n";
    std::fs::write(&file, lines).unwrap();
    let routes = format!(
        "[[site.route]]\nredirect = {{ file = {file:?} }}\n[[site.route]]\nrespond = \"below\"\n"
    );
    let to = |status: u16, to: &str| (status, Some(to.to_owned()));
    for (target, expected) in [
        ("/old", to(301, "/new")),
        ("/old?a=b&c", to(301, "/new?a=b&c")),
        ("/./old", to(301, "/new")),
        ("/o%6Cd", to(301, "/new")),
        ("/a%20b?x", to(302, "https://e.example/c?x")),
        ("/i?id=1", to(301, "/one")),
        ("/i?id=2", to(301, "/all?id=2")),
        ("/i%3Fid=1", (200, None)),
        ("/old/", (200, None)),
        ("/OLD", (200, None)),
        ("/x.php/y", (200, None)),
        ("/", (200, None)),
    ] {
        assert_eq!(redirected(&routes, &[(target, "h")]), [expected], "{target}");
    }
}

#[test]
fn a_query_cannot_leave_the_location_field() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("moved.map");
    std::fs::write(&file, "/old /new\n").unwrap();
    let routes = format!("[[site.route]]\nredirect = {{ file = {file:?} }}\n");
    let replies = redirected(&routes, &[("/old?%0d%0aX:1\"<>", "h")]);
    assert_eq!(replies, [(301, Some("/new?%0d%0aX:1%22%3C%3E".to_owned()))]);
}

#[test]
fn redirects_keep_the_port_that_the_client_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("dir")).unwrap();
    let site = |keys: &str, route: &str| {
        format!(
            "[[site]]\nlisten = \"127.0.0.1:80\"\nhosts = \"example.org\"\n{keys}[[site.route]]\n{route}\n"
        )
    };
    let www = site("www = \"redirect\"\n", "respond = \"x\"");
    let trusting =
        site("www = \"redirect\"\ntrusted_proxies = \"10.0.0.0/8\"\n", "respond = \"x\"");
    let files = site("", &format!("files = {:?}", dir.path()));
    let name = site("", "redirect = \"{scheme}://new.example{requested_port}{uri}\"");
    let bare = |hosts: &str| {
        let route = "redirect = \"http://{bare_host}{requested_port}{uri}\"";
        site("", route).replace("\"example.org\"", hosts)
    };
    let (bare, short) = (bare("[\"*.org\", \"example.org\"]"), bare("\"www.example\""));
    let to_https = site("redirect_to_https = true\n", "respond = \"x\"");
    for (routes, target, host, status, location) in [
        (&www, "/a//b?c=%20d", "WWW.example.org", 301, "http://example.org/a/b?c=%20d"),
        (&www, "/", "www.example.org:8080", 301, "http://example.org:8080/"),
        (&trusting, "/", "www.example.org:8443", 301, "http://example.org:8443/"),
        (&www, "/", "example.org:8080", 200, ""),
        // A path keeps host and port, whatever they are.
        (&files, "/dir?q", "example.org:8080", 301, "/dir/?q"),
        (&name, "/a", "example.org:8080", 302, "http://new.example:8080/a"),
        (&name, "/a", "example.org", 302, "http://new.example/a"),
        (&bare, "/a?b", "WWW.a.example.org:8080", 302, "http://a.example.org:8080/a?b"),
        (&bare, "/a", "wwwexample.org", 302, "http://wwwexample.org/a"),
        (&bare, "/a", "example.org", 302, "http://example.org/a"),
        (&short, "/a", "www.example", 302, "http://www.example/a"),
        // Another scheme has another port.
        (&to_https, "/a", "example.org:8080", 308, "https://example.org/a"),
    ] {
        let replies = redirected(routes, &[(target, host)]);
        let location = Some(location.to_owned()).filter(|location| !location.is_empty());
        assert_eq!(replies, [(status, location)], "{host} {routes}");
    }
}
