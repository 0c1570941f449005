//! Tokens that the tests sign themselves, and attacks on them.

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use forebay_conf::{Jwt, JwtKeys, Secret};
use forebay_net::head::Request;
use forebay_wire::http1::{RequestHead, RequestParser};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, get_current_timestamp};
use rcgen::{
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256,
    PublicKeyData as _,
};
use serde_json::json;
use tempfile::TempDir;

use super::*;

const SECRET: &str = "a secret of the tests, 32 bytes or more";

fn settings(keys: JwtKeys) -> Jwt {
    Jwt {
        keys,
        algorithms: Vec::new(),
        issuer: Vec::new(),
        audience: Vec::new(),
        leeway: Duration::from_secs(60),
        source: TokenSource::Header("Authorization".to_owned()),
        copy: Vec::new(),
        user: None,
        require: Vec::new(),
    }
}

fn with_secret() -> Jwt {
    settings(JwtKeys::Secret(Secret::new(SECRET.to_owned())))
}

fn check(settings: Jwt) -> TokenCheck {
    let keys = TokenKeys::load(&settings).unwrap_or_else(|error| panic!("{error}"));
    TokenCheck::new(settings, Arc::new(keys), None)
}

fn request(lines: &str) -> Request {
    let bytes = format!("GET / HTTP/1.1\r\nHost: h\r\n{lines}\r\n").into_bytes();
    let mut head = RequestHead::default();
    RequestParser::default().parse(&bytes, &mut head).unwrap();
    let address: SocketAddr = "192.0.2.7:4000".parse().unwrap();
    Request::new(bytes, head, address.into(), address)
}

/// Returns the claims with an expiry in an hour.
fn claims(more: Value) -> Value {
    let mut claims = json!({ "exp": get_current_timestamp() + 3600, "sub": "ann" });
    let more = more.as_object().unwrap().clone();
    claims.as_object_mut().unwrap().extend(more);
    claims
}

fn by_secret(claims: &Value) -> String {
    encode(&Header::default(), claims, &EncodingKey::from_secret(SECRET.as_bytes())).unwrap()
}

fn bearer(token: &str) -> Request {
    request(&format!("Authorization: Bearer {token}\r\n"))
}

fn outcome(check: &TokenCheck, token: &str) -> Result<(), Refused> {
    check.check(&mut bearer(token))
}

fn why(check: &TokenCheck, token: &str) -> &'static str {
    match outcome(check, token) {
        Err(Refused::Invalid(why)) => why,
        other => panic!("{token}: {other:?}"),
    }
}

/// Returns a token with this header and these claims, signed by `sign`.
fn made(header: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let part = |value: &Value| BASE64.encode(value.to_string());
    let message = format!("{}.{}", part(header), part(claims));
    let signature = BASE64.encode(sign(message.as_bytes()));
    format!("{message}.{signature}")
}

fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    use aws_lc_rs::hmac::{HMAC_SHA256, Key, sign};
    sign(&Key::new(HMAC_SHA256, key), message).as_ref().to_vec()
}

/// Writes a file with this text. Returns the path of the file, and its directory, whose drop
/// deletes the file.
fn file(text: &str) -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, text).unwrap();
    (folder, file)
}

fn load_error(settings: &Jwt) -> String {
    TokenKeys::load(settings).err().unwrap().to_string()
}

#[test]
fn a_token_of_the_shared_secret_is_valid_until_it_expires() {
    let check = check(with_secret());
    let now = get_current_timestamp();
    assert_eq!(outcome(&check, &by_secret(&claims(json!({})))), Ok(()));
    for (more, reason) in [
        (json!({ "exp": now - 61 }), "the token has expired"),
        (json!({ "exp": now + 60, "nbf": now + 70 }), "the token is not valid yet"),
        (json!({ "exp": null }), "a claim is missing"),
        (json!({ "exp": "never" }), "a claim is missing"),
        (json!({ "exp": -1 }), "a claim is missing"),
        (json!({ "nbf": "x" }), "the signature or a claim is invalid"),
    ] {
        assert_eq!(why(&check, &by_secret(&claims(more.clone()))), reason, "{more}");
    }
    // Two clocks may differ by the leeway.
    for more in [json!({ "exp": now - 30 }), json!({ "nbf": now + 30 })] {
        assert_eq!(outcome(&check, &by_secret(&claims(more))), Ok(()));
    }
    let own = EncodingKey::from_secret(b"another secret of 32 bytes or more bytes");
    let foreign = encode(&Header::default(), &claims(json!({})), &own).unwrap();
    assert_eq!(why(&check, &foreign), "the signature or a claim is invalid");
}

