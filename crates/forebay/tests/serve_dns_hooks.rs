//! The programs for `dns_hook` in the packages: with a real BIND, and with servers that answer as the documents of the
//! providers' APIs say.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use forebay_testkit::folder::Folder;
use forebay_testkit::peer::{has, installed};
use forebay_testkit::port::free_port;
use forebay_testkit::process::{Process, eventually};

const NAME: &str = "_acme-challenge.www.forebay.test.";
const SECRET: &str = "t0p-secret-token";

fn script(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/dns")).join(name)
}

/// A server for an API, which records its requests.
struct Api {
    address: SocketAddr,
    calls: Arc<Mutex<Vec<Call>>>,
}

#[derive(Clone, Debug)]
struct Call {
    /// Method and target.
    line: String,
    head: String,
    body: String,
}

impl Api {
    /// Answers each request with a status and a body.
    fn start(mut answer: impl FnMut(&Call) -> (u16, String) + Send + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let calls = Arc::<Mutex<Vec<Call>>>::default();
        let all = calls.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).unwrap() > 0 {}
                let length = head.lines().find_map(|line| {
                    line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok()
                });
                let mut body = vec![0; length.unwrap_or(0)];
                stream.read_exact(&mut body).unwrap();
                let line = head.lines().next().unwrap_or_default();
                let line = line.trim_end_matches(" HTTP/1.1").to_owned();
                let call = Call { line, head, body: String::from_utf8(body).unwrap() };
                let (status, body) = answer(&call);
                all.lock().unwrap().push(call);
                let length = body.len();
                let reply = format!(
                    "HTTP/1.1 {status} x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                );
                stream.get_mut().write_all(reply.as_bytes()).unwrap();
            }
        });
        Self { address, calls }
    }

    fn lines(&self) -> Vec<String> {
        self.calls.lock().unwrap().iter().map(|call| call.line.clone()).collect()
    }
}

/// Runs a program. All arguments of its `curl` are recorded in the folder.
fn run(folder: &Folder, program: &str, action: &str, value: &str, env: &[(&str, &str)]) -> Output {
    let curl = installed("curl").unwrap();
    let log = folder.path().join("arguments");
    folder.script(
        "bin/curl",
        format!("#!/bin/sh\necho \"$*\" >>{}\nexec {} \"$@\"\n", log.display(), curl.display()),
    );
    let path =
        format!("{}:{}", folder.path().join("bin").display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(script(program));
    command.args([action, NAME, value]).env("PATH", path).envs(env.iter().copied());
    command.output().unwrap()
}

fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Adds two values of a name and removes them, then meets a server that refuses the key, and one that answers
/// nonsense. The key never is an argument.
fn add_and_remove(program: &str, api: &Api, refused: &Api, env: &[(&str, &str)]) {
    let folder = Folder::new();
    let token = folder.write("token", format!("{SECRET}\n"));
    let key = folder.write("key", format!("AKIDEXAMPLE:{SECRET}\n"));
    let prefix = if program == "route53" { "" } else { "/v" };
    let at = |address: SocketAddr| format!("http://{address}{prefix}");
    let secrets = [
        ("FOREBAY_DNS_TOKEN_FILE", token.to_str().unwrap()),
        ("FOREBAY_DNS_KEY_FILE", key.to_str().unwrap()),
    ];
    let with = |address: &str, action: &str, value: &str| {
        let all = [&secrets[..], &[("FOREBAY_DNS_API", address)], env].concat();
        run(&folder, program, action, value, &all)
    };
    let address = at(api.address);
    for (action, value) in
        [("present", "one"), ("present", "-two_2"), ("cleanup", "one"), ("cleanup", "-two_2")]
    {
        succeeds(&with(&address, action, value));
    }
    // What is not a challenge is not sent.
    let before = api.lines().len();
    assert!(!with(&address, "present", "a\"b").status.success());
    assert_eq!(api.lines().len(), before);
    let output = with(&at(refused.address), "present", "one");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("the key is not valid"), "{error}");
    let nonsense = Api::start(|_| (200, "hello".to_owned()));
    assert!(!with(&at(nonsense.address), "present", "one").status.success());
    let arguments = fs::read_to_string(folder.path().join("arguments")).unwrap();
    assert!(!arguments.is_empty() && !arguments.contains(SECRET), "{arguments}");
}

