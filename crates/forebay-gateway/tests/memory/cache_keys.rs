//! Keys and variants of stored replies: no request gets the reply to another one.

use crate::application::{Application, reply};
use crate::caching::{get, numbered, route};
use crate::world::in_memory;

#[test]
fn requests_that_an_application_may_answer_differently_share_no_variant() {
    in_memory(&route("true"), async |world| {
        let application = Application::start(world, |request, number| {
            let name = request.start.split(['/', ' ']).nth(2).unwrap();
            let fields = format!("Cache-Control: max-age=60\r\nVary: {name}\r\n");
            reply(&fields, &number.to_string())
        });
        for (name, one, other, is_same) in [
            ("X-A", "X-A: 1\r\n", "X-A: 2\r\n", false),
            ("X-A,b", "X-A: 1\r\n", "X-A: 1\r\nB: 1\r\n", false),
            ("X-A", "X-A: 3\r\n", "", false),
            ("X-A", "X-A: 4, 5\r\n", "X-A: 4\r\nX-A: 5\r\n", false),
            ("X-A", "X-A: 5, 6\r\n", "X-A: 5,6\r\n", false),
            // The application does not get the second field.
            ("X-A", "X-A: 7\r\n", "X-A: 7\r\nX_A: 8\r\n", true),
            ("X-A", "X-A: 9\r\n", "x-a: 9\r\n", true),
            ("X-A", "X-A:\r\n", "Y: 1\r\n", false),
            (
                "Accept-Encoding",
                "Accept-Encoding: gzip, br\r\n",
                "Accept-Encoding: br;q=1,GZIP,identity;q=0.5\r\n",
                true,
            ),
            // An application may search the field for a word.
            (
                "Accept-Encoding",
                "Accept-Encoding: zstd\r\n",
                "Accept-Encoding: zstd, gzip;q=0\r\n",
                false,
            ),
            (
                "Accept-Encoding",
                "Accept-Encoding: deflate\r\n",
                "Accept-Encoding: deflate, xbr\r\n",
                false,
            ),
            ("Accept-Encoding", "Accept-Encoding: br\r\n", "Accept-Encoding: br;x=gzip\r\n", false),
            (
                "Accept-Encoding",
                "Accept-Encoding: deflate\r\nAccept-Encoding: br\r\n",
                "Accept-Encoding: br, deflate\r\n",
                false,
            ),
            (
                "Accept-Encoding",
                "Accept-Encoding: gzip\r\n",
                "Accept-Encoding: gzip;q=0\r\n",
                false,
            ),
            (
                "Accept-Language",
                "Accept-Language: de, en\r\n",
                "Accept-Language: en, de\r\n",
                false,
            ),
            (
                "Accept-Encoding",
                "Accept-Encoding: *\r\n",
                "Accept-Encoding: gzip;q=0, *\r\n",
                false,
            ),
            ("Accept-Language", "Accept-Language: de\r\n", "Accept-Language: en\r\n", false),
        ] {
            let target = format!("/{name}");
            let first = get(world, &target, one).await.text().to_owned();
            let second = get(world, &target, other).await.text().to_owned();
            assert_eq!(first == second, is_same, "{one} {other}");
            assert_eq!(get(world, &target, one).await.text(), first, "both stay");
        }
        assert!(application.asked() < 38, "stored replies answer");
        // If a client sends ever new values, the variants replace each other.
        for number in 0..100 {
            get(world, "/X-A", &format!("X-A: n{number}\r\n")).await;
        }
        application.asked();
        get(world, "/X-A", "X-A: n99\r\n").await;
        assert_eq!(application.asked(), 0);
        get(world, "/X-A", "X-A: n0\r\n").await;
        assert_eq!(application.asked(), 1);
    });
}

#[test]
fn fields_that_connection_hides_from_the_origin_select_no_variant() {
    in_memory(&route("true"), async |world| {
        let application = Application::start(world, |request, _| {
            let seen = request.field("x-a").unwrap_or("nothing");
            reply("Cache-Control: max-age=60\r\nVary: X-A\r\n", seen)
        });
        get(world, "/", "X-A: 1\r\nConnection: X-A\r\n").await;
        assert_eq!(get(world, "/", "X-A: 1\r\n").await.text(), "1");
        assert_eq!(application.asked(), 2);
    });
}