#[test]
fn a_token_without_a_signature_is_refused() {
    let check = check(with_secret());
    for name in ["none", "None", "NONE", "nOnE", ""] {
        let token = made(&json!({ "alg": name, "typ": "JWT" }), &claims(json!({})), |_| vec![]);
        assert_eq!(why(&check, &token), "this is not a token", "{name}");
    }
    let valid = by_secret(&claims(json!({})));
    let (message, _) = valid.rsplit_once('.').unwrap();
    for token in [
        format!("{message}."),
        message.to_owned(),
        format!("{message}.AAAA"),
        format!("{valid}."),
        format!("{valid}.x"),
        format!(".{valid}"),
        String::new(),
        ".".to_owned(),
        "..".to_owned(),
        "é.é.é".to_owned(),
    ] {
        assert!(outcome(&check, &token).is_err(), "{token}");
    }
    // The claims are not those that were signed.
    let mut parts: Vec<_> = valid.split('.').map(str::to_owned).collect();
    parts[1] = BASE64.encode(claims(json!({ "sub": "root" })).to_string());
    assert!(outcome(&check, &parts.join(".")).is_err());
}

#[test]
fn an_unknown_extension_and_a_huge_token_are_refused() {
    let check = check(with_secret());
    let header = json!({ "alg": "HS256", "crit": ["exp"] });
    let token = made(&header, &claims(json!({})), |text| hmac(SECRET.as_bytes(), text));
    assert_eq!(why(&check, &token), "the token needs an unknown extension");
    let huge = by_secret(&claims(json!({ "x": "x".repeat(20_000) })));
    assert_eq!(why(&check, &huge), "the token is too long");
    let deep = format!("{}1{}", "[".repeat(2000), "]".repeat(2000));
    let deep = format!("{{\"exp\":9999999999,\"x\":{deep}}}");
    let message = format!("{}.{}", BASE64.encode("{\"alg\":\"HS256\"}"), BASE64.encode(deep));
    let signature = BASE64.encode(hmac(SECRET.as_bytes(), message.as_bytes()));
    assert!(outcome(&check, &format!("{message}.{signature}")).is_err());
}

#[test]
fn a_public_key_is_never_a_secret() {
    let pair = KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap();
    let pem = pair.public_key_pem();
    let (_folder, path) = file(&pem);
    let check = check(settings(JwtKeys::Pem(path)));
    let signing = EncodingKey::from_rsa_pem(pair.serialize_pem().as_bytes()).unwrap();
    for algorithm in [Algorithm::RS256, Algorithm::RS512, Algorithm::PS256] {
        let token = encode(&Header::new(algorithm), &claims(json!({})), &signing).unwrap();
        assert_eq!(outcome(&check, &token), Ok(()), "{algorithm:?}");
    }
    let der = pair.subject_public_key_info();
    for name in ["HS256", "hs256", "RS256", "ES256", "EdDSA", "none"] {
        for key in [pem.as_bytes(), pem.trim_end().as_bytes(), &der, pair.der_bytes()] {
            let header = json!({ "alg": name });
            let token = made(&header, &claims(json!({})), |text| hmac(key, text));
            assert!(outcome(&check, &token).is_err(), "{name}");
        }
    }
}