#[test]
fn records_at_cloudflare_are_added_and_removed() {
    if !has(&["curl", "jq"]) {
        return;
    }
    let mut records = BTreeMap::new();
    let api = Api::start(move |call| {
        assert!(
            call.head.contains(&format!("Authorization: Bearer {SECRET}\r\n")),
            "{}",
            call.head
        );
        let mut next = records.len();
        let result = match call.line.split_once(' ').unwrap() {
            ("GET", "/v/zones?name=forebay.test&status=active") => {
                serde_json::json!([{ "id": "023e105f4ecef8ad9ca31a8372d0c353", "name": "forebay.test" }])
            }
            ("GET", target) if target.starts_with("/v/zones?") => serde_json::json!([]),
            ("POST", "/v/zones/023e105f4ecef8ad9ca31a8372d0c353/dns_records") => {
                let record: serde_json::Value = serde_json::from_str(&call.body).unwrap();
                assert_eq!(record["type"], "TXT");
                assert_eq!(record["name"], NAME.trim_end_matches('.'));
                while records.contains_key(&format!("id{next}")) {
                    next += 1;
                }
                records.insert(format!("id{next}"), record["content"].clone());
                serde_json::json!({ "id": format!("id{next}") })
            }
            ("GET", target)
                if target.contains("/dns_records?type=TXT&name=_acme-challenge.www.") =>
            {
                records
                    .iter()
                    .map(|(id, text)| serde_json::json!({ "id": id, "content": text }))
                    .collect()
            }
            ("DELETE", target) => {
                let id = target.rsplit('/').next().unwrap();
                assert!(records.remove(id).is_some(), "{target}");
                serde_json::json!({ "id": id })
            }
            other => panic!("{other:?}"),
        };
        (200, serde_json::json!({ "success": true, "errors": [], "result": result }).to_string())
    });
    let refused = Api::start(|_| {
        let error = serde_json::json!([{ "code": 9109, "message": "the key is not valid" }]);
        (403, serde_json::json!({ "success": false, "errors": error, "result": null }).to_string())
    });
    add_and_remove("cloudflare", &api, &refused, &[]);
    let calls = api.calls.lock().unwrap().clone();
    let sent: Vec<_> = calls.iter().map(|call| call.line.split(' ').next().unwrap()).collect();
    let zone = ["GET", "GET"];
    let expected = [
        &zone[..],
        &["POST"],
        &zone,
        &["POST"],
        &zone,
        &["GET", "DELETE"],
        &zone,
        &["GET", "DELETE"],
    ];
    assert_eq!(sent, expected.concat());
    assert!(calls[2].body.contains("\"content\":\"\\\"one\\\"\""), "{}", calls[2].body);
}

#[test]
fn records_at_digitalocean_are_added_and_removed() {
    if !has(&["curl", "jq"]) {
        return;
    }
    let mut records: BTreeMap<String, String> = BTreeMap::new();
    let api = Api::start(move |call| {
        assert!(
            call.head.contains(&format!("Authorization: Bearer {SECRET}\r\n")),
            "{}",
            call.head
        );
        let missing = serde_json::json!({
            "id": "not_found", "message": "The resource you were accessing could not be found.",
        });
        let (status, answer) = match call.line.split_once(' ').unwrap() {
            ("GET", "/v/domains/forebay.test") => {
                (200, serde_json::json!({ "domain": { "name": "forebay.test", "ttl": 1800 } }))
            }
            ("GET", "/v/domains/www.forebay.test") => (404, missing),
            ("POST", "/v/domains/forebay.test/records") => {
                let record: serde_json::Value = serde_json::from_str(&call.body).unwrap();
                assert_eq!(
                    (&record["type"], &record["name"]),
                    (&"TXT".into(), &"_acme-challenge.www".into())
                );
                let data = record["data"].as_str().unwrap().to_owned();
                records.insert((28_448_433 + records.len()).to_string(), data);
                (201, serde_json::json!({ "domain_record": record }))
            }
            ("GET", target)
                if target.contains("/records?type=TXT&name=_acme-challenge.www.forebay.test&") =>
            {
                let all = records.iter().map(|(id, data)| {
                    serde_json::json!({ "id": id.parse::<u64>().unwrap(), "type": "TXT", "data": data })
                });
                let all: Vec<_> = all.collect();
                (
                    200,
                    serde_json::json!({ "domain_records": all, "links": {}, "meta": { "total": 2 } }),
                )
            }
            ("DELETE", target) => {
                assert!(records.remove(target.rsplit('/').next().unwrap()).is_some(), "{target}");
                return (204, String::new());
            }
            other => panic!("{other:?}"),
        };
        (status, answer.to_string())
    });
    let refused = Api::start(|_| {
        let answer = serde_json::json!({ "id": "unauthorized", "message": "the key is not valid" });
        (401, answer.to_string())
    });
    add_and_remove("digitalocean", &api, &refused, &[]);
    assert_eq!(api.lines().iter().filter(|line| line.starts_with("DELETE ")).count(), 2);
}

