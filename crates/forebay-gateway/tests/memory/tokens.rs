//! `jwt`: a signed token permits the request, and nobody gets around it.

use jsonwebtoken::{EncodingKey, Header, encode, get_current_timestamp};
use serde_json::json;

use crate::application::{Application, reply};
use crate::http2_client::Http2Client;
use crate::world::{Message, World, in_memory};

const SECRET: &str = "a secret of the tests, 32 bytes or more";

/// Returns a token for `user` with the role `role`, which expires `seconds` from now.
fn token(user: &str, role: &str, seconds: i64) -> String {
    let exp = get_current_timestamp().checked_add_signed(seconds).unwrap();
    let claims = json!({ "sub": user, "role": role, "exp": exp });
    encode(&Header::default(), &claims, &EncodingKey::from_secret(SECRET.as_bytes())).unwrap()
}

fn bearer(user: &str, role: &str) -> String {
    format!("Authorization: Bearer {}\r\n", token(user, role, 3600))
}

fn routes(more: &str) -> String {
    format!(
        "[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n[site.route.jwt]\nsecret = \"{SECRET}\"\n\
         copy = {{ \"X-User\" = \"sub\" }}\nuser = \"sub\"\nrequire = {{ role = \"admin\" }}\n{more}"
    )
}

fn start_application(world: &World) -> Application {
    Application::start(world, |_, _| reply("", "page"))
}

/// Returns all fields that an application may read as `X-User`.
fn users(application: &Application, at: usize) -> Vec<String> {
    let passed = &application.seen.borrow()[at];
    let values = ["x-user", "x_user"].map(|name| passed.values(name));
    values.concat().into_iter().map(str::to_owned).collect()
}

async fn get(world: &World, target: &str, fields: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await
}

#[test]
fn a_valid_token_lets_the_request_pass_with_its_claims() {
    let log =
        "[log]\naccess = \"stdout\"\nformat = \"%u %>s\"\n[[site]]\nlisten = \"127.0.0.1:80\"\n";
    in_memory(&format!("{log}{}", routes("")), async |world| {
        let application = start_application(world);
        let fields = "X-User: root\r\nx_user: root\r\nConnection: X-User\r\n";
        let fields = format!("{fields}{}", bearer("ann", "admin"));
        assert_eq!(get(world, "/", &fields).await.text(), "page");
        assert_eq!(users(&application, 0), ["ann"]);
        let mut client = Http2Client::connect(world).await;
        let authorization = format!("Bearer {}", token("bob", "admin", 3600));
        let fields = [("authorization", &*authorization), ("x-user", "root"), ("x_user", "root")];
        let asked = client.ask("GET", "/", &fields, true);
        assert_eq!(client.reply(asked).await.text(), "page");
        assert_eq!(users(&application, 1), ["bob"]);
    });
}

#[test]
fn a_missing_or_invalid_token_gets_401() {
    in_memory(&routes(""), async |world| {
        let application = start_application(world);
        let expired = format!("Authorization: Bearer {}\r\n", token("ann", "admin", -100));
        let twice = bearer("ann", "admin").repeat(2);
        for (fields, why) in [
            ("", "a token is needed"),
            (&*expired, "the token has expired"),
            (&*twice, "there are several tokens"),
            ("Authorization: Bearer x\r\n", "this is not a token"),
            ("Authorization: Basic bWU6cDpzcyB3\r\n", "a token is needed"),
        ] {
            let refused = get(world, "/", fields).await;
            assert_eq!(refused.status(), 401, "{fields}");
            let challenge = format!("Bearer error=\"invalid_token\", error_description=\"{why}\"");
            assert_eq!(refused.values("www-authenticate"), [challenge], "{fields}");
        }
        let refused = get(world, "/", &bearer("ann", "user")).await;
        assert_eq!(refused.status(), 403);
        let challenge = refused.field("www-authenticate");
        assert_eq!(challenge, Some("Bearer error=\"insufficient_scope\""));
        assert_eq!(application.asked(), 0);
    });
}

