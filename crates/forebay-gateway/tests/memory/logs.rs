//! `log` of sites and routes: the access log that a request is written to.

use std::time::Duration;

use crate::application::{Application, reply};
use crate::world::in_memory;

const SITES: &str = "[log]\naccess = \"stdout\"\nformat = \"main %U\"\n\
    [[site]]\nlisten = \"127.0.0.1:80\"\nhosts = \"a\"\n\
    log = { access = \"/tmp/a.log\", format = \"a %U %>s\" }\n\
    [[site.route]]\npath = \"/own\"\nrespond = \"x\"\nlog = { format = \"own %U\" }\n\
    [[site.route]]\npath = \"/off\"\nrespond = \"x\"\nlog = false\n\
    [[site.route]]\npath = \"/here\"\nrespond = \"x\"\nlog = true\n\
    [[site]]\nlisten = \"127.0.0.1:80\"\nhosts = \"b\"\nlog = \"off\"\n\
    [[site.route]]\npath = \"/own\"\nrespond = \"x\"\nlog = { access = \"/tmp/b.log\" }\n\
    [[site.route]]\nrespond = \"x\"\n\
    [[site]]\nlisten = \"127.0.0.1:80\"\nhosts = \"c\"\n[[site.route]]\nrespond = \"x\"\n";

#[test]
fn each_request_is_written_to_the_log_of_its_route_or_site() {
    in_memory(SITES, async |world| {
        for (host, target, expected) in [
            ("a", "/here", Some((1, "a /here 200"))),
            ("a", "/none", Some((1, "a /none 404"))),
            ("a", "/own", Some((2, "own /own"))),
            ("a", "/off", None),
            ("b", "/", None),
            ("b", "/own", Some((3, "main /own"))),
            ("c", "/", Some((0, "main /"))),
        ] {
            world.ask(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
            let lines = world.gateway.numbered_lines();
            let expected: Vec<_> =
                expected.into_iter().map(|(number, line)| (number, line.to_owned())).collect();
            assert_eq!(lines, expected, "{host}{target}");
        }
        // A request without a readable head belongs to no site.
        let mut client = world.client();
        client.send("nonsense\r\n\r\n").await;
        client.rest().await.1.unwrap();
        assert!(world.gateway.numbered_lines().iter().all(|(number, _)| *number == 0));
    });
}

#[test]
fn a_tab_in_a_value_separates_no_columns() {
    let site = "[log]\naccess = \"stdout\"\nformat = \"%>s\\t%{User-Agent}i\"\n\
                [[site]]\nlisten = \"127.0.0.1:80\"\n\
                [[site.route]]\npath = \"/json\"\nrespond = \"x\"\nlog = { format = \"json\" }\n\
                [[site.route]]\nrespond = \"x\"\n";
    in_memory(site, async |world| {
        for (target, expected) in [("/", "200\ta\\x09b"), ("/json", "\"user_agent\":\"a\\tb\"")] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\nUser-Agent: a\tb\r\n\r\n");
            world.ask(&request).await;
            let lines = world.gateway.numbered_lines();
            assert!(lines[0].1.contains(expected), "{lines:?}");
        }
    });
}

#[test]
fn lines_name_the_backend_the_part_of_the_cache_and_the_identifier() {
    let own = "%{upstream}x %{cache}x %{request_id}x";
    let site = format!(
        "[log]\naccess = \"stdout\"\nformat = \"{own}\"\n[[site]]\nlisten = \"127.0.0.1:80\"\n\
         trusted_proxies = \"192.0.2.7\"\n\
         [[site.route]]\npath = \"/fixed\"\nrespond = \"x\"\n\
         [[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n\
         request_headers = {{ X-Request-Id = \"{{request_id}}\" }}\n\
         cache = {{ stale_while_revalidate = \"10s\" }}\n\
         log = {{ access = \"/tmp/json\", format = \"json\" }}\n"
    );
    in_memory(&site, async |world| {
        let _application = Application::start(world, |request, _| {
            let control = if request.start.contains("private") { "private" } else { "max-age=10" };
            reply(&format!("Cache-Control: {control}\r\nETag: \"a\"\r\n"), "x")
        });
        let ask = async |target: &str| {
            let request =
                format!("GET {target} HTTP/1.1\r\nHost: h\r\nX-Request-Id: one\"two\r\n\r\n");
            world.ask(&request).await;
            world.gateway.numbered_lines().pop().unwrap()
        };
        assert_eq!(ask("/fixed").await, (0, "- - -".to_owned()));
        for (target, waits, cache, upstream) in [
            ("/", 0, "miss", true),
            ("/", 5, "hit", false),
            ("/", 10, "stale", false),
            ("/", 25, "miss", true),
            ("/private", 0, "miss", true),
            ("/private", 0, "pass", true),
        ] {
            tokio::time::sleep(Duration::from_secs(waits)).await;
            let (number, line) = ask(target).await;
            assert_eq!(number, 1, "{line}");
            assert!(line.contains(&format!("\"cache\":\"{cache}\"")), "{line}");
            assert_eq!(line.contains("\"upstream\":\"10.0.0.1:3000\""), upstream, "{line}");
            assert!(line.contains("\"request_id\":\"") == upstream || !upstream, "{line}");
            // 2026-11-25T12:00:00+00:00
            let time = line.strip_prefix("{\"time\":\"").unwrap().split('"').next().unwrap();
            assert!(time.len() == 25 && time.as_bytes()[10] == b'T', "{line}");
        }
    });
}

#[test]
fn a_refused_request_is_logged_without_values_of_an_earlier_one() {
    let site = "[log]\naccess = \"stdout\"\n\
                format = \"%h [%u] [%U] %{rest}x %{prefix}x %{bytes_in}x %>s\"\n\
                [[site]]\nlisten = \"127.0.0.1:80\"\ntrusted_proxies = \"192.0.2.7\"\n\
                [[site.route]]\npath = \"/app/*\"\nrespond = \"x\"\n\
                [[site.route]]\nrespond = \"x\"\n";
    in_memory(site, async |world| {
        let first = "GET /app/visitor HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 203.0.113.5\r\n\r\n";
        let contradiction = "Forwarded: for=192.0.2.1\r\nX-Forwarded-For: 192.0.2.2";
        for (second, rest, status) in [
            ("GET / HTTP/1.1\r\n broken\r\n\r\n", "/", 400),
            ("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "*", 200),
            (&*format!("GET / HTTP/1.1\r\nHost: h\r\n{contradiction}\r\n\r\n"), "/", 400),
        ] {
            let mut client = world.client();
            client.send(first).await;
            assert_eq!(client.reply(first).await.status(), 200);
            let line = format!("203.0.113.5 [-] [/app/visitor] visitor /app {} 200", first.len());
            assert_eq!(world.gateway.access_lines(), [line]);
            client.send(second).await;
            assert_eq!(client.reply("GET").await.status(), status, "{second}");
            let line = format!("192.0.2.7 [-] [] {rest} - {} {status}", second.len());
            assert_eq!(world.gateway.access_lines(), [line], "{second}");
        }
    });
}