#[test]
fn keys_of_each_type_verify_their_own_algorithms() {
    let secret = check(with_secret());
    for (kind, own, other) in [
        (&PKCS_ECDSA_P256_SHA256, Algorithm::ES256, Algorithm::ES384),
        (&PKCS_ECDSA_P384_SHA384, Algorithm::ES384, Algorithm::ES256),
        (&PKCS_ED25519, Algorithm::EdDSA, Algorithm::ES256),
    ] {
        let pair = KeyPair::generate_for(kind).unwrap();
        let (_folder, path) = file(&pair.public_key_pem());
        let check = check(settings(JwtKeys::Pem(path.clone())));
        let pem = pair.serialize_pem();
        let signing = match own {
            Algorithm::EdDSA => EncodingKey::from_ed_pem(pem.as_bytes()).unwrap(),
            _ => EncodingKey::from_ec_pem(pem.as_bytes()).unwrap(),
        };
        let token = encode(&Header::new(own), &claims(json!({})), &signing).unwrap();
        assert_eq!(outcome(&check, &token), Ok(()), "{own:?}");
        assert_eq!(why(&secret, &token), "the algorithm is not allowed");
        let (_, message) = token.split_once('.').unwrap();
        let header = BASE64.encode(json!({ "alg": format!("{other:?}") }).to_string());
        assert!(outcome(&check, &format!("{header}.{message}")).is_err());
        // A key that fits none of the algorithms is an error of the configuration.
        let mut wrong = settings(JwtKeys::Pem(path));
        wrong.algorithms = vec!["RS256".to_owned()];
        assert!(load_error(&wrong).contains("fits none of the `algorithms`"));
    }
}

#[test]
fn files_without_a_public_key_are_refused() {
    let pair = KeyPair::generate().unwrap();
    let pem = |text: &str| {
        let (folder, path) = file(text);
        (folder, settings(JwtKeys::Pem(path)))
    };
    for (text, reason) in [
        (pair.serialize_pem(), "has a private key"),
        ("x".to_owned(), "is not a public key in PEM form"),
        (String::new(), "is not a public key in PEM form"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n".into(), "is not a public"),
        ("x".repeat(300_000), "is larger than"),
    ] {
        let (_folder, settings) = pem(&text);
        let error = load_error(&settings);
        assert!(error.contains(reason), "{error}");
    }
    let secret = json!({ "keys": [{ "kty": "oct", "k": BASE64.encode(SECRET), "kid": "a" }] });
    for (text, reason) in [
        (secret.to_string(), "has no public key"),
        ("{\"keys\":[]}".to_owned(), "has no public key"),
        ("{}".to_owned(), "is not a set of keys"),
        (json!({ "keys": vec![&secret["keys"][0]; 101] }).to_string(), "more than 100 keys"),
    ] {
        let (_folder, path) = file(&text);
        let error = load_error(&settings(JwtKeys::Set(path)));
        assert!(error.contains(reason), "{error}");
    }
    let missing = settings(JwtKeys::Set("/nonexistent/keys".into()));
    assert!(load_error(&missing).contains("cannot read keys"));
}

/// Returns a JWK of the EC key, with further members.
fn jwk(pair: &KeyPair, more: &Value) -> Value {
    let point = &pair.public_key_raw()[1..];
    let (x, y) = point.split_at(32);
    let mut key = json!({
        "kty": "EC", "crv": "P-256", "x": BASE64.encode(x), "y": BASE64.encode(y),
    });
    key.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    key
}

fn signed_by(pair: &KeyPair, id: Option<&str>) -> String {
    let key = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).unwrap();
    let header = Header { kid: id.map(str::to_owned), ..Header::new(Algorithm::ES256) };
    encode(&header, &claims(json!({})), &key).unwrap()
}

#[test]
fn a_token_names_its_key_in_a_set() {
    let [first, second, other] = [(); 3].map(|()| KeyPair::generate().unwrap());
    let keys = json!({ "keys": [
        jwk(&first, &json!({ "kid": "1", "alg": "ES256", "use": "sig", "x5t": "unused" })),
        jwk(&second, &json!({ "kid": "2", "key_ops": ["verify"] })),
        jwk(&other, &json!({ "kid": "3", "use": "enc" })),
        jwk(&other, &json!({ "kid": "4", "key_ops": ["encrypt"] })),
        jwk(&other, &json!({ "kid": "5", "alg": "ES384" })),
        { "kty": "other", "kid": "6" },
        { "kty": "oct", "k": BASE64.encode(SECRET), "kid": "7" },
    ] });
    let (_folder, path) = file(&keys.to_string());
    let check = check(settings(JwtKeys::Set(path)));
    assert_eq!(outcome(&check, &signed_by(&first, Some("1"))), Ok(()));
    assert_eq!(outcome(&check, &signed_by(&second, Some("2"))), Ok(()));
    assert_eq!(why(&check, &signed_by(&first, Some("2"))), "the signature or a claim is invalid");
    for id in ["0", "3", "4", "5", "6", "7", ""] {
        assert_eq!(why(&check, &signed_by(&other, Some(id))), "the key is unknown", "{id}");
    }
    assert_eq!(why(&check, &signed_by(&first, None)), "the key is unknown");
    let header = json!({ "alg": "HS256", "kid": "7" });
    let token = made(&header, &claims(json!({})), |text| hmac(SECRET.as_bytes(), text));
    assert_eq!(why(&check, &token), "the key is unknown");
}