#[test]
fn a_key_accepts_no_value_that_an_application_may_read_differently() {
    let key = "{path}{query.page}{cookie.lang}{header.X-Kind}";
    in_memory(&route(&format!("{{ valid = \"1m\", key = \"{key}\" }}")), async |world| {
        let application = Application::start(world, |_, number| reply("", &number.to_string()));
        for (query, fields) in [
            ("?page=1&page=9", ""),
            ("?page=9&page=1", ""),
            ("?page=1&page[]=9", ""),
            ("?page=1&page%5B%5d=9", ""),
            ("?page=1&%70age=9", ""),
            ("?page=1&+page=9", ""),
            ("?page=1&page%00=9", ""),
            ("?page=1&PAGE=9", ""),
            ("?page=1;page=9", ""),
            ("?a=b;page=9&page=1", ""),
            ("?page[x]=9", ""),
            ("?page=1", "Cookie: lang=de; lang=en\r\n"),
            ("?page=1", "Cookie: lang=de\r\nCookie: lang=en\r\n"),
            ("?page=1", "Cookie: lang=de; l%61ng=en\r\n"),
            ("?page=1", "Cookie: lang=de,lang=en\r\n"),
            ("?page=1", "Cookie: a=\"; lang=de; b=\"\r\n"),
            ("?page=1", "X-Kind: a\r\nX-Kind: b\r\n"),
        ] {
            for _ in 0..2 {
                application.asked();
                get(world, &format!("/{query}"), fields).await;
                assert_eq!(application.asked(), 1, "{query} {fields}");
            }
        }
        let many: String = (0..1000).map(|number| format!("&a{number}")).collect();
        for (query, is_hit) in [
            ("?page=1", false),
            ("?x=2&page=1", true),
            ("?y=1;z&page=1", true),
            // Applications differ in how they read these.
            ("?page=%31", false),
            ("?page=%00", false),
            ("?page=%2500", false),
            ("", false),
            ("?page=", false),
            ("?other", true),
            ("?page", false),
            (&format!("?{many}&page=1"), false),
        ] {
            application.asked();
            get(world, &format!("/{query}"), "").await;
            assert_eq!(application.asked() == 0, is_hit, "{query}");
        }
    });
}

#[test]
fn a_key_with_the_whole_query_accepts_several_values() {
    let cache = "{ valid = \"1m\", key = \"{uri}{query.page}\" }";
    in_memory(&route(cache), async |world| {
        let application = Application::start(world, |_, number| reply("", &number.to_string()));
        for (query, asked) in [("?page=1&page=2", 1), ("?page=1&page=2", 0), ("?page=1", 1)] {
            application.asked();
            get(world, &format!("/{query}"), "").await;
            assert_eq!(application.asked(), asked, "{query}");
        }
    });
}

#[test]
fn no_two_targets_share_a_key() {
    // The route, and targets that differ after one decoding or in the text that backends get.
    let regex = "path_regex = '^/(?<name>.*)$'\n";
    for (start, key, targets) in [
        (regex, "{name}", ["/%01", "/%2501", "/%252501"]),
        (regex, "{name}", ["/%2541", "/%41", "/%252541"]),
        ("", "{uri}", ["/a?\"", "/a?%22", "/a?%2522"]),
        ("", "{path}?{query}", ["/a|", "/a%7C", "/a%7c"]),
        ("", "{rest}", ["/a^", "/a%5E", "/a%255E"]),
    ] {
        let site = format!(
            "[[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\n{start}\
             proxy = \"http://10.0.0.1:3000\"\ncache = {{ key = \"{key}\" }}\n"
        );
        in_memory(&site, async |world| {
            let application = Application::start(world, numbered("max-age=60"));
            for (number, target) in targets.iter().enumerate() {
                let expected = (number + 1).to_string();
                assert_eq!(get(world, target, "").await.text(), expected, "{key} {target}");
                assert_eq!(get(world, target, "").await.text(), expected, "{key} {target}");
            }
            assert_eq!(application.asked(), targets.len());
        });
    }
}
