//! Limits on the number of requests: bursts, keys, spellings, passwords, waiting requests.

use std::time::Duration;

use forebay_net::limit::Limit;
use tokio::time::{Instant, sleep};

use crate::world::in_memory;

const LOGIN: &str = "[[site.route]]\npath = \"/login.php\"\nLIMIT\nrespond = \"in\"\n\
                     [[site.route]]\nrespond = \"other\"\n";

/// Returns routes whose first one has this limit.
fn limited(limit: &str) -> String {
    LOGIN.replace("LIMIT", &format!("rate_limit = {limit}"))
}

fn get(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

#[test]
fn requests_beyond_a_burst_get_429_until_the_rate_admits_them() {
    in_memory(&limited("{ rate = \"10/m\", burst = 2 }"), async |world| {
        let login = get("/login.php", "");
        for status in [200, 200, 200, 429, 429] {
            assert_eq!(world.ask(&login).await.status(), status);
        }
        let refused = world.ask(&login).await;
        assert_eq!(refused.field("retry-after"), Some("6"));
        assert_eq!(refused.field("ratelimit-policy"), Some("\"default\";q=10;w=60"));
        assert_eq!(refused.field("ratelimit"), Some("\"default\";r=0;t=6"));
        assert_eq!(world.gateway.reached(Limit::RateLimit), 3);
        assert_eq!(world.ask(&get("/", "")).await.status(), 200, "another route");
        let mut other = world.client_from("192.0.2.8:4000");
        other.send(&login[..]).await;
        assert_eq!(other.reply(&login).await.status(), 200, "another client");
        sleep(Duration::from_secs(7)).await;
        assert_eq!(world.ask(&login).await.status(), 200);
        assert_eq!(world.ask(&login).await.status(), 429);
    });
}

#[test]
fn the_default_burst_is_the_number_of_the_rate() {
    in_memory(&limited("{ rate = \"5/s\" }"), async |world| {
        let login = get("/login.php", "");
        for status in [200, 200, 200, 200, 200, 429] {
            assert_eq!(world.ask(&login).await.status(), status);
        }
    });
}

#[test]
fn a_key_is_taken_from_the_request_and_an_empty_one_is_not_limited() {
    let limit = "{ rate = \"1/h\", key = \"{header.X-Key}\" }";
    in_memory(&limited(limit), async |world| {
        for (fields, status) in [
            ("X-Key: a\r\n", 200),
            ("X-Key: a\r\n", 429),
            ("X-Key: b\r\n", 200),
            ("", 200),
            ("", 200),
        ] {
            let status_now = world.ask(&get("/login.php", fields)).await.status();
            assert_eq!(status_now, status, "{fields:?}");
        }
    });
}

#[test]
fn all_spellings_of_a_path_in_a_key_count_together() {
    let routes = "[[site.route]]\nrate_limit = { rate = \"1/h\", key = \"{client}{path}\" }\nrespond = \"in\"\n";
    in_memory(routes, async |world| {
        for (path, status) in
            [("/login", 200), ("/%6cogin", 429), ("/log%69n?x", 429), ("/other", 200)]
        {
            assert_eq!(world.ask(&get(path, "")).await.status(), status, "{path}");
        }
    });
}

#[test]
fn several_limits_hold_at_once_and_a_refused_request_counts_for_none() {
    let limits = "[{ rate = \"3/h\" }, { rate = \"1/s\", key = \"{header.X-Key}\" }]";
    in_memory(&limited(limits), async |world| {
        for (key, status) in [("a", 200), ("a", 429), ("a", 429), ("b", 200), ("c", 200)] {
            let request = get("/login.php", &format!("X-Key: {key}\r\n"));
            assert_eq!(world.ask(&request).await.status(), status, "{key}");
        }
        let fourth = world.ask(&get("/login.php", "X-Key: d\r\n")).await;
        assert_eq!((fourth.status(), fourth.field("retry-after")), (429, Some("1200")));
    });
}

#[test]
fn other_spellings_of_a_limited_script_count_too() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("login.php"), "<?php").unwrap();
    let php =
        format!("fastcgi = {{ to = \"10.0.0.1:9000\", root = \"{}\" }}\n", root.path().display());
    let routes = format!(
        "[[site.route]]\npath = \"/login.php\"\nrate_limit = {{ rate = \"2/h\" }}\n{php}\
         [[site.route]]\nsuffix = \".php\"\n{php}"
    );
    in_memory(&routes, async |world| {
        let mut backend = world.backend("10.0.0.1:9000");
        for (path, status) in [
            ("/login.php", 502),
            ("/login.php/x", 502),
            ("/login.php/y", 429),
            ("/%6cogin.php/z", 429),
        ] {
            let request = get(path, "");
            let asking = world.ask(&request);
            let mut asking = std::pin::pin!(asking);
            let reply = loop {
                tokio::select! {
                    reply = &mut asking => break reply,
                    connection = backend.accept() => drop(connection),
                }
            };
            assert_eq!(reply.status(), status, "{path}");
        }
    });
}