#[test]
fn the_only_key_of_a_set_needs_no_name() {
    let pair = KeyPair::generate().unwrap();
    let (_folder, path) = file(&json!({ "keys": [jwk(&pair, &json!({}))] }).to_string());
    let check = check(settings(JwtKeys::Set(path)));
    assert_eq!(outcome(&check, &signed_by(&pair, None)), Ok(()));
    assert_eq!(why(&check, &signed_by(&pair, Some("1"))), "the key is unknown");
}

#[test]
fn issuer_and_audience_are_required_if_they_are_configured() {
    let mut settings = with_secret();
    settings.issuer = vec!["https://a".to_owned(), "https://b".to_owned()];
    settings.audience = vec!["shop".to_owned()];
    let check = check(settings);
    for aud in [json!("shop"), json!(["wiki", "shop"])] {
        let token = by_secret(&claims(json!({ "iss": "https://b", "aud": aud })));
        assert_eq!(outcome(&check, &token), Ok(()));
    }
    for (more, reason) in [
        (json!({ "iss": "https://a" }), "a claim is missing"),
        (json!({ "aud": "shop" }), "a claim is missing"),
        (json!({ "iss": "https://c", "aud": "shop" }), "the issuer is another one"),
        (json!({ "iss": 1, "aud": "shop" }), "a claim is missing"),
        (json!({ "iss": "https://a", "aud": "wiki" }), "the token is for another audience"),
        (json!({ "iss": "https://a", "aud": [] }), "the token is for another audience"),
        (json!({ "iss": "https://a", "aud": { "shop": 1 } }), "a claim is missing"),
    ] {
        assert_eq!(why(&check, &by_secret(&claims(more.clone()))), reason, "{more}");
    }
}

#[test]
fn required_claims_decide_what_a_valid_token_permits() {
    let require = |claim: &str, values: &[&str]| {
        let mut settings = with_secret();
        let values = values.iter().map(|&value| value.to_owned()).collect();
        settings.require = vec![(claim.to_owned(), values)];
        check(settings)
    };
    for (claim, values, given, is_met) in [
        ("role", &["admin"][..], json!({ "role": "admin" }), true),
        ("role", &["admin", "owner"], json!({ "role": "owner" }), true),
        ("role", &["admin"], json!({ "role": ["user", "admin"] }), true),
        ("role", &["admin"], json!({ "role": "user" }), false),
        ("role", &["admin"], json!({ "role": "admin user" }), false),
        ("role", &["admin"], json!({ "role": ["user,admin"] }), false),
        ("role", &["admin"], json!({ "role": [["admin"]] }), false),
        ("role", &["admin"], json!({ "role": { "admin": true } }), false),
        ("role", &["admin"], json!({}), false),
        ("role", &["null"], json!({ "role": null }), false),
        ("level", &["3"], json!({ "level": 3 }), true),
        ("email_verified", &["true"], json!({ "email_verified": true }), true),
        ("scope", &["read"], json!({ "scope": "write read" }), true),
        ("scope", &["read"], json!({ "scope": "readonly" }), false),
        ("realm.roles", &["a"], json!({ "realm": { "roles": ["a"] } }), true),
        ("https://h.x/role", &["a"], json!({ "https://h.x/role": "a" }), true),
    ] {
        let wanted = if is_met { Ok(()) } else { Err(Refused::Insufficient) };
        let token = by_secret(&claims(given.clone()));
        assert_eq!(outcome(&require(claim, values), &token), wanted, "{claim} {given}");
    }
    assert_eq!(Refused::Insufficient.status(), 403);
}

