//! `country` and `asn`: a tiny database of the test says where clients are.

use std::net::Ipv4Addr;
use std::path::Path;

use tempfile::TempDir;

use crate::world::{World, in_memory};

/// A value of a database.
enum Value {
    Text(&'static str),
    Number(u32),
    Short(u16),
    Long(u64),
    Map(Vec<(&'static str, Value)>),
    Texts(Vec<&'static str>),
}

impl Value {
    /// Appends the value in the MMDB format, version 2.0.
    fn append(&self, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => {
                assert!(text.len() < 29);
                out.push(2 << 5 | text.len() as u8);
                out.extend_from_slice(text.as_bytes());
            }
            Self::Number(number) => {
                out.push(6 << 5 | 4);
                out.extend(number.to_be_bytes());
            }
            Self::Short(number) => {
                out.push(5 << 5 | 2);
                out.extend(number.to_be_bytes());
            }
            Self::Long(number) => {
                out.extend([8, 2]);
                out.extend(number.to_be_bytes());
            }
            Self::Map(entries) => {
                out.push(7 << 5 | entries.len() as u8);
                for (key, value) in entries {
                    Self::Text(key).append(out);
                    value.append(out);
                }
            }
            Self::Texts(texts) => {
                out.extend([texts.len() as u8, 4]);
                texts.iter().for_each(|text| Self::Text(text).append(out));
            }
        }
    }
}

/// Returns a database of these IPv4 networks.
fn database(networks: &[(&str, Value)]) -> Vec<u8> {
    const EMPTY: u32 = u32::MAX;
    const DATA: u32 = 1 << 23;
    let (mut nodes, mut data) = (vec![[EMPTY; 2]], Vec::new());
    for (network, value) in networks {
        let (address, length) = network.split_once('/').unwrap();
        let address = u128::from(u32::from(address.parse::<Ipv4Addr>().unwrap()));
        let length = 96 + length.parse::<usize>().unwrap();
        let mut at = 0;
        for bit in 0..length {
            let side = (address >> (127 - bit) & 1) as usize;
            if bit + 1 == length {
                nodes[at][side] = DATA | data.len() as u32;
            } else if nodes[at][side] == EMPTY {
                nodes[at][side] = nodes.len() as u32;
                at = nodes.len();
                nodes.push([EMPTY; 2]);
            } else {
                at = nodes[at][side] as usize;
            }
        }
        value.append(&mut data);
    }
    let count = nodes.len() as u32;
    let mut out = Vec::new();
    for side in nodes.iter().flatten() {
        let record = match *side {
            EMPTY => count,
            data if data & DATA != 0 => count + 16 + (data & !DATA),
            node => node,
        };
        out.extend_from_slice(&record.to_be_bytes()[1..]);
    }
    out.extend([0; 16]);
    out.extend(data);
    out.extend(b"\xab\xcd\xefMaxMind.com");
    Value::Map(vec![
        ("binary_format_major_version", Value::Short(2)),
        ("binary_format_minor_version", Value::Short(0)),
        ("build_epoch", Value::Long(1_795_860_000)),
        ("database_type", Value::Text("Test")),
        ("description", Value::Map(vec![("en", Value::Text("test"))])),
        ("ip_version", Value::Short(6)),
        ("languages", Value::Texts(vec!["en"])),
        ("node_count", Value::Number(count)),
        ("record_size", Value::Short(24)),
    ])
    .append(&mut out);
    out
}

fn countries() -> Vec<u8> {
    let in_country =
        |code| Value::Map(vec![("country", Value::Map(vec![("iso_code", Value::Text(code))]))]);
    database(&[("192.0.2.0/24", in_country("DE")), ("198.51.100.0/25", in_country("FR"))])
}

fn systems() -> Vec<u8> {
    let system = |number| Value::Map(vec![("autonomous_system_number", Value::Number(number))]);
    database(&[("192.0.2.0/25", system(64496)), ("203.0.113.0/24", system(4_200_000_000))])
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("country.mmdb"), countries()).unwrap();
    std::fs::write(folder.path().join("asn.mmdb"), systems()).unwrap();
    folder
}

fn site(folder: &TempDir, routes: &str) -> String {
    let path = folder.path().display();
    format!(
        "[server]\ngeo = [\"{path}/country.mmdb\", \"{path}/asn.mmdb\"]\n\
         [[site]]\nlisten = \"127.0.0.1:80\"\n{routes}"
    )
}

async fn get(world: &World, client: &str) -> String {
    let mut client = world.client_from(client);
    let request = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    client.send(request).await;
    let reply = client.reply(request).await;
    format!("{} {}", reply.text(), reply.field("x-place").unwrap_or_default())
}

#[test]
fn conditions_and_placeholders_know_where_clients_are() {
    let folder = folder();
    let routes = "[[site.route]]\nwhen = { country = [\"de\", \"AT\"], asn = 64496 }\nrespond = \"both\"\n\
                  set_headers = { X-Place = \"{country}/{asn}\" }\n\
                  [[site.route]]\nwhen = { asn = [1, 4200000000] }\nrespond = \"system\"\n\
                  set_headers = { X-Place = \"{country}/{asn}\" }\n\
                  [[site.route]]\nwhen = { not = { country = \"FR\" } }\nrespond = \"not FR\"\n\
                  set_headers = { X-Place = \"{country}/{asn}\" }\n\
                  [[site.route]]\nrespond = \"FR\"\n";
    in_memory(&site(&folder, routes), async |world| {
        for (client, expected) in [
            ("192.0.2.7:1", "both DE/64496"),
            ("[::ffff:192.0.2.7]:1", "both DE/64496"),
            ("192.0.2.200:1", "not FR DE/"),
            ("203.0.113.1:1", "system /4200000000"),
            ("198.51.100.1:1", "FR "),
            ("198.51.100.200:1", "not FR /"),
            ("[2001:db8::1]:1", "not FR /"),
        ] {
            assert_eq!(get(world, client).await, expected, "{client}");
        }
    });
}

#[test]
fn limits_count_by_country() {
    let folder = folder();
    let routes =
        "[[site.route]]\nrespond = \"x\"\nrate_limit = { rate = \"1/h\", key = \"{country}\" }\n";
    in_memory(&site(&folder, routes), async |world| {
        assert_eq!(get(world, "192.0.2.7:1").await, "x ");
        assert_ne!(get(world, "192.0.2.8:1").await, "x ", "another client of this country");
        assert_eq!(get(world, "198.51.100.1:1").await, "x ");
        for _ in 0..3 {
            assert_eq!(get(world, "203.0.113.1:1").await, "x ", "an empty key is not limited");
        }
    });
}

#[test]
fn damaged_databases_are_errors() {
    let folder = folder();
    let routes = "[[site.route]]\nwhen = { country = \"DE\" }\nrespond = \"x\"\n";
    let text = site(&folder, routes);
    let load = || forebay_conf::parse(&text, "test.toml", Path::new("/"));
    assert!(load().is_ok());
    let whole = countries();
    let damaged = folder.path().join("country.mmdb");
    let mut random = fastrand::Rng::with_seed(7);
    for end in (0..whole.len()).step_by(7) {
        std::fs::write(&damaged, &whole[..end]).unwrap();
        let error = load().map(|_| end).unwrap_err().to_string();
        assert!(error.contains("database"), "{error}");
    }
    // Whatever else is damaged: an error, or a database whose lookups end.
    for _ in 0..500 {
        let mut bytes = whole.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        std::fs::write(&damaged, &bytes).unwrap();
        let Ok(plan) = load() else { continue };
        let when = plan.sites[0].routes[0].matcher.when.as_ref().unwrap();
        for client in ["192.0.2.7", "198.51.100.1", "203.0.113.1", "2001:db8::1"] {
            when.is_in_place(client.parse().ok());
        }
    }
}

#[test]
fn without_a_database_conditions_are_errors() {
    for routes in [
        "[[site.route]]\nwhen = { country = \"DE\" }\nrespond = \"x\"\n",
        "[[site.route]]\nrespond = \"x\"\nset_headers = { X = \"{asn}\" }\n",
    ] {
        let text = format!("[[site]]\nlisten = \"127.0.0.1:80\"\n{routes}");
        let error =
            forebay_conf::parse(&text, "test.toml", Path::new("/")).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("no database knows where clients are"), "{error}");
    }
}