#[test]
fn records_at_route_53_are_added_and_removed() {
    if !has(&["curl"]) {
        return;
    }
    const HEAD: &str = "<?xml version=\"1.0\"?>\n";
    let mut values: Vec<String> = Vec::new();
    let api = Api::start(move |call| {
        let signed = "Authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/";
        assert!(call.head.contains(signed), "{}", call.head);
        assert!(
            call.head.contains("/us-east-1/route53/aws4_request, SignedHeaders="),
            "{}",
            call.head
        );
        let zone = |name: &str, id: &str| {
            format!(
                "{HEAD}<ListHostedZonesByNameResponse xmlns=\"https://route53.amazonaws.com/doc/2013-04-01/\">\
                 <HostedZones><HostedZone><Id>/hostedzone/{id}</Id><Name>{name}</Name>\
                 <CallerReference>x</CallerReference><Config><PrivateZone>false</PrivateZone></Config>\
                 </HostedZone></HostedZones><DNSName>x</DNSName></ListHostedZonesByNameResponse>"
            )
        };
        let answer = match call.line.split_once(' ').unwrap() {
            // The list begins at the name, and has the next zone if there is none of this name.
            ("GET", "/2013-04-01/hostedzonesbyname?dnsname=www.forebay.test.&maxitems=1") => {
                zone("zzz.test.", "ZOTHER")
            }
            ("GET", "/2013-04-01/hostedzonesbyname?dnsname=forebay.test.&maxitems=1") => {
                zone("forebay.test.", "Z0123456789")
            }
            ("GET", target) if target.starts_with("/2013-04-01/hostedzone/Z0123456789/rrset?") => {
                let records: String = values
                    .iter()
                    .map(|value| {
                        format!("<ResourceRecord><Value>\"{value}\"</Value></ResourceRecord>")
                    })
                    .collect();
                let name = if values.is_empty() { "zzz.forebay.test." } else { NAME };
                format!(
                    "{HEAD}<ListResourceRecordSetsResponse><ResourceRecordSets><ResourceRecordSet>\
                     <Name>{name}</Name><Type>TXT</Type><TTL>60</TTL><ResourceRecords>{records}\
                     </ResourceRecords></ResourceRecordSet></ResourceRecordSets></ListResourceRecordSetsResponse>"
                )
            }
            ("POST", "/2013-04-01/hostedzone/Z0123456789/rrset") => {
                let document = roxmltree::Document::parse(&call.body).unwrap();
                let texts = |tag: &str| -> Vec<String> {
                    let nodes = document.descendants().filter(|node| node.tag_name().name() == tag);
                    nodes.filter_map(|node| node.text().map(str::to_owned)).collect()
                };
                assert_eq!((texts("Name"), texts("Type")), (vec![NAME.into()], vec!["TXT".into()]));
                let sent: Vec<_> =
                    texts("Value").iter().map(|value| value.trim_matches('"').to_owned()).collect();
                match &*texts("Action")[0] {
                    "UPSERT" => values = sent,
                    "DELETE" => {
                        assert_eq!(sent, values, "a deletion names exactly what exists");
                        values.clear();
                    }
                    other => panic!("{other}"),
                }
                format!(
                    "{HEAD}<ChangeResourceRecordSetsResponse><ChangeInfo/></ChangeResourceRecordSetsResponse>"
                )
            }
            other => panic!("{other:?}"),
        };
        (200, answer)
    });
    let refused = Api::start(|_| {
        let error = "<Error><Type>Sender</Type><Code>InvalidClientTokenId</Code>\
                     <Message>the key is not valid</Message></Error>";
        (403, format!("{HEAD}<ErrorResponse xmlns=\"x\">{error}</ErrorResponse>"))
    });
    add_and_remove("route53", &api, &refused, &[]);
    let calls = api.calls.lock().unwrap().clone();
    let changes: Vec<_> = calls.iter().filter(|call| call.line.starts_with("POST ")).collect();
    let has = |at: usize, text: &str| changes[at].body.contains(text);
    assert!(changes.len() == 4 && has(1, "\"one\"") && has(1, "\"-two_2\"") && !has(2, "\"one\""));
}