#[test]
fn guessed_passwords_are_limited_before_they_are_checked() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("users");
    std::fs::write(&file, "ann:$apr1$x$6wRqOCMdAMVYbNfNlKCsJ/\n").unwrap();
    let limit = format!("{{ rate = \"2/m\" }}\nbasic_auth = {{ file = \"{}\" }}", file.display());
    in_memory(&limited(&limit), async |world| {
        let guess = get("/login.php", "Authorization: Basic YW5uOndyb25n\r\n");
        for status in [401, 401, 429] {
            assert_eq!(world.ask(&guess).await.status(), status);
        }
    });
}

#[test]
fn a_limit_with_the_user_in_its_key_also_counts_requests_without_a_login() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("users");
    std::fs::write(&file, "ann:$apr1$x$6wRqOCMdAMVYbNfNlKCsJ/\n").unwrap();
    for login in ["satisfy = \"any\"\nallow = [\"0.0.0.0/0\"]", "open_methods = [\"GET\"]"] {
        let limit = format!(
            "{{ rate = \"2/m\", key = \"{{client}} {{user}}\" }}\n{login}\n\
             basic_auth = {{ file = \"{}\" }}",
            file.display()
        );
        in_memory(&limited(&limit), async |world| {
            for status in [200, 200, 429] {
                assert_eq!(world.ask(&get("/login.php", "")).await.status(), status, "{login}");
            }
        });
    }
}

#[test]
fn a_burst_with_delay_reaches_the_route_at_the_rate() {
    in_memory(&limited("{ rate = \"2/s\", burst = 2, delay = true }"), async |world| {
        let (login, since) = (get("/login.php", ""), Instant::now());
        let (first, second, third, fourth) = tokio::join!(
            world.ask(&login),
            world.ask(&login),
            world.ask(&login),
            world.ask(&login)
        );
        let mut statuses = [first, second, third, fourth].map(|reply| reply.status());
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 200, 429]);
        let waited = since.elapsed();
        assert!(waited >= Duration::from_millis(990), "{waited:?}");
    });
}

#[test]
fn each_value_that_an_application_may_read_counts() {
    let limit = "{ rate = \"1/h\", key = \"{query.user}{cookie.id}{header.X-Key}\" }";
    in_memory(&limited(limit), async |world| {
        let get = |query: &str, fields: &str| get(&format!("/login.php{query}"), fields);
        for (query, fields) in
            [("?user=victim", ""), ("", "Cookie: id=victim\r\n"), ("", "X-Key: victim2\r\n")]
        {
            world.ask(&get(query, fields)).await;
            assert_eq!(world.ask(&get(query, fields)).await.status(), 429, "{query}{fields}");
        }
        for query in [
            "?user=random&user=victim",
            "?user=victim&user=random",
            "?user[]=victim",
            "?USER=victim",
            "?%75ser=v%69ctim",
            "?x;user=victim",
            "?user=victim;x",
            "?+user=victim",
            "?user=&user=victim",
            "?user%zz=victim",
        ] {
            assert_eq!(world.ask(&get(query, "")).await.status(), 429, "{query}");
        }
        for fields in [
            "Cookie: id=random; id=victim\r\n",
            "Cookie: id=random\r\nCookie: id=victim\r\n",
            "Cookie: id[x]=victim\r\n",
            "Cookie: id=v%69ctim\r\n",
            "Cookie: a=b,id=victim\r\n",
            "X-Key: random\r\nX-Key: victim2\r\n",
        ] {
            assert_eq!(world.ask(&get("", fields)).await.status(), 429, "{fields}");
        }
        // A refused request counts for no value, and a request without any value is not limited.
        assert_eq!(world.ask(&get("?user=random", "")).await.status(), 200);
        for query in ["", "", "?user=", "?x"] {
            assert_eq!(world.ask(&get(query, "")).await.status(), 200, "{query}");
        }
        // Requests with very many values count together.
        let many = |from: u32| {
            let pairs = (from..from + 20).map(|number| format!("user=m{number}&"));
            get(&format!("?{}user=victim", pairs.collect::<String>()), "")
        };
        assert_eq!(world.ask(&many(0)).await.status(), 200);
        assert_eq!(world.ask(&many(100)).await.status(), 429);
    });
}

