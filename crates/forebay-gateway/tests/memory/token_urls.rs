//! Keys of `jwt` from a URL: they are read in the background, and rotate.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, get_current_timestamp};
use rcgen::KeyPair;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::application::{Application, reply};
use crate::world::{World, in_memory};

const SERVER: &str = "127.0.0.1:9009";

fn routes(more: &str) -> String {
    format!(
        "[[site.route]]\nrespond = \"page\"\njwt = {{ jwks = \"http://{SERVER}/keys?x=1\"{more} }}\n"
    )
}

fn jwk(pair: &KeyPair, id: &str) -> Value {
    let point = &pair.public_key_raw()[1..];
    let (x, y) = point.split_at(32);
    json!({
        "kty": "EC", "crv": "P-256", "kid": id, "x": BASE64.encode(x), "y": BASE64.encode(y),
    })
}

fn token(pair: &KeyPair, id: &str) -> String {
    let key = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).unwrap();
    let header = Header { kid: Some(id.to_owned()), ..Header::new(Algorithm::ES256) };
    encode(&header, &json!({ "exp": get_current_timestamp() + 360_000 }), &key).unwrap()
}

async fn status(world: &World, token: &str) -> u16 {
    let request = format!("GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n\r\n");
    world.ask(&request).await.status()
}

async fn pause() {
    sleep(Duration::from_millis(50)).await;
}

/// A server of keys, with the reply that a test may change.
struct Keys {
    reply: Rc<RefCell<String>>,
    server: Application,
}

impl Keys {
    fn start(world: &World, keys: &[Value]) -> Self {
        let reply = Rc::new(RefCell::new(Self::set(keys)));
        let now = reply.clone();
        let answer = move |_: &_, _| now.borrow().clone();
        Self { reply, server: Application::at(world, SERVER, Duration::ZERO, answer) }
    }

    fn set(keys: &[Value]) -> String {
        reply("", &json!({ "keys": keys }).to_string())
    }
}

#[test]
fn an_unknown_key_is_looked_up_once_and_rotated_keys_are_found() {
    in_memory(&routes(""), async |world| {
        let [old, new, forged] = [(); 3].map(|()| KeyPair::generate().unwrap());
        let keys = Keys::start(world, &[jwk(&old, "old")]);
        pause().await;
        assert_eq!(keys.server.seen.borrow()[0].start, "GET /keys?x=1 HTTP/1.1");
        assert_eq!(keys.server.seen.borrow()[0].field("host"), Some(SERVER));
        assert_eq!(keys.server.asked(), 1, "the keys are read before the first request");
        assert_eq!(status(world, &token(&old, "old")).await, 200);
        assert_eq!(keys.server.asked(), 0);
        keys.reply.replace(Keys::set(&[jwk(&new, "new")]));
        // No client waits for the URL.
        assert_eq!(status(world, &token(&new, "new")).await, 401);
        pause().await;
        assert_eq!(status(world, &token(&new, "new")).await, 200);
        assert_eq!(status(world, &token(&old, "old")).await, 401);
        for id in 0..50 {
            assert_eq!(status(world, &token(&forged, &id.to_string())).await, 401);
        }
        assert_eq!(status(world, &token(&forged, "new")).await, 401);
        assert_eq!(keys.server.asked(), 1);
        sleep(Duration::from_secs(31)).await;
        assert_eq!(status(world, &token(&forged, "x")).await, 401);
        pause().await;
        assert_eq!(keys.server.asked(), 1);
    });
}

#[test]
fn keys_are_read_again_and_bad_replies_change_nothing() {
    in_memory(&routes(", refresh = \"1m\""), async |world| {
        let pair = KeyPair::generate().unwrap();
        let good = token(&pair, "a");
        let keys = Keys::start(world, &[jwk(&pair, "a")]);
        pause().await;
        assert_eq!((status(world, &good).await, keys.server.asked()), (200, 1));
        let large = reply("", &"x".repeat(300_000));
        for bad in [
            "HTTP/1.1 503 Later\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 302 Found\r\nLocation: http://10.0.0.9/\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{\"keys\": []}",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nnot json!",
            "HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n",
            &large,
            "",
        ] {
            keys.reply.replace(bad.to_owned());
            sleep(Duration::from_secs(70)).await;
            assert!(keys.server.asked() >= 1, "{bad}");
            assert_eq!(status(world, &good).await, 200, "{bad}");
        }
        let errors = world.errors().concat();
        // Further messages of the same second are left out.
        assert!(
            errors.contains("cannot read the keys of `jwt` from 127.0.0.1:9009/keys"),
            "{errors}"
        );
        let other = KeyPair::generate().unwrap();
        keys.reply.replace(Keys::set(&[jwk(&other, "b")]));
        sleep(Duration::from_secs(70)).await;
        assert_eq!(status(world, &good).await, 401);
        assert_eq!(status(world, &token(&other, "b")).await, 200);
        world.reload_as(
            &format!(
                "{}[[site.route]]\npath = \"/x\"\nrespond = \"x\"\n",
                routes(", refresh = \"1m\"")
            )
            .replacen("respond = \"page\"", "path = \"/\"\nrespond = \"page\"", 1),
        );
        assert_eq!(status(world, &token(&other, "b")).await, 200, "a reload keeps the keys");
    });
}

#[test]
fn without_keys_clients_are_asked_to_come_back_and_no_token_passes() {
    in_memory(&routes(""), async |world| {
        let pair = KeyPair::generate().unwrap();
        world.fall_silent(SERVER);
        pause().await;
        let good = token(&pair, "a");
        assert_eq!(status(world, &good).await, 503);
        assert_eq!(status(world, "nonsense").await, 401);
        let keys = Keys::start(world, &[jwk(&pair, "a")]);
        sleep(Duration::from_secs(60)).await;
        assert_eq!(status(world, &good).await, 200);
        assert_eq!(keys.server.asked(), 1);
    });
}
