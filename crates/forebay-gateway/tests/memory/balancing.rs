//! Several HTTP backends of one route: selection by weight, cookie and load.

use std::time::Duration;

use tokio::time::sleep;

use crate::world::{Backend, Message, Peer, World, in_memory};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn proxied(to: &str, keys: &str) -> String {
    let url = |name: &str| format!("http://10.0.0.{name}:3000");
    let to = to.replace("{a}", &url("1")).replace("{b}", &url("2")).replace("{c}", &url("3"));
    format!("[[site.route]]\npath = \"/*\"\n[site.route.proxy]\nto = [{to}]\n{keys}\n")
}

/// Starts the backend with this number, which answers each request with `name` and closes.
fn named(world: &World, number: u8, name: &'static str) -> tokio::task::JoinHandle<()> {
    let backend = world.backend(&format!("10.0.0.{number}:3000"));
    tokio::task::spawn_local(answer_all(backend, name))
}

async fn answer_all(mut backend: Backend, name: &'static str) {
    loop {
        let mut connection = backend.accept().await;
        tokio::task::spawn_local(async move {
            if connection.more().await.unwrap_or(false) {
                connection.request().await;
                send_name(&mut connection, name).await;
            }
        });
    }
}

async fn send_name(connection: &mut Peer, name: &str) {
    let length = name.len();
    let head = format!("HTTP/1.1 200 X\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    connection.send(head + name).await;
}

async fn names(world: &World, count: usize) -> String {
    let mut names = String::new();
    for _ in 0..count {
        names.push_str(world.ask(GET).await.text());
    }
    names
}

async fn ask(world: &World, target: &str, fields: &str) -> (String, Option<String>) {
    let reply = world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await;
    assert_eq!(reply.status(), 200);
    (reply.text().to_owned(), reply.field("set-cookie").map(str::to_owned))
}

#[test]
fn the_same_key_goes_to_the_same_backend_until_it_fails() {
    let keys = "balance = \"hash\"\nhash_key = \"{query.user}\"";
    in_memory(&proxied("\"{a}\", \"{b}\", \"{c}\"", keys), async |world| {
        let served = [named(world, 1, "a"), named(world, 2, "b"), named(world, 3, "c")];
        let mut before = Vec::new();
        for user in 0..30 {
            before.push(ask(world, &format!("/?user={user}"), "").await.0);
            let again = ask(world, &format!("/other?user={user}&x"), "Cookie: a=b\r\n").await.0;
            assert_eq!(again, before[user]);
        }
        for name in ["a", "b", "c"] {
            assert!(before.iter().any(|backend| backend == name), "{name} in {before:?}");
        }
        served[1].abort();
        for (user, backend) in before.iter().enumerate() {
            let now = ask(world, &format!("/?user={user}"), "").await.0;
            assert!(if backend == "b" { now != "b" } else { now == *backend }, "{user}");
        }
    });
}

#[test]
fn backends_take_turns_by_weight_whatever_connection_a_client_is_on() {
    in_memory(&proxied("{ url = \"{a}\", weight = 3 }, \"{b}\"", ""), async |world| {
        let _served = (named(world, 1, "a"), named(world, 2, "b"));
        assert_eq!(names(world, 8).await, "aabaaaba");
        let mut client = world.client();
        let mut kept = String::new();
        for _ in 0..4 {
            client.send(GET).await;
            kept.push_str(client.reply(GET).await.text());
        }
        assert_eq!(kept, "aaba");
    });
}

#[test]
fn a_backend_that_is_gone_costs_no_upload_either_and_one_line_of_the_log() {
    in_memory(&proxied("\"{a}\", \"{b}\"", ""), async |world| {
        let _served = named(world, 2, "b");
        let post = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello";
        for _ in 0..5 {
            assert_eq!(world.ask(post).await.status(), 200);
            assert_eq!(world.ask(GET).await.status(), 200);
        }
        let errors = world.errors();
        let message = "is left out for 10s: cannot connect";
        assert_eq!(errors.iter().filter(|e| e.contains(message)).count(), 1, "{errors:?}");
    });
}

#[test]
fn a_backend_that_makes_no_sense_is_left_out_and_tried_again_by_one_request() {
    in_memory(&proxied("\"{b}\", \"{a}\"", "fail_timeout = \"2s\""), async |world| {
        let _served = named(world, 1, "a");
        let mut flaky = world.backend("10.0.0.2:3000");
        let mut client = world.client();
        client.send(GET).await;
        let (_, connection) = flaky.answer("What is HTTP?\r\n\r\n").await;
        assert_eq!(client.reply(GET).await.status(), 502, "not asked for twice");
        drop(connection);
        assert_eq!(names(world, 3).await, "aaa");
        sleep(Duration::from_secs(3)).await;
        let _served = tokio::task::spawn_local(answer_all(flaky, "b"));
        assert!(names(world, 2).await.contains('b'), "tried by one request");
        let both = names(world, 2).await;
        assert!(both == "ab" || both == "ba", "and back for good: {both}");
    });
}

#[test]
fn a_backup_serves_only_when_all_others_are_down() {
    let backup = "\"{a}\", { url = \"{b}\", backup = true }";
    in_memory(&proxied(backup, ""), async |world| {
        let _served = (named(world, 1, "a"), named(world, 2, "b"));
        assert_eq!(names(world, 4).await, "aaaa");
    });
    in_memory(&proxied(backup, ""), async |world| {
        let _served = named(world, 2, "b");
        assert_eq!(names(world, 4).await, "bbbb");
    });
}

#[test]
fn when_all_are_down_each_is_tried_until_one_is_back() {
    in_memory(&proxied("\"{a}\", \"{b}\"", "fail_timeout = \"1h\""), async |world| {
        assert_eq!(world.ask(GET).await.status(), 502);
        assert_eq!(world.ask(GET).await.status(), 502);
        let _served = named(world, 2, "b");
        assert_eq!(names(world, 1).await, "b", "at once");
    });
}

#[test]
fn so_many_failures_as_max_fails_leave_a_backend_out() {
    in_memory(&proxied("\"{a}\", \"{b}\"", "max_fails = 3"), async |world| {
        let _served = named(world, 2, "b");
        for n in 1..=3 {
            assert!(world.errors().iter().all(|error| !error.contains("left out")), "{n}");
            assert_eq!(names(world, 1).await, "b");
        }
        let errors = world.errors();
        assert_eq!(errors.iter().filter(|e| e.contains("left out")).count(), 1, "{errors:?}");
    });
}

#[test]
fn a_cookie_keeps_a_client_with_its_backend() {
    let to = "{ url = \"{a}\", route = \"one\" }, \"{b}\"";
    in_memory(&proxied(to, "sticky = { cookie = \"srv\" }"), async |world| {
        let _served = (named(world, 1, "a"), named(world, 2, "b"));
        let (name, cookie) = ask(world, "/", "").await;
        assert_eq!(name, "a");
        assert_eq!(cookie.unwrap(), "srv=one; Path=/; HttpOnly; SameSite=Lax");
        for _ in 0..3 {
            let replied = ask(world, "/", "Cookie: x=y; srv=one\r\n").await;
            assert_eq!(replied, ("a".to_owned(), None), "it is not set again");
        }
        let (name, cookie) = ask(world, "/", "").await;
        let cookie = cookie.unwrap();
        assert_eq!(name, "b");
        let cookie = cookie.split(';').next().unwrap();
        assert!(!cookie.contains("10.0"), "{cookie}");
        for _ in 0..3 {
            let fields = format!("Cookie: x=srv\r\nCookie: {cookie}\r\n");
            assert_eq!(ask(world, "/", &fields).await, ("b".to_owned(), None));
        }
        let (_, cookie) = ask(world, "/", "Cookie: srv=nonsense; srvx=one\r\n").await;
        assert!(cookie.is_some(), "a new one in place of one that means nothing");
    });
}

#[test]
fn a_client_whose_backend_is_down_goes_to_another() {
    let to = "{ url = \"{b}\", route = \"gone\" }, { url = \"{a}\", route = \"a\" }";
    in_memory(&proxied(to, "sticky = { cookie = \"srv\" }"), async |world| {
        let _served = named(world, 1, "a");
        for _ in 0..3 {
            let (name, cookie) = ask(world, "/", "Cookie: srv=gone\r\n").await;
            assert_eq!(name, "a");
            assert!(cookie.unwrap().starts_with("srv=a;"));
        }
    });
}

#[test]
fn a_session_ends_in_the_route_of_its_backend() {
    let to = "{ url = \"{a}\", route = \"tomcat1\" }, { url = \"{b}\", route = \"tomcat2\" }";
    let keys = "sticky = { cookie = \"JSESSIONID\", routes = true }";
    in_memory(&proxied(to, keys), async |world| {
        let _served = (named(world, 1, "a"), named(world, 2, "b"));
        for _ in 0..3 {
            let replied = ask(world, "/", "Cookie: JSESSIONID=AB.CD.tomcat2\r\n").await;
            assert_eq!(replied, ("b".to_owned(), None));
            assert_eq!(ask(world, "/x;jsessionid=AB.tomcat1?y=z", "").await.0, "a");
            let stale = "Cookie: JSESSIONID=1.other; JSESSIONID=\"2.tomcat2\"\r\n";
            assert_eq!(ask(world, "/", stale).await.0, "b", "the first that names a backend");
        }
        let mut unknown = String::new();
        for _ in 0..4 {
            unknown.push_str(&ask(world, "/", "Cookie: JSESSIONID=AB\r\n").await.0);
        }
        assert_eq!(unknown, "abab");
    });
}

#[test]
fn a_session_goes_where_its_backend_redirects_until_that_has_recovered() {
    let to = "{ url = \"{a}\", route = \"one\", redirect = \"three\" }, \"{b}\", \
              { url = \"{c}\", route = \"three\", activation = \"disabled\" }";
    let keys = "sticky = { cookie = \"srv\" }\nrecover_time = \"5s\"";
    in_memory(&proxied(to, keys), async |world| {
        let _served = (named(world, 2, "b"), named(world, 3, "c"));
        let visit = async || ask(world, "/", "Cookie: srv=one\r\n").await.0;
        assert_eq!(visit().await, "c", "in the same request");
        let _back = named(world, 1, "a");
        for _ in 0..3 {
            assert_eq!(visit().await, "c", "the other is left alone");
            assert_eq!(names(world, 1).await, "b", "the standby is for sessions");
        }
        let errors = world.errors();
        assert_eq!(errors.iter().filter(|e| e.contains("out for 5s")).count(), 1, "{errors:?}");
        sleep(Duration::from_secs(6)).await;
        assert_eq!(visit().await, "a");
        assert_eq!(visit().await, "a");
    });
}

#[test]
fn the_first_standby_serves_all_when_nobody_else_is_up() {
    let to = "{ url = \"{a}\", redirect = \"three\" }, \"{b}\", \
              { url = \"{c}\", route = \"three\", activation = \"disabled\" }";
    in_memory(&proxied(to, "recover_time = \"1h\""), async |world| {
        let served = named(world, 3, "c");
        assert_eq!(names(world, 3).await, "ccc");
        served.abort();
        assert!(served.await.is_err());
        assert_eq!(world.ask(GET).await.status(), 502, "all were asked");
        let _back = named(world, 1, "a");
        assert_eq!(names(world, 2).await, "aa", "as none was up, all are tried");
    });
}

#[test]
fn the_nearest_backends_that_are_up_are_asked() {
    let to = "{ url = \"{a}\", distance = 2 }, { url = \"{b}\", distance = 1 }, \"{c}\"";
    in_memory(&proxied(to, "recover_time = \"5s\""), async |world| {
        let _far = (named(world, 1, "a"), named(world, 2, "b"));
        assert_eq!(names(world, 4).await, "bbbb", "the nearest is down");
        let _near = named(world, 3, "c");
        assert_eq!(names(world, 2).await, "bb", "and left alone");
        sleep(Duration::from_secs(6)).await;
        assert_eq!(names(world, 4).await, "cccc");
    });
}

/// Starts the backend with this number. It sends each head after `time`, and the body much later.
fn slow(world: &World, number: u8, name: &'static str, time: Duration) {
    let mut backend = world.backend(&format!("10.0.0.{number}:3000"));
    tokio::task::spawn_local(async move {
        loop {
            let mut connection = backend.accept().await;
            tokio::task::spawn_local(async move {
                connection.request().await;
                sleep(time).await;
                connection
                    .send("HTTP/1.1 200 X\r\nConnection: close\r\nContent-Length: 1\r\n\r\n")
                    .await;
                sleep(Duration::from_millis(500)).await;
                connection.send(name).await;
            });
        }
    });
}

#[test]
fn the_backend_with_the_earliest_replies_is_chosen() {
    let keys = "balance = \"least-time\"";
    in_memory(&proxied("\"{a}\", \"{b}\", \"{c}\"", keys), async |world| {
        slow(world, 1, "a", Duration::from_millis(900));
        slow(world, 2, "b", Duration::from_millis(10));
        slow(world, 3, "c", Duration::from_millis(300));
        let mut first: Vec<char> = names(world, 3).await.chars().collect();
        first.sort_unstable();
        assert_eq!(first, ['a', 'b', 'c'], "each is asked once");
        assert_eq!(names(world, 4).await, "bbbb");
        // 30 times as many open requests outweigh the time.
        let mut clients: Vec<_> = (0..124).map(|_| world.client()).collect();
        for client in &mut clients {
            client.send(GET).await;
            tokio::task::yield_now().await;
        }
        let mut answered = String::new();
        for client in &mut clients {
            answered.push_str(client.reply(GET).await.text());
        }
        let count = |name| answered.matches(name).count();
        assert!(count("b") > 100 && (1..10).contains(&count("c")), "{answered}");
    });
}

#[test]
fn the_status_shows_a_slow_start() {
    let keys = "recover_time = \"5s\"\nslow_start = \"100s\"";
    in_memory(&proxied("\"{a}\", \"{b}\"", keys), async |world| {
        let _served = named(world, 2, "b");
        assert_eq!(names(world, 2).await, "bb");
        let _back = named(world, 1, "a");
        sleep(Duration::from_secs(6)).await;
        assert_eq!(names(world, 3).await, "abb", "one request tries it");
        sleep(Duration::from_secs(50)).await;
        let seen: Vec<_> = world.status().backends.iter().map(|row| row.slow_start).collect();
        assert_eq!(seen, [Some(50), None]);
        sleep(Duration::from_secs(50)).await;
        assert!(world.status().backends.iter().all(|row| row.is_up && row.slow_start.is_none()));
    });
}

#[test]
fn the_backend_with_fewer_requests_is_chosen() {
    in_memory(&proxied("\"{a}\", \"{b}\"", "balance = \"least-connections\""), async |world| {
        let (mut a, mut b) = (world.backend("10.0.0.1:3000"), world.backend("10.0.0.2:3000"));
        let mut slow: Vec<_> = (0..6).map(|_| world.client()).collect();
        for client in &mut slow {
            client.send(GET).await;
        }
        let (mut held_by_a, mut held_by_b) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            held_by_a.push(a.accept().await);
            held_by_b.push(b.accept().await);
        }
        assert!(!a.has_visitor() && !b.has_visitor(), "shared out evenly");
        for connection in &mut held_by_b {
            connection.request().await;
            send_name(connection, "b").await;
        }
        let _served = tokio::task::spawn_local(answer_all(b, "b"));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(names(world, 5).await, "bbbbb");
        for connection in &mut held_by_a {
            connection.request().await;
            send_name(connection, "a").await;
        }
        let mut replies = String::new();
        for client in &mut slow {
            replies.push_str(client.reply(GET).await.text());
        }
        assert_eq!(replies.matches('a').count(), 3, "{replies}");
        let _served = tokio::task::spawn_local(answer_all(a, "a"));
        assert!(names(world, 2).await.contains('a'), "both are asked again");
    });
}

