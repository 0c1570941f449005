//! `explain` says what `serve` does, and no spelling of a path leads around a rule, for random
//! sites, trees and requests.

use std::path::Path;

use fastrand::Rng;
use forebay_conf::PathPattern;
use forebay_gateway::{Question, find_answer};
use tempfile::TempDir;

use crate::world::{Backend, World, in_memory, parse, with_site};

const BACKEND: &str = "10.0.0.1:9000";

/// What the client can see of a decision.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// The route that answers, from 0. `None`: no route.
    route: Option<usize>,
    /// The status. `None`: a backend chooses it.
    status: Option<u16>,
    location: Option<String>,
    /// The file that is sent.
    file: Option<String>,
}

const NAMES: &[&str] = &["a", "d", "x.php", "index.html", "index.php", "t.txt", "t.txt.gz", ".h"];

/// A tree in which each file contains its own path.
fn tree(random: &mut Rng) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let mut dirs = vec![String::new()];
    for top in ["a", "d"] {
        dirs.push(format!("{top}/"));
        dirs.extend(["a", "d"].map(|below| format!("{top}/{below}/")));
    }
    for dir in &dirs {
        std::fs::create_dir_all(root.path().join(dir)).unwrap();
        for name in &NAMES[2..] {
            if random.bool() {
                write(root.path(), &format!("{dir}{name}"));
            }
        }
        for name in ["t.txt.de", "index.html.de", "x.php~"] {
            if random.u8(..) < 40 {
                write(root.path(), &format!("{dir}{name}"));
            }
        }
    }
    write(root.path(), "page.html");
    root
}

fn write(root: &Path, name: &str) {
    std::fs::write(root.join(name), name).unwrap();
}

fn pick<'a>(random: &mut Rng, of: &[&'a str]) -> &'a str {
    of[random.usize(..of.len())]
}

/// The configuration of a random site. Some are refused when they are read.
fn site(random: &mut Rng, root: &Path) -> String {
    let count = random.usize(2..=6);
    let mut text = String::new();
    for number in 0..count {
        text.push_str("[[site.route]]\n");
        let conditions: &[&str] = &[
            "path = \"/*\"\n",
            "path = \"/*\"\n",
            "path = \"/a/*\"\n",
            "path = \"/a*\"\n",
            "path = \"/d\"\n",
            "path = \"/a/\"\n",
            "path = \"/index.php\"\n",
            "path = \"/index.html\"\n",
            "path = \"/a/x.php\"\n",
            "paths = [\"/d\", \"/d/*\"]\n",
            "suffix = \".php\"\n",
            "suffix = \".php\"\n",
            "suffix = \".html\"\n",
            "path = \"/a/*\"\nsuffix = \".php\"\n",
            "path_regex = \"^/a/\"\n",
            "path_regex = \"[.](php|txt)$\"\n",
            "path_regex = \"/d(/|$)\"\n",
            "when = { query.q = \"1\" }\n",
            "path = \"/*\"\nwhen = { not = { query.q = \"1\" } }\n",
        ];
        text.push_str(pick(random, conditions));
        let keys: &[&str] = &[
            "deny = \"all\"\n",
            "deny = \"all\"\n",
            "internal = true\n",
            "methods = [\"POST\"]\n",
            "methods = [\"GET\"]\n",
            "allow_methods = [\"GET\"]\n",
            "path_parameters = \"refuse\"\n",
            "path_parameters = \"match\"\n",
            "rewrite = \"/a/{rest}\"\n",
            "rewrite = \"/x.php?p={path}\"\n",
            "cors = { origins = \"https://a.example\" }\n",
            "maintenance = { page = \"{page}\" }\n",
            "maintenance = { page = \"{page}\", while_exists = \"{page}\" }\n",
            "maintenance = { page = \"{page}\", while_exists = \"/no/such\" }\n",
            "maintenance = { page = \"{page}\", except = \"127.0.0.1\" }\n",
        ];
        if random.u8(..) < 100 {
            let page = root.join("page.html");
            text.push_str(&pick(random, keys).replace("{page}", page.to_str().unwrap()));
        }
        let sub = pick(random, &["", "", "", "/a", "/d"]);
        let root = root.display();
        let mut falls = false;
        let action = match random.usize(..20) {
            0..=7 => {
                falls = true;
                let index = pick(
                    random,
                    &["\"index.html\"", "\"index.php\"", "\"index.php\", \"index.html\"", ""],
                );
                let more = pick(
                    random,
                    &[
                        "",
                        "",
                        ", precompressed = true",
                        ", languages = [\"en\", \"de\"]",
                        ", extensions = [\".html\", \".php\"]",
                        ", extensions = \".html\", languages = \"en\"",
                        ", listing = true",
                        ", hidden = true",
                        ", scripts = \"below\"",
                        ", scripts = \"refuse\"",
                    ],
                );
                format!("files = {{ root = \"{root}{sub}\", index = [{index}]{more} }}\n")
            }
            8..=10 => {
                falls = true;
                format!("fastcgi = {{ to = \"{BACKEND}\", root = \"{root}{sub}\" }}\n")
            }
            11 => format!("fastcgi = {{ to = \"{BACKEND}\", root = \"/no/such\" }}\n"),
            12 => {
                falls = true;
                format!(
                    "fastcgi = {{ to = \"{BACKEND}\", root = \"{root}\", strip_prefix = \"/a\" }}\n"
                )
            }
            13 => format!("proxy = \"http://{BACKEND}\"\n"),
            14 => format!("scgi = {{ to = \"{BACKEND}\", root = \"{root}{sub}\" }}\n"),
            15 => "respond = { status = 403 }\n".to_owned(),
            16 => "respond = \"ok\"\n".to_owned(),
            17 => "redirect = \"/to/{rest}\"\n".to_owned(),
            18 => "rewrite = \"/d/{rest}\"\n".to_owned(),
            _ => "rewrite = \"/index.php\"\n".to_owned(),
        };
        if falls && random.u8(..) < 110 {
            text.push_str(pick(
                random,
                &[
                    "fallback = true\n",
                    "fallback_to = \"/index.php\"\n",
                    "fallback_to = \"/a/x.php?p={path}\"\n",
                ],
            ));
        }
        text.push_str(&action);
        text.push_str(&format!(
            "set_headers = {{ X-Route = {{ value = \"{number}\", always = true }} }}\n"
        ));
    }
    text
}

