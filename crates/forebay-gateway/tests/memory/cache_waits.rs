//! `cache`: requests that wait for the reply to another one, and those that must not.

use std::time::Duration;

use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep};

use crate::application::{Application, reply};
use crate::world::{Message, World, in_memory};

const SECOND: Duration = Duration::from_secs(1);

fn route(cache: &str) -> String {
    format!("[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\ncache = {cache}\n")
}

/// Sends a request now. The task returns the reply, and the time until it was complete.
async fn begin(world: &World, fields: &str) -> JoinHandle<(Message, Duration)> {
    let mut client = world.client();
    let began = Instant::now();
    client.send(format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await;
    spawn_local(async move { (client.reply("GET").await, began.elapsed()) })
}

/// Sends one request after another, each half a second later. Returns the texts of the replies, if
/// no reply took longer than `most`.
async fn staggered(world: &World, fields: &[&str], most: Duration) -> Vec<String> {
    let mut clients = Vec::new();
    for fields in fields {
        clients.push(begin(world, fields).await);
        sleep(SECOND / 2).await;
    }
    let mut texts = Vec::new();
    for client in clients {
        let (reply, time) = client.await.unwrap();
        assert!(time <= most, "{time:?}");
        texts.push(reply.text().to_owned());
    }
    texts
}

#[test]
fn clients_with_replies_of_their_own_wait_for_at_most_one_other() {
    for (cache, control, user) in [
        ("true", "max-age=60", "Authorization: Bearer a\r\n"),
        ("{ valid = \"1h\" }", "stale-if-error=1", "Cookie: session=1\r\n"),
    ] {
        in_memory(&route(cache), async |world| {
            let application = Application::slow(world, 2 * SECOND, move |_, number| {
                reply(&format!("Cache-Control: {control}\r\n"), &number.to_string())
            });
            // The first reply shows that the replies cannot be stored. All waiting requests then
            // ask the application at once.
            staggered(world, &[user; 8], 4 * SECOND).await;
            assert_eq!(application.asked(), 8, "{user}");
            staggered(world, &[user; 8], 2 * SECOND).await;
            assert_eq!(application.asked(), 8, "{user}");
            sleep(11 * SECOND).await;
            staggered(world, &[user; 4], 2 * SECOND).await;
            assert_eq!(application.asked(), 4, "{user}: after the time, too");
            // Other clients share a stored reply as before, and users cannot prevent this.
            sleep(3 * SECOND).await;
            let shared = staggered(world, &["", "", user, ""], 2 * SECOND).await;
            assert_eq!([&shared[0], &shared[0]], [&shared[1], &shared[3]], "{shared:?}");
            assert_eq!(application.asked(), 2, "{user}");
        });
    }
}

#[test]
fn no_client_waits_for_a_page_whose_last_reply_was_private() {
    in_memory(&route("true"), async |world| {
        let application = Application::slow(world, 2 * SECOND, |_, number| {
            let control = if number > 7 { "max-age=60" } else { "private" };
            reply(&format!("Cache-Control: {control}\r\n"), &number.to_string())
        });
        staggered(world, &[""; 2], 4 * SECOND).await;
        sleep(11 * SECOND).await;
        staggered(world, &[""; 5], 2 * SECOND).await;
        // After a reply that can be stored, requests share replies again.
        sleep(11 * SECOND).await;
        staggered(world, &[""], 2 * SECOND).await;
        assert_eq!(staggered(world, &[""; 2], SECOND / 2).await, ["8", "8"]);
        assert_eq!(application.asked(), 8);
    });
}

#[test]
fn no_client_waits_if_a_page_has_become_private() {
    let answers = [
        reply("Cache-Control: private\r\n", "own"),
        "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nSet-Cookie: s=1\r\n\r\n".to_owned(),
    ];
    for answer in answers {
        in_memory(&route("true"), async |world| {
            let application = Application::slow(world, 2 * SECOND, move |_, number| match number {
                1 => reply("Cache-Control: max-age=10\r\nETag: \"a\"\r\n", "all"),
                _ => answer.clone(),
            });
            staggered(world, &[""], 2 * SECOND).await;
            sleep(11 * SECOND).await;
            staggered(world, &[""; 3], 4 * SECOND).await;
            staggered(world, &[""; 6], 2 * SECOND).await;
            assert_eq!(application.seen.borrow().len(), 10);
        });
    }
}

#[test]
fn a_page_is_asked_for_once_again_after_an_error() {
    in_memory(&route("true"), async |world| {
        let application = Application::slow(world, 2 * SECOND, |_, number| match number {
            1 => "HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n".to_owned(),
            _ => reply("Cache-Control: max-age=60\r\n", &number.to_string()),
        });
        staggered(world, &[""], 2 * SECOND).await;
        sleep(11 * SECOND).await;
        assert_eq!(staggered(world, &[""; 3], 2 * SECOND).await, ["2"; 3]);
        assert_eq!(application.asked(), 2);
    });
}

/// Each of these replies may be stored, but must be confirmed before each use.
#[test]
fn clients_wait_for_at_most_one_reply_that_must_be_confirmed() {
    for (fields, confirms) in [
        ("ETag: W/\"e\"\r\n", true),
        ("ETag: W/\"{n}\"\r\n", false),
        ("ETag: \"e\"\r\nCache-Control: max-age=0\r\n", true),
        ("Last-Modified: Sun, 09 Sep 2001 01:46:40 GMT\r\nCache-Control: no-cache\r\n", true),
    ] {
        in_memory(&route("true"), async |world| {
            let application = Application::slow(world, 2 * SECOND, move |request, number| {
                let has = |name| request.field(name).is_some();
                if confirms && (has("if-none-match") || has("if-modified-since")) {
                    return format!("HTTP/1.1 304 Not Modified\r\n{fields}\r\n");
                }
                reply(&fields.replace("{n}", &number.to_string()), "text")
            });
            staggered(world, &[""; 8], 4 * SECOND).await;
            assert_eq!(application.asked(), 8, "{fields}");
            assert_eq!(staggered(world, &[""; 8], 2 * SECOND).await, ["text"; 8]);
            assert_eq!(application.asked(), 8, "{fields}");
            let (reply, _) = begin(world, "").await.await.unwrap();
            let confirmed = "forebay; fwd=stale; fwd-status=304; stored";
            assert_eq!(reply.field("cache-status") == Some(confirmed), confirms, "{fields}");
        });
    }
}

#[test]
fn clients_share_a_page_again_when_its_replies_become_fresh() {
    in_memory(&route("true"), async |world| {
        let application = Application::slow(world, 2 * SECOND, |_, number| {
            let control = if number > 6 { "max-age=4" } else { "no-cache" };
            let fields = format!("Cache-Control: {control}\r\nETag: \"{number}\"\r\n");
            reply(&fields, &number.to_string())
        });
        staggered(world, &[""; 6], 4 * SECOND).await;
        assert_eq!(staggered(world, &["", ""], 2 * SECOND).await, ["7", "8"]);
        assert_eq!(staggered(world, &[""; 2], SECOND / 2).await, ["8", "8"]);
        // After its lifetime, one request asks, and the others wait.
        sleep(5 * SECOND).await;
        assert_eq!(staggered(world, &[""; 3], 2 * SECOND).await, ["9"; 3]);
        assert_eq!(application.asked(), 9);
    });
}

#[test]
fn clients_wait_only_for_a_reply_that_is_the_same_for_them() {
    in_memory(&route("true"), async |world| {
        let application = Application::slow(world, 2 * SECOND, |request, _| {
            let name = request.field("user-agent").unwrap_or("none").to_owned();
            reply("Cache-Control: max-age=60\r\nVary: User-Agent\r\n", &name)
        });
        let agents: Vec<_> = (0..40).map(|n| format!("User-Agent: x{n}\r\n")).collect();
        let agents: Vec<&str> = agents.iter().map(|agent| &**agent).collect();
        // Nothing is known before the first reply. Its end releases all others together.
        let texts = staggered(world, &agents[..4], 4 * SECOND).await;
        assert_eq!(texts, ["x0", "x1", "x2", "x3"]);
        assert_eq!(application.asked(), 4);
        // A visitor with many names delays no other client, and these share a reply.
        let (own, other) = ("User-Agent: own\r\n", "User-Agent: other\r\n");
        let mixed = [own, agents[10], other, agents[11], own, other, agents[12]];
        let texts = staggered(world, &mixed, 2 * SECOND).await;
        assert_eq!(texts, ["own", "x10", "other", "x11", "own", "other", "x12"]);
        assert_eq!(application.asked(), 5);
        let mut many = Vec::new();
        for agent in &agents[13..] {
            many.push(begin(world, agent).await);
        }
        for client in many {
            let (_, time) = client.await.unwrap();
            assert!(time <= 2 * SECOND, "{time:?}");
        }
        assert_eq!(application.asked(), 27);
    });
}

#[test]
fn clients_wait_for_at_most_one_failure() {
    in_memory(&route("true"), async |world| {
        let application = Application::slow(world, 2 * SECOND, |_, _| String::new());
        staggered(world, &[""; 4], 4 * SECOND).await;
        assert_eq!(application.asked(), 4);
    });
}

/// Other clients change the page again and again, or abort their requests for it.
#[test]
fn clients_wait_for_at_most_two_requests_that_end_without_a_reply_to_store() {
    in_memory(&route("true"), async |world| {
        let application = Application::slow(world, SECOND, |_, number| {
            reply("Cache-Control: max-age=60\r\n", &number.to_string())
        });
        // After the first second, a change ends in the middle of each half second.
        let changing = async || {
            let mut writers = Vec::new();
            sleep(SECOND / 4).await;
            for _ in 0..24 {
                let mut writer = world.client();
                writer.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").await;
                writers.push(writer);
                sleep(SECOND / 2).await;
            }
            for mut writer in writers {
                assert_eq!(writer.reply("POST").await.status(), 200);
            }
        };
        let reading = async || {
            sleep(SECOND).await;
            staggered(world, &[""; 16], 3 * SECOND).await
        };
        tokio::join!(reading(), changing());
        let is_read = |request: &Message| request.start.starts_with("GET");
        let reads = application.seen.borrow_mut().drain(..).filter(is_read).count();
        assert_eq!(reads, 16, "no reply is from before a change");
        let request = "GET /other HTTP/1.1\r\nHost: h\r\n\r\n";
        let mut clients: Vec<_> = (0..8).map(|_| world.client()).collect();
        for client in &mut clients {
            client.send(request).await;
        }
        sleep(SECOND / 10).await;
        let mut last = world.client();
        last.send(request).await;
        let last = spawn_local(async move {
            let began = Instant::now();
            assert_eq!(last.reply("GET").await.status(), 200);
            began.elapsed()
        });
        for client in clients {
            sleep(SECOND * 8 / 10).await;
            drop(client);
        }
        let time = last.await.unwrap();
        assert!(time <= 3 * SECOND && application.asked() >= 3, "{time:?}");
    });
}

/// After the head of a redirect, a browser already requests the page that has changed.
#[test]
fn a_change_removes_replies_before_the_client_knows_of_it() {
    in_memory(&route("true"), async |world| {
        let application = Application::start(world, |request, number| {
            if request.start.starts_with("POST") {
                return "HTTP/1.1 303 See Other\r\nLocation: /\r\nContent-Length: 9\r\n\r\nhalf"
                    .into();
            }
            reply("Cache-Control: max-age=60\r\n", &number.to_string())
        });
        assert_eq!(staggered(world, &["", ""], SECOND / 2).await, ["1", "1"]);
        let mut writer = world.client();
        writer.send("POST /form HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").await;
        writer.head().await.unwrap();
        assert_eq!(staggered(world, &[""], SECOND / 2).await, ["3"]);
        drop(writer);
        assert_eq!(application.asked(), 3);
    });
}