/// Reads a request, and resets its connection instead of answering.
async fn lose(backend: &mut Backend) -> Message {
    let mut connection = backend.accept().await;
    let request = connection.request().await;
    connection.link.reset();
    request
}

#[test]
fn a_body_that_is_still_in_hand_goes_with_a_request_that_is_sent_once_more() {
    in_memory(&proxied("\"{a}\", \"{b}\"", "max_fails = 0"), async |world| {
        let mut flaky = world.backend("10.0.0.1:3000");
        let mut well = world.backend("10.0.0.2:3000");
        let put = "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello";
        let mut client = world.client();
        client.send(put).await;
        assert_eq!(lose(&mut flaky).await.text(), "hello");
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb";
        let (asked, _connection) = well.answer(ok).await;
        assert_eq!((&*asked.start, asked.text()), ("PUT / HTTP/1.1", "hello"));
        assert_eq!(client.reply(put).await.text(), "b");
    });
}

#[test]
fn two_attempts_are_made_and_no_third() {
    in_memory(&proxied("\"{a}\", \"{b}\", \"{c}\"", ""), async |world| {
        let (mut a, mut b) = (world.backend("10.0.0.1:3000"), world.backend("10.0.0.2:3000"));
        let mut c = world.backend("10.0.0.3:3000");
        let mut client = world.client();
        client.send(GET).await;
        for _ in 0..2 {
            tokio::select! {
                _ = lose(&mut a) => {}
                _ = lose(&mut b) => {}
                _ = lose(&mut c) => {}
            }
        }
        assert_eq!(client.reply(GET).await.status(), 502);
        assert!(!a.has_visitor() && !b.has_visitor() && !c.has_visitor());
    });
}

#[test]
fn the_host_may_be_that_of_the_backend() {
    for (keys, host) in [("host = \"backend\"", "10.0.0.1:3000"), ("", "a.example")] {
        in_memory(&proxied("\"{a}\"", keys), async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            let request = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
            let ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
            let (asked, _) = world.pass(&mut backend, request, ok).await;
            assert_eq!(asked.values("host"), [host]);
            assert_eq!(asked.values("x-forwarded-host"), ["a.example"]);
        });
    }
}