/// Writes the configuration of a BIND with the zone forebay.test, which the key in the file `key` may change.
fn start_bind(folder: &Folder) -> Option<(Process, SocketAddr)> {
    let program = installed("named")?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let key = "key \"forebay\" { algorithm hmac-sha256; secret \"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\"; };\n";
    folder.write("key", key);
    let base = folder.path().display();
    folder.write(
        "zone",
        "$TTL 60\n@ SOA ns.forebay.test. admin.forebay.test. 1 60 60 60 60\n@ NS ns\nns A 127.0.0.1\n* A 127.0.0.1\n",
    );
    let configuration = folder.write(
        "named.conf",
        format!(
            "include \"{base}/key\";\n\
             options {{ directory \"{base}\"; pid-file none; session-keyfile none; recursion no; \
             listen-on port {} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }}; dnssec-validation no; }};\n\
             controls {{ }};\n\
             zone \"forebay.test\" {{ type primary; file \"{base}/zone\"; \
             update-policy {{ grant forebay subdomain forebay.test. TXT; }}; }};\n",
            address.port()
        ),
    );
    let mut command = Command::new(program);
    command.args(["-g", "-c"]).arg(configuration);
    let mut named = Process::start(command);
    named.wait_until_listening(address);
    // "running" comes first in "running as: named".
    named.wait_for_output("all zones loaded");
    Some((named, address))
}

#[test]
fn a_zone_of_bind_is_updated() {
    let folder = Folder::new();
    let Some((_named, address)) = start_bind(&folder) else { return };
    let server = format!("127.0.0.1 {}", address.port());
    let key = folder.path().join("key");
    let call = |action: &str, value: &str, key: &str| {
        run(
            &folder,
            "nsupdate",
            action,
            value,
            &[("FOREBAY_DNS_KEY", key), ("FOREBAY_DNS_SERVER", &server)],
        )
    };
    let key = key.to_str().unwrap();
    let texts = || {
        let mut command = Command::new(installed("nsupdate").unwrap().with_file_name("dig"));
        command.args(["+short", "@127.0.0.1", "-p", &address.port().to_string(), "TXT", NAME]);
        let answer = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let mut texts: Vec<_> = answer.lines().map(str::to_owned).collect();
        texts.sort();
        texts
    };
    succeeds(&call("present", "one", key));
    succeeds(&call("present", "-two_2", key));
    assert_eq!(texts(), ["\"-two_2\"", "\"one\""]);
    succeeds(&call("cleanup", "one", key));
    assert_eq!(texts(), ["\"-two_2\""]);
    succeeds(&call("cleanup", "-two_2", key));
    assert!(eventually(|| texts().is_empty()));
    // A key that the zone does not know, none, and a value that would be a command.
    let other = folder.write(
        "other",
        "key \"forebay\" { algorithm hmac-sha256; secret \"AAAAMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\"; };\n",
    );
    assert!(!call("present", "x", other.to_str().unwrap()).status.success());
    assert!(!call("present", "x", "/no/such/key").status.success());
    assert!(!call("present", "x\"\nupdate delete ns.forebay.test. A", key).status.success());
    assert!(texts().is_empty());
}