#[test]
fn a_table_in_a_key_sees_each_value() {
    let routes = "[map.kind]\nfrom = \"{query.plan}\"\ngold = \"\"\n\
                  default = \"{client}\"\n[[site]]\nlisten = \"127.0.0.1:80\"\n\
                  [[site.route]]\nrate_limit = { rate = \"1/h\", key = \"{map.kind}\" }\n\
                  respond = \"in\"\n";
    in_memory(routes, async |world| {
        for (query, status) in
            [("?plan=gold", 200), ("?plan=free", 200), ("?plan=gold&plan=free", 429)]
        {
            assert_eq!(world.ask(&get(&format!("/{query}"), "")).await.status(), status, "{query}");
        }
    });
}

#[test]
fn many_values_do_not_hide_one_that_a_table_limits() {
    let routes = "[map.limit]\nfrom = \"{query.do}\"\nlogin = \"{client}\"\ndefault = \"\"\n\
                  [[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\n\
                  rate_limit = { rate = \"1/h\", key = \"{map.limit}\" }\nrespond = \"in\"\n";
    in_memory(routes, async |world| {
        let others: String = (0..9).map(|n| format!("do={n}&")).collect();
        for (query, status) in [
            ("?do=1".to_owned(), 200),
            ("?do=1".to_owned(), 200),
            (format!("?{others}do=login"), 200),
            (format!("?{others}do=login"), 429),
        ] {
            assert_eq!(world.ask(&get(&format!("/{query}"), "")).await.status(), status, "{query}");
        }
    });
}

#[test]
fn many_values_of_one_client_use_up_no_other_clients_limit() {
    // The values of the table, and the status of another client after the first one is refused.
    for (values, key, status) in [
        ("login = \"{client}\"\ndefault = \"\"", "{map.limit}", 200),
        ("login = \"a {client}\"\ndefault = \"{client}\"", "{map.limit}", 200),
        ("default = \"{client}\"", "x {map.limit}", 200),
        // These keys are the same for several clients, so their requests count together.
        ("login = \"all\"\ndefault = \"{client}\"", "{map.limit}", 429),
        ("login = \"{client}\"\ndefault = \"\"", "{query.do} {map.limit}", 429),
    ] {
        let routes = format!(
            "[map.limit]\nfrom = \"{{query.do}}\"\n{values}\n[[site]]\nlisten = \"127.0.0.1:80\"\n\
             [[site.route]]\nrate_limit = {{ rate = \"1/h\", key = \"{key}\" }}\nrespond = \"in\"\n"
        );
        in_memory(&routes, async |world| {
            let others: String = (0..9).map(|n| format!("do={n}&")).collect();
            let request = get(&format!("/?{others}do=login"), "");
            assert_eq!(world.ask(&request).await.status(), 200, "{values}");
            assert_eq!(world.ask(&request).await.status(), 429, "{values}");
            let mut other = world.client_from("192.0.2.8:4000");
            other.send(&request).await;
            assert_eq!(other.reply(&request).await.status(), status, "{values}");
        });
    }
}

#[test]
fn all_spellings_of_a_host_count_together() {
    let limit = "rate_limit = { rate = \"1/h\", key = \"{host}\" }\nrespond = \"in\"\n";
    let text = format!(
        "[[site]]\nlisten = \"127.0.0.1:80\"\nhosts = [\"a.test\", \"b.test\"]\n[[site.route]]\n{limit}"
    );
    in_memory(&text, async |world| {
        for (host, status) in [
            ("Host: a.test\r\n", 200),
            ("Host: A.test\r\n", 429),
            ("Host: a.test:80\r\n", 429),
            ("Host: a.test.\r\n", 429),
            ("Host: a.TEST.:8080\r\n", 429),
            ("Host: b.test\r\n", 200),
            // The first site of a listener answers for unknown hosts. They share one counter.
            ("Host: c.test\r\n", 200),
            ("Host: d.test\r\n", 429),
            ("Host: a~b\r\n", 429),
        ] {
            let request = format!("GET / HTTP/1.1\r\n{host}\r\n");
            assert_eq!(world.ask(&request).await.status(), status, "{host:?}");
        }
        let old = "GET / HTTP/1.0\r\n\r\n";
        assert_eq!(world.ask(old).await.status(), 429, "without a host");
        let absolute = "GET http://A.TEST/ HTTP/1.1\r\nHost: a.test\r\n\r\n";
        assert_eq!(world.ask(absolute).await.status(), 429);
    });
}