fn request_target(random: &mut Rng) -> String {
    let mut target = String::new();
    for _ in 0..random.usize(0..=4) {
        target.push_str(match random.usize(..30) {
            0 => "//",
            1 => "%2f",
            2 => ";p/",
            3 => "/../",
            4 => "/./",
            5 => "%5c",
            _ => "/",
        });
        let name = pick(random, NAMES);
        match random.usize(..20) {
            0 => target.push_str(&name.to_uppercase()),
            1 => target.push_str(&name.replace('a', "%61").replace('x', "%78")),
            _ => target.push_str(name),
        }
    }
    if !target.starts_with('/') {
        target.insert(0, '/');
    }
    match random.usize(..10) {
        0..=2 if !target.ends_with('/') => target.push('/'),
        3 => target.push_str("?q=1"),
        4 => target.push_str("?q=1&q=2"),
        _ => {}
    }
    target
}

/// The fields of a request. Each with OPTIONS is a preflight request of CORS.
fn fields(method: &str) -> Vec<String> {
    let preflight = ["Origin: https://a.example", "Access-Control-Request-Method: GET"];
    let more = preflight.iter().filter(|_| method == "OPTIONS");
    ["Host: h", "Content-Length: 0"].iter().chain(more).map(|&field| field.to_owned()).collect()
}

async fn served(world: &World, backend: &mut Backend, method: &str, target: &str) -> Seen {
    let request = format!("{method} {target} HTTP/1.1\r\n{}\r\n\r\n", fields(method).join("\r\n"));
    let mut client = world.client_from("127.0.0.1:4000");
    let mut reached = false;
    let asking = async {
        client.send(&request).await;
        client.reply(&request).await
    };
    let mut asking = std::pin::pin!(asking);
    let reply = loop {
        tokio::select! {
            reply = &mut asking => break reply,
            connection = backend.accept() => {
                reached = true;
                drop(connection);
            }
        }
    };
    let status = reply.status();
    let is_file = status == 200 && method == "GET" && reply.field("etag").is_some();
    Seen {
        route: reply.field("x-route").map(|number| number.parse().unwrap()),
        status: (!(reached && status == 502)).then_some(status),
        location: reply.field("location").map(str::to_owned),
        file: is_file.then(|| reply.text().to_owned()),
    }
}

fn explained(
    plan: &forebay_conf::Plan,
    root: &Path,
    method: &str,
    target: &str,
) -> Result<Seen, String> {
    let fields = fields(method);
    let question = Question { url: target, method, fields: &fields, body: None };
    let answer = find_answer(plan, &question).map_err(|error| error.to_string())?;
    let below = |file: std::path::PathBuf| {
        // The path may have repeated slashes, as the request has.
        let file = file.canonicalize().unwrap();
        file.strip_prefix(root.canonicalize().unwrap()).unwrap().display().to_string()
    };
    let file = answer.file.filter(|_| method == "GET").map(below);
    Ok(Seen { route: answer.route, status: answer.status, location: answer.location, file })
}

