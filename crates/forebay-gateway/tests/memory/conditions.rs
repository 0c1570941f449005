//! `when` and `path_regex`: the routes that requests reach.

use crate::http2_client::Http2Client;
use crate::world::{World, in_memory};

async fn asked(world: &World, request: &str) -> String {
    world.ask(request).await.text().to_owned()
}

fn with(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")
}

/// A route for each condition, and one for all other requests.
fn routes(conditions: &[(&str, &str)]) -> String {
    let one = |(name, when): &(&str, &str)| {
        format!("[[site.route]]\npath = \"/{name}\"\nwhen = {when}\nrespond = \"yes\"\n")
    };
    let all: String = conditions.iter().map(one).collect();
    format!("{all}[[site.route]]\nrespond = \"no\"\n")
}

#[test]
fn a_request_meets_all_conditions_or_goes_on() {
    let site = routes(&[
        ("method", "{ method = [\"GET\", \"PUT\"] }"),
        ("header", "{ header.X-Beta = \"1\" }"),
        ("list", "{ header.x-beta = [\"1\", \"~^2\"] }"),
        ("absent", "{ header.X-Beta = false }"),
        ("cookie", "{ cookie.beta = \"1\" }"),
        ("query", "{ query.v = \"a b\" }"),
        ("present", "{ query.v = true }"),
        ("client", "{ client = [\"192.0.2.0/24\"] }"),
        ("scheme", "{ scheme = \"https\" }"),
        ("certificate", "{ client_certificate = true }"),
        ("not", "{ client = \"192.0.2.0/24\", not = { client = \"192.0.2.7\" } }"),
        ("both", "{ header.X-Beta = \"1\", cookie.beta = \"1\" }"),
        ("host", "{ header.Host = \"h\" }"),
    ]);
    in_memory(&site, async |world| {
        for (target, fields, answer) in [
            ("/method", "", "yes"),
            ("/header", "X-Beta: 1\r\n", "yes"),
            ("/header", "x-beta: 2\r\nX-BETA: 1\r\n", "yes"),
            ("/header", "X-Beta: 11\r\n", "no"),
            ("/header", "X_Beta: 1\r\n", "no"),
            ("/header", "", "no"),
            ("/list", "X-Beta: 23\r\n", "yes"),
            ("/list", "X-Beta: 12\r\n", "no"),
            ("/absent", "", "yes"),
            ("/absent", "X-Beta:\r\n", "no"),
            ("/cookie", "Cookie: a=b; beta=1\r\n", "yes"),
            ("/cookie", "Cookie: a=b; xbeta=1; beta=2\r\n", "no"),
            ("/query?v=a+b", "", "yes"),
            ("/query?x&%76=a%20b", "", "yes"),
            ("/query?v=a", "", "no"),
            ("/present?v", "", "yes"),
            ("/present?vv", "", "no"),
            ("/client", "", "yes"),
            ("/scheme", "", "no"),
            ("/certificate", "", "no"),
            ("/not", "", "no"),
            ("/both", "X-Beta: 1\r\nCookie: beta=1\r\n", "yes"),
            ("/both", "X-Beta: 1\r\n", "no"),
            ("/host", "", "yes"),
        ] {
            assert_eq!(asked(world, &with(target, fields)).await, answer, "{target} {fields}");
        }
        assert_eq!(asked(world, "POST /method HTTP/1.1\r\nHost: h\r\n\r\n").await, "no");
        let head = world.ask("HEAD /method HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert_eq!(head.field("content-length"), Some("3"));
        let mut other = world.client_from("192.0.2.8:1");
        other.send(with("/not", "")).await;
        assert_eq!(other.reply("GET").await.text(), "yes");
        let mut client = Http2Client::connect(world).await;
        let fields = [("x-beta", "1"), ("cookie", "a=b"), ("cookie", "beta=1")];
        let stream = client.ask("GET", "/both", &fields, true);
        assert_eq!(client.reply(stream).await.text(), "yes");
    });
}

/// Spellings of `page=2` that some applications read and others do not.
const SPELLINGS: [&str; 9] = [
    "Page=2",
    "page[]=2",
    "page[x]=2",
    "%2570age=2",
    "+page=2",
    "page%00=2",
    "page=1&page=2",
    "page=2&page=1",
    "a;page=2",
];

#[test]
fn no_spelling_of_a_parameter_avoids_a_rule() {
    let rule = |path: &str, when: &str, keys: &str| {
        format!("[[site.route]]\npath = \"/{path}\"\nwhen = {when}\n{keys}\n")
    };
    let refused = "respond = { status = 403 }";
    let site = [
        rule("value", "{ query.page = \"2\" }", refused),
        rule("present", "{ query.page = true }", refused),
        rule("gate", "{ query.page = \"~2\" }", "allow = [\"10.0.0.0/8\"]\nrespond = \"in\""),
        rule("not", "{ not = { query.page = \"1\" } }", refused),
        rule("not-absent", "{ not = { query.page = false } }", refused),
        "[[site.route]]\nrespond = \"open\"\n".into(),
    ];
    in_memory(&site.concat(), async |world| {
        for path in ["value", "present", "gate", "not", "not-absent"] {
            for query in SPELLINGS.into_iter().chain(["page=2", "p%61ge=%32"]) {
                let reply = world.ask(&with(&format!("/{path}?{query}"), "")).await;
                // The gate may admit a request, so no gate is asked if the readings differ.
                let is_doubtful = path == "gate" && SPELLINGS.contains(&query);
                let status = if is_doubtful { 404 } else { 403 };
                assert_eq!(reply.status(), status, "{path} {query}");
            }
            let other = if path == "not" { "page=1" } else { "pages=2&x=page" };
            assert_eq!(
                asked(world, &with(&format!("/{path}?{other}"), "")).await,
                "open",
                "{path}"
            );
        }
    });
}

#[test]
fn no_spelling_of_a_parameter_leads_to_a_route_that_it_may_not_mean() {
    let site = routes(&[
        ("value", "{ query.page = \"2\" }"),
        ("absent", "{ query.page = false }"),
        ("not", "{ not = { query.page = \"2\" } }"),
    ]);
    in_memory(&site, async |world| {
        for query in SPELLINGS {
            for path in ["value", "absent", "not"] {
                let answer = asked(world, &with(&format!("/{path}?{query}"), "")).await;
                assert_eq!(answer, "no", "{path} {query}");
            }
        }
        for (target, answer) in [
            ("/value?page=2", "yes"),
            ("/value?x&p%61ge=%32", "yes"),
            ("/value?page=2&page=2", "yes"),
            ("/absent?pages=2", "yes"),
            ("/absent", "yes"),
            ("/not?page=1", "yes"),
            ("/not", "yes"),
            ("/not?page=2", "no"),
        ] {
            assert_eq!(asked(world, &with(target, "")).await, answer, "{target}");
        }
    });
}

#[test]
fn no_spelling_of_a_parameter_selects_the_weaker_of_two_rules() {
    for weak in [
        "allow_methods = \"GET\"",
        "rate_limit = { rate = \"1000/s\" }",
        "allow = \"192.0.2.0/24\"",
    ] {
        let site = format!(
            "[[site.route]]\nwhen = {{ query.view = \"public\" }}\n{weak}\nrespond = \"public\"\n\
             [[site.route]]\nallow = [\"10.0.0.0/8\"]\nrespond = \"private\"\n"
        );
        in_memory(&site, async |world| {
            for (query, status) in [
                ("view=public", 200),
                ("x=1&view=public", 200),
                ("view=private", 403),
                ("", 403),
                ("View=public&view=private", 404),
                ("view=public&view=private", 404),
                ("view=private&view=public", 404),
                ("view[]=public", 404),
            ] {
                let reply = world.ask(&with(&format!("/?{query}"), "")).await;
                assert_eq!(reply.status(), status, "{weak} {query}");
            }
        });
    }
}

/// Cookie lines that some applications read as `user_role=admin` and others do not.
const COOKIES: [&str; 13] = [
    "user.role=admin",
    "user role=admin",
    "user[role=admin",
    "User_Role=admin",
    "user%5frole=admin",
    "user_role[]=admin",
    "user_role=%61dmin",
    "user_role=\"admin\"",
    "user_role=admin; user_role=guest",
    "user_role=guest; user.role=admin",
    "a=\"b; user_role=admin; c=\"",
    "a=b,user_role=admin",
    "a=b\r\nCookie: user_role=admin",
];

#[test]
fn no_spelling_of_a_cookie_avoids_a_rule() {
    let rule = |path: &str, when: &str, keys: &str| {
        format!("[[site.route]]\npath = \"/{path}\"\nwhen = {when}\n{keys}\n")
    };
    let refused = "respond = { status = 403 }";
    let site = [
        rule("value", "{ cookie.user_role = \"admin\" }", refused),
        rule("present", "{ cookie.user_role = true }", refused),
        rule("gate", "{ cookie.user_role = \"~^admin\" }", "deny = \"all\"\nrespond = \"in\""),
        rule("not", "{ not = { cookie.user_role = \"guest\" } }", refused),
        "[[site.route]]\nrespond = \"open\"\n".into(),
    ];
    in_memory(&site.concat(), async |world| {
        for path in ["value", "present", "gate", "not"] {
            for cookies in COOKIES.into_iter().chain(["user_role=admin", "a=b; user_role=admin"]) {
                let fields = format!("Cookie: {cookies}\r\n");
                let status = world.ask(&with(&format!("/{path}"), &fields)).await.status();
                let is_doubtful = path == "gate" && COOKIES.contains(&cookies);
                assert_eq!(status, if is_doubtful { 404 } else { 403 }, "{path} {cookies}");
            }
            let other =
                if path == "not" { "user_role=guest" } else { "user-role=admin; x=user_role" };
            let request = with(&format!("/{path}"), &format!("Cookie: {other}\r\n"));
            assert_eq!(asked(world, &request).await, "open", "{path}");
        }
    });
}

#[test]
fn no_spelling_of_a_cookie_leads_to_a_route_that_it_may_not_mean() {
    let site = routes(&[
        ("value", "{ cookie.user_role = \"admin\" }"),
        ("absent", "{ cookie.user_role = false }"),
        ("not", "{ not = { cookie.user_role = \"admin\" } }"),
    ]);
    in_memory(&site, async |world| {
        for cookies in COOKIES {
            for path in ["value", "absent", "not"] {
                let request = with(&format!("/{path}"), &format!("Cookie: {cookies}\r\n"));
                assert_eq!(asked(world, &request).await, "no", "{path} {cookies}");
            }
        }
        for (path, cookies, answer) in [
            ("value", "user_role=admin", "yes"),
            ("value", "a=1; user_role=admin; b=\"c d\"", "yes"),
            ("value", "user_role=admin; user_role=admin", "yes"),
            ("absent", "a=user_role,b%25; c=d,e=f", "yes"),
            ("not", "user_role=guest", "yes"),
            ("not", "a=b", "yes"),
            ("not", "user_role=admin", "no"),
        ] {
            let request = with(&format!("/{path}"), &format!("Cookie: {cookies}\r\n"));
            assert_eq!(asked(world, &request).await, answer, "{path} {cookies}");
        }
    });
}

#[test]
fn a_rewritten_query_selects_no_weaker_rule() {
    let site = "[[site.route]]\npath = \"/a\"\nrewrite = \"/b\"\nproxy = \"http://10.0.0.1:3000\"\n\
                [[site.route]]\npath = \"/b\"\nwhen = { query.view = \"public\" }\n\
                allow = \"192.0.2.0/24\"\nrespond = \"public\"\n\
                [[site.route]]\npath = \"/b\"\nallow = [\"10.0.0.0/8\"]\nrespond = \"private\"\n";
    in_memory(site, async |world| {
        // No backend listens.
        for (query, status) in
            [("view=public", 502), ("view=private", 403), ("View=public&view=private", 404)]
        {
            let reply = world.ask(&with(&format!("/a?{query}"), "")).await;
            assert_eq!(reply.status(), status, "{query}");
        }
    });
}

#[test]
fn an_application_may_ignore_the_last_of_many_parameters() {
    let site = [
        routes(&[
            ("value", "{ query.page = \"2\" }"),
            ("present", "{ query.page = true }"),
            ("absent", "{ query.page = false }"),
            ("not-absent", "{ not = { query.page = false } }"),
        ])
        .replace("[[site.route]]\nrespond = \"no\"\n", ""),
        "[[site.route]]\npath = \"/rule\"\nwhen = { query.page = false }\nrespond = { status = 403 }\n\
         [[site.route]]\nrespond = \"no\"\n"
            .into(),
    ];
    in_memory(&site.concat(), async |world| {
        for (path, others, status, answer) in [
            ("value", 99, 200, "yes"),
            ("value", 100, 200, "no"),
            ("present", 99, 200, "yes"),
            ("present", 100, 200, "no"),
            ("not-absent", 99, 200, "yes"),
            ("not-absent", 100, 200, "no"),
            ("absent", 100, 200, "no"),
            ("rule", 99, 200, "no"),
            ("rule", 100, 403, ""),
        ] {
            let target = format!("/{path}?{}page=2", "x=1&".repeat(others));
            let reply = world.ask(&with(&target, "")).await;
            assert_eq!(reply.status(), status, "{path} {others}");
            assert!(reply.text().starts_with(answer), "{path} {others}");
        }
        let many = format!("/absent?{}", "x=1&".repeat(200));
        assert_eq!(asked(world, &with(&many, "")).await, "yes");
    });
}

#[test]
fn groups_of_an_expression_are_placeholders() {
    let site = "[[site.route]]\npath_regex = '^/(?<lang>de|en)/(?<page>[^/]+)(?:/(?<more>.*))?$'\n\
                redirect = \"/{page}?lang={lang}&more={more}\"\n\
                set_headers = { X-Page = \"{page}\" }\n\
                [[site.route]]\npath_regex = '~*\\.jpe?g$'\nrespond = \"picture\"\n\
                [[site.route]]\npath = \"/a/*\"\npath_regex = 'x$'\nrespond = \"both\"\n\
                [[site.route]]\nrespond = \"no\"\n";
    in_memory(site, async |world| {
        for (target, location, page) in [
            ("/de/a%20b", "/a%20b?lang=de&more=", "a%20b"),
            ("/en/x%3Fy/z%26lang=fr", "/x%3Fy?lang=en&more=z%26lang%3Dfr", "x%3Fy"),
            ("/de/%0d%0aX:y", "/%0D%0AX:y?lang=de&more=", "%0D%0AX:y"),
        ] {
            let reply = world.ask(&with(target, "")).await;
            assert_eq!(reply.field("location"), Some(location), "{target}");
            let shown = reply.field("x-page").unwrap();
            assert_eq!(shown.replace(' ', "%20").replace('?', "%3F"), page, "{target}");
        }
        for (target, answer) in [
            ("/A.JPEG", "picture"),
            ("/a.jpg/", "no"),
            ("/a/x", "both"),
            ("/b/x", "no"),
            ("/a/y", "no"),
            ("/fr/x", "no"),
        ] {
            assert_eq!(asked(world, &with(target, "")).await, answer, "{target}");
        }
    });
}

#[test]
fn a_path_that_other_engines_need_hours_for_is_answered() {
    let site = "[[site.route]]\npath_regex = '^/(([a-z])+.)+[A-Z]([a-z])+$'\nrespond = \"yes\"\n\
                [[site.route]]\nrespond = \"no\"\n";
    in_memory(site, async |world| {
        let target = format!("/{}", "a".repeat(6000));
        assert_eq!(asked(world, &with(&target, "")).await, "no");
    });
}

#[test]
fn a_rule_with_conditions_holds_for_other_paths_of_its_resource_when_they_are_met() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("admin.php"), "").unwrap();
    let site = format!(
        "[[site.route]]\npath_regex = '^/admin\\.php$'\nallow = [\"10.0.0.0/8\"]\n\
         when = {{ not = {{ header.X-Skip = \"1\" }} }}\nrespond = \"in\"\n\
         [[site.route]]\nsuffix = \".php\"\n\
         fastcgi = {{ to = \"10.0.0.1:9000\", root = \"{}\" }}\n",
        root.path().display()
    );
    in_memory(&site, async |world| {
        for target in ["/admin.php", "/admin.php/x", "/%61dmin.php/x"] {
            assert_eq!(world.ask(&with(target, "")).await.status(), 403, "{target}");
        }
        // The rule does not apply, and the application is not running.
        assert_eq!(world.ask(&with("/admin.php/x", "X-Skip: 1\r\n")).await.status(), 502);
    });
}