#[test]
fn a_trailer_cannot_replace_a_claim() {
    let more = "[site.route.request_headers]\nX-Other = \"1\"\n";
    in_memory(&routes(more), async |world| {
        let application = start_application(world);
        let head = format!("POST / HTTP/1.1\r\nHost: h\r\n{}", bearer("ann", "admin"));
        let body = "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-User: root\r\n\r\n";
        assert_eq!(world.ask(&format!("{head}{body}")).await.status(), 200);
        let passed = &application.seen.borrow()[0];
        assert_eq!(passed.values("x-user"), ["ann"]);
        assert!(!String::from_utf8_lossy(&passed.body).contains("root"));
    });
}

#[test]
fn a_token_is_one_rule_of_several() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, "me:$apr1$12345678$my0OIRja9KzJPSFy62uTY1\n").unwrap();
    let password = format!("basic_auth = {{ file = \"{}\" }}\n", users.display());
    let right = "Authorization: Basic bWU6cDpzcyB3\r\n";
    let jwt = |more: &str| {
        format!("jwt = {{ secret = \"{SECRET}\", copy = {{ \"X-User\" = \"sub\" }}{more} }}\n")
    };
    let route = |rules: &str| format!("[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n{rules}");
    let any = route(&format!("satisfy = \"any\"\n{password}{}", jwt("")));
    in_memory(&any, async |world| {
        let application = start_application(world);
        let refused = get(world, "/", "").await;
        let challenges = refused.values("www-authenticate");
        assert_eq!((refused.status(), challenges.len()), (401, 2), "{challenges:?}");
        assert_eq!(get(world, "/", &bearer("ann", "user")).await.status(), 200);
        assert_eq!(get(world, "/", &format!("X-User: root\r\n{right}")).await.status(), 200);
        let users: Vec<_> =
            application.seen.borrow().iter().map(|r| r.values("x-user").len()).collect();
        assert_eq!(users, [1, 0], "a password sets no field, and neither does the client");
    });
    let by_address = route(&format!("satisfy = \"any\"\nallow = \"192.0.2.0/24\"\n{}", jwt("")));
    in_memory(&by_address, async |world| {
        let application = start_application(world);
        assert_eq!(get(world, "/", "X-User: root\r\n").await.status(), 200);
        assert_eq!(application.seen.borrow()[0].field("x-user"), None);
    });
    let both = route(&format!("{password}{}", jwt(", cookie = \"t\"")));
    in_memory(&both, async |world| {
        let _application = start_application(world);
        let cookie = format!("Cookie: t={}\r\n", token("ann", "user", 3600));
        for (fields, status) in [
            (String::new(), 401),
            (cookie.clone(), 401),
            (right.to_owned(), 401),
            (format!("{right}{cookie}"), 200),
        ] {
            assert_eq!(get(world, "/", &fields).await.status(), status, "{fields}");
        }
    });
}

#[test]
fn a_token_is_needed_for_every_path_to_the_resource() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("index.html"), "secret").unwrap();
    let rule = format!(
        "[[site.route]]\npath = \"/index.html\"\nfiles = \"{0}\"\njwt = {{ secret = \"{SECRET}\" }}\n[[site.route]]\nfiles = \"{0}\"\n",
        folder.path().display()
    );
    in_memory(&rule, async |world| {
        for target in ["/", "/index.html", "/./index.html", "//index.html", "/%69ndex.html"] {
            assert_eq!(get(world, target, "").await.status(), 401, "{target}");
            let fields = bearer("ann", "user");
            assert_eq!(get(world, target, &fields).await.text(), "secret", "{target}");
        }
    });
}

#[test]
fn replies_for_a_token_are_not_stored_for_others() {
    let routes = routes("[site.route.cache]\nvalid = \"1h\"\n");
    let routes = routes.replace("user = \"sub\"", "cookie = \"t\"");
    in_memory(&routes, async |world| {
        let application = start_application(world);
        for _ in 0..2 {
            let cookie = format!("Cookie: t={}\r\n", token("ann", "admin", 3600));
            assert_eq!(get(world, "/", &cookie).await.status(), 200);
        }
        assert_eq!(application.asked(), 2);
        assert_eq!(get(world, "/", "").await.status(), 401);
    });
}