/// The route that refuses a request for the sent file by its own path, although it comes before the
/// route that has sent it. Only for files routes that send the file `/x` below their root for the
/// path `/x`, so that a file has one such path.
fn bypassed(plan: &forebay_conf::Plan, root: &Path, target: &str, served: &Seen) -> Option<usize> {
    let (sender, file) = (served.route?, served.file.as_ref()?);
    let route = &plan.sites[0].routes[sender];
    let forebay_conf::Action::Files(files) = &route.action else { return None };
    let is_whole = |pattern: &PathPattern| *pattern == PathPattern::Prefix("/".into());
    if files.root != root || !route.matcher.paths.iter().all(is_whole) || route.rewrite.is_some() {
        return None;
    }
    let query = target.find('?').map_or("", |at| &target[at..]);
    let own = explained(plan, root, "GET", &format!("/{file}{query}")).unwrap();
    own.route.filter(|&rule| rule < sender && own.status == Some(403))
}

/// Compares `requests` random requests to each of at least `sites` random sites, and looks for ways
/// around their rules.
fn compare(seed: u64, sites: usize, requests: usize) {
    let mut differences = Vec::new();
    let mut compared = 0;
    // A third of the random sites has no contradiction that is found when the site is read.
    for seed in (seed..).take(4 * sites) {
        let mut random = Rng::with_seed(seed);
        let root = tree(&mut random);
        let routes = site(&mut random, root.path());
        let text = with_site(&routes);
        if forebay_conf::parse(&text, "test.toml", Path::new("/")).is_err() {
            continue;
        }
        let plan = parse(&text);
        in_memory(&routes, async |world| {
            let mut backend = world.backend(BACKEND);
            for _ in 0..requests {
                let target = request_target(&mut random);
                let method =
                    pick(&mut random, &["GET", "GET", "GET", "GET", "HEAD", "POST", "OPTIONS"]);
                let Ok(mut explained) = explained(&plan, root.path(), method, &target) else {
                    continue;
                };
                let served = served(world, &mut backend, method, &target).await;
                compared += 1;
                // A request that is refused before its route admits it gets none of its fields.
                explained.route = explained.route.filter(|_| served.route.is_some());
                if let Some(rule) = bypassed(&plan, root.path(), &target, &served) {
                    differences.push(format!(
                        "seed {seed}: {method} {target} gets what route {rule} refuses\n{served:?}\n{routes}"
                    ));
                }
                if served != explained {
                    differences.push(format!(
                        "seed {seed}: {method} {target}\nserve:   {served:?}\nexplain: {explained:?}\n{routes}"
                    ));
                }
            }
        });
    }
    assert!(compared > sites * requests, "too many sites are refused: {compared} compared");
    let first = differences.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "{} of {compared} differ\n{first}", differences.len());
}

#[test]
fn explain_says_what_serve_does() {
    let sites = std::env::var("FOREBAY_DECISION_SITES").ok();
    compare(1, sites.and_then(|sites| sites.parse().ok()).unwrap_or(80), 40);
}

/// The script route finds its scripts elsewhere, so nobody sends or runs this index.
#[test]
fn explain_knows_an_index_that_serve_does_not_send() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("app/app")).unwrap();
    std::fs::create_dir(root.path().join("docs")).unwrap();
    write(root.path(), "app/app/index.php");
    let dir = root.path().display();
    let routes = format!(
        "[[site.route]]\npath = \"/app/*\"\nsuffix = \".php\"\n\
         fastcgi = {{ to = \"{BACKEND}\", root = \"{dir}/docs\" }}\n\
         set_headers = {{ X-Route = {{ value = \"0\", always = true }} }}\n\
         [[site.route]]\npath = \"/app/*\"\n\
         files = {{ root = \"{dir}/app\", index = [\"index.php\"] }}\n\
         set_headers = {{ X-Route = {{ value = \"1\", always = true }} }}\n"
    );
    let plan = parse(&with_site(&routes));
    in_memory(&routes, async |world| {
        let mut backend = world.backend(BACKEND);
        let expected = Seen { route: Some(0), status: Some(404), location: None, file: None };
        assert_eq!(served(world, &mut backend, "GET", "/app/app/").await, expected);
        assert_eq!(explained(&plan, root.path(), "GET", "/app/app/").unwrap(), expected);
    });
}