#[test]
fn encoded_slashes_decide_about_no_route_with_conditions() {
    let site = "[[site]]\nlisten = \"127.0.0.1:80\"\nencoded_slashes = \"pass\"\n\
                [[site.route]]\npath_regex = '^/admin/'\nallow = [\"10.0.0.0/8\"]\nrespond = \"in\"\n\
                [[site.route]]\nrespond = \"no\"\n";
    in_memory(site, async |world| {
        assert_eq!(world.ask(&with("/admin/x", "")).await.status(), 403);
        assert_eq!(world.ask(&with("/admin%2fx", "")).await.status(), 404);
        assert_eq!(asked(world, &with("/open%2fx", "")).await, "no");
    });
}

#[test]
fn variables_have_the_values_of_nginx() {
    let site = routes(&[
        ("uri", "{ variable.request_uri = \"~union.*%3c\" }"),
        ("args", "{ variable.args = \"~a%2Bb\" }"),
        ("arg", "{ variable.arg_role = \"user\" }"),
        ("other", "{ not = { variable.arg_role = \"user\" } }"),
        ("field", "{ variable.http_x_role = \"admin, user\" }"),
        ("cookie", "{ variable.cookie_role = \"user\" }"),
        ("empty", "{ variable.http_x_role = \"\" }"),
        ("cookies", "{ variable.http_cookie = \"a=1; b=2\" }"),
    ]);
    in_memory(&site, async |world| {
        for (target, fields, answer) in [
            ("/uri?a=union+select%3c", "", "yes"),
            ("/uri?a=union<", "", "no"),
            ("/args?a%2Bb", "", "yes"),
            ("/args?a+b", "", "no"),
            ("/arg?role=user&role=admin", "", "yes"),
            ("/arg?role=admin&role=user", "", "no"),
            ("/arg?ROLE=user", "", "yes"),
            ("/arg?role=%75ser", "", "no"),
            ("/other?role=admin&role=user", "", "yes"),
            ("/other?ROLE=admin&role=user", "", "yes"),
            ("/other", "", "yes"),
            ("/other?role=user", "", "no"),
            ("/field", "X-Role: admin\r\nx-role: user\r\n", "yes"),
            ("/field", "X-Role: user\r\n", "no"),
            ("/cookie", "Cookie: role=user; role=admin\r\n", "yes"),
            ("/cookie", "Cookie: a=1; Role=admin\r\nCookie: role=user\r\n", "no"),
            ("/empty", "X-Role:\r\n", "yes"),
            // Such a field is removed, as in nginx.
            ("/empty", "X_Role: a\r\n", "yes"),
            ("/cookies", "Cookie: a=1\r\nCookie: b=2\r\n", "yes"),
        ] {
            assert_eq!(asked(world, &with(target, fields)).await, answer, "{target} {fields}");
        }
    });
    for when in
        ["{ variable.uri = \"/a\" }", "{ variable.arg_a = true }", "{ variable.arg_ = \"1\" }"]
    {
        let text = format!("[[site]]\nlisten = \":80\"\n{}", routes(&[("a", when)]));
        assert!(
            forebay_conf::parse(&text, "site.toml", std::path::Path::new("/")).is_err(),
            "{when}"
        );
    }
}