fn passes(copied: &Value) -> Result<Request, Refused> {
    let mut settings = with_secret();
    settings.copy =
        vec![("X-User".to_owned(), "sub".to_owned()), ("X-Groups".to_owned(), "groups".to_owned())];
    settings.user = Some("sub".to_owned());
    let token = by_secret(&claims(copied.clone()));
    let mut request = request(&format!(
        "X-User: root\r\nx_user: root\r\nAuthorization: Bearer {token}\r\nX-GROUPS: wheel\r\n"
    ));
    check(settings).check(&mut request).map(|()| request)
}

fn values(request: &Request, name: &str) -> Vec<String> {
    let fields = request.head.fields.iter();
    let named = fields.filter(|field| {
        let given = String::from_utf8_lossy(field.name.of(&request.bytes)).replace('_', "-");
        given.eq_ignore_ascii_case(name)
    });
    named.map(|field| String::from_utf8_lossy(field.value.of(&request.bytes)).into()).collect()
}

#[test]
fn claims_replace_the_clients_own_fields() {
    let request = passes(&json!({ "groups": ["a", "b c", 3] })).unwrap();
    assert_eq!(values(&request, "x-user"), ["ann"]);
    assert_eq!(values(&request, "x-groups"), ["a,b c,3"]);
    assert_eq!(request.user, b"ann");
    let request = passes(&json!({ "sub": "äß €" })).unwrap();
    assert_eq!(values(&request, "x-user"), ["äß €"]);
    assert!(values(&request, "x-groups").is_empty());
}

#[test]
fn claims_with_control_characters_are_refused() {
    for bad in ["a\r\nX-Admin: 1", "a\nb", "a\0", "\u{7f}", "\u{85}", "\t", "a\r"] {
        for more in [json!({ "sub": bad }), json!({ "groups": bad }), json!({ "groups": [bad] })] {
            let refused = passes(&more).err();
            assert_eq!(refused, Some(Refused::Invalid("a claim cannot be passed on")), "{more}");
        }
    }
    // An application would read two groups.
    for groups in [json!(["a,admin"]), json!({ "a": 1 }), json!([["a"]])] {
        assert!(passes(&json!({ "groups": groups })).is_err());
    }
    for sub in [json!(""), json!(null)] {
        assert!(passes(&json!({ "sub": sub })).is_err(), "no user");
    }
}

#[test]
fn a_request_has_exactly_one_token() {
    let token = by_secret(&claims(json!({})));
    let outcome = |source: &TokenSource, lines: &str| {
        check(Jwt { source: source.clone(), ..with_secret() }).check(&mut request(lines)).is_ok()
    };
    let field = TokenSource::Header("authorization".to_owned());
    for (lines, is_right) in [
        (format!("Authorization: Bearer {token}\r\n"), true),
        (format!("authorization: bEARER   {token} \r\n"), true),
        (format!("Authorization: {token}\r\n"), false),
        (format!("Authorization: Basic {token}\r\n"), false),
        (format!("Authorization: Bearer {token}, Bearer {token}\r\n"), false),
        (format!("Authorization: Bearer {token}\r\nAuthorization: Bearer {token}\r\n"), false),
        (format!("Authorization: Bearer {token}\r\nAuthorization: x\r\n"), false),
        (format!("Cookie: authorization={token}\r\n"), false),
        ("Authorization: Bearer\r\n".to_owned(), false),
        ("Authorization: Bearer \r\n".to_owned(), false),
        (String::new(), false),
    ] {
        assert_eq!(outcome(&field, &lines), is_right, "{lines}");
    }
    let other = TokenSource::Header("X-Token".to_owned());
    assert!(outcome(&other, &format!("x-token: {token}\r\n")));
    assert!(outcome(&other, &format!("x-token: Bearer {token}\r\n")));
    assert!(!outcome(&other, &format!("x_token: {token}\r\n")));
    let cookie = TokenSource::Cookie("t".to_owned());
    for (lines, is_right) in [
        (format!("Cookie: a=1; t={token}; b\r\n"), true),
        (format!("Cookie: a=1\r\nCookie: t={token}\r\n"), true),
        (format!("Cookie: t={token}; t={token}\r\n"), false),
        (format!("Cookie: t=x\r\nCookie: t={token}\r\n"), false),
        (format!("Cookie: T={token}\r\n"), false),
        (format!("Authorization: Bearer {token}\r\n"), false),
    ] {
        assert_eq!(outcome(&cookie, &lines), is_right, "{lines}");
    }
}
