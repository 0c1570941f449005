//! Perl scripts that are difficult in a persistent process: blosxom has DATA after a `package`, and
//! smokeping and munin have the loop of CGI::Fast.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;

use crate::harness::{Requests, Row, Scripts, compare_modes, row, run, text, writable};
use crate::perl::CGI_BIN;
use crate::support::serve;

const BLOSXOM: [Row; 8] = [
    row("/cgi-bin/blosxom", 200, "The wheel turns"),
    row("/cgi-bin/blosxom/", 200, "The wheel turns"),
    row("/cgi-bin/blosxom/none", 200, "<html"),
    row("/cgi-bin/blosxom/works", 200, "The gates"),
    row("/cgi-bin/blosxom/works/gates.html", 200, "The gates"),
    row("/cgi-bin/blosxom/2020/01/02", 200, "The wheel turns"),
    row("/cgi-bin/blosxom/index.rss", 200, "<rss"),
    row("/cgi-bin/blosxom?-q=%3Cx%3E&flav=rss", 200, "<rss"),
];

#[test]
fn blosxom_answers_as_under_cgi() {
    if !peer::has(&["blosxom", "libcgi-pm-perl"]) {
        return;
    }
    let folder = Folder::new();
    for (name, day, text) in
        [("wheel", 2, "The wheel turns\n<p>Again.\n"), ("works/gates", 1, "The gates\n<p>Open.\n")]
    {
        let entry = folder.write(&format!("data/{name}.txt"), text);
        run(Command::new("touch").arg(format!("--date=2020-01-0{day}T03:04:05Z")).arg(entry));
    }
    let dir = text(folder.path());
    folder
        .write("blosxom.conf", format!("$datadir = '{dir}/data'; $blog_title = 'The Mill';\n1;\n"));
    let scripts = Scripts { dir: CGI_BIN, env: &[("BLOSXOM_CONFIG_DIR", dir.to_owned())] };
    let requests = Requests { rows: &BLOSXOM, ..Requests::default() };
    compare_modes(&scripts, &requests, &["perlrun", "fork"]);
}

const SMOKEPING: [Row; 5] = [
    row("/cgi-bin/neighbour.pl?x=y", 200, "y"),
    row("/cgi-bin/smokeping.cgi", 200, "The latency of the mill"),
    row("/cgi-bin/smokeping.cgi?target=Local", 200, "Local network"),
    row("/cgi-bin/smokeping.cgi?target=Local.Wheel", 200, "The wheel"),
    row("/cgi-bin/smokeping.cgi?target=No.Such", 500, "Section 'No' does not exist"),
];

#[test]
fn smokeping_with_cgi_fast_answers_as_under_cgi() {
    if !peer::has(&["smokeping"]) {
        return;
    }
    let folder = Folder::new();
    let dir = text(folder.path());
    let (data, images) = (writable(&folder, "data"), writable(&folder, "images"));
    let config = folder.write("config", smokeping_config(dir, &data, &images));
    // As in its documentation: the script, with the path of the configuration.
    let script = fs::read_to_string("/usr/share/smokeping/smokeping.cgi").unwrap();
    folder.script("cgi-bin/smokeping.cgi", script.replace("/etc/smokeping/config", text(&config)));
    let neighbour = "#!/usr/bin/perl\nuse CGI; my $q = CGI->new;\n\
        print $q->header('text/plain'), scalar($q->param('x')) // 'none';\n";
    folder.script("cgi-bin/neighbour.pl", neighbour);
    fs::create_dir_all(folder.path().join("data/Local")).unwrap();
    for name in ["Wheel", "Gates"] {
        round_trips(&format!("{data}/Local/{name}.rrd"));
    }
    let cgi_bin = format!("{dir}/cgi-bin");
    let scripts = Scripts { dir: &cgi_bin, env: &[] };
    // CGI::Carp prints SERVER_ADMIN, which Apache sets. A graph begins three hours ago.
    let masks = &[("send mail to ", ", giving"), (";start=", ";end")];
    let requests = Requests { rows: &SMOKEPING, masks, ..Requests::default() };
    compare_modes(&scripts, &requests, &["perlrun", "fork"]);
}

fn smokeping_config(dir: &str, data: &str, images: &str) -> String {
    format!(
        "*** General ***\nowner = Ann\ncontact = ann@mill.example\nmailhost = localhost\n\
         cgiurl = http://localhost/cgi-bin/smokeping.cgi\nsendmail = /bin/true\nimgcache = {images}\n\
         imgurl = /images\ndatadir = {data}\ndyndir = {data}\npiddir = {dir}\n\
         smokemail = /etc/smokeping/smokemail\ntmail = /etc/smokeping/tmail\n\
         *** Database ***\nstep = 300\npings = 20\nAVERAGE 0.5 1 1008\n\
         *** Presentation ***\ntemplate = /etc/smokeping/basepage.html\ncharset = utf-8\n\
         + overview\nwidth = 600\nheight = 50\nrange = 10h\n\
         + detail\nwidth = 600\nheight = 200\nunison_tolerance = 2\n\"Last 3 Hours\" 3h\n\
         *** Probes ***\n+ FPing\nbinary = /usr/bin/fping\n\
         *** Targets ***\nprobe = FPing\nmenu = Top\ntitle = The latency of the mill\n\
         + Local\nmenu = Local\ntitle = Local network\n\
         ++ Wheel\nmenu = Wheel\ntitle = The wheel\nhost = 127.0.0.1\n\
         ++ Gates\nmenu = Gates\ntitle = The gates\nhost = 127.0.0.2\n"
    )
}

/// Makes a database as smokeping's daemon does.
fn round_trips(file: &str) {
    let script = "use RRDs; my $file = shift; RRDs::create($file, '--step', 300, \
        'DS:uptime:GAUGE:600:0:U', 'DS:loss:GAUGE:600:0:20', 'DS:median:GAUGE:600:0:U', \
        (map \"DS:ping$_:GAUGE:600:0:U\", 1 .. 20), 'RRA:AVERAGE:0.5:1:1008'); \
        die RRDs::error() if RRDs::error()";
    run(Command::new("perl").args(["-e", script, file]));
}

/// A node of munin with one plugin. It prints its port.
const NODE: &str = r##"use IO::Socket::INET; $| = 1; $SIG{CHLD} = 'IGNORE';
my $listen = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 9) or die;
print $listen->sockport, "\n";
while (my $client = $listen->accept) {
    next if fork;
    print $client "# munin node at mill\n";
    while (<$client>) {
        if (/^cap/) { print $client "cap multigraph\n" }
        elsif (/^nodes/) { print $client "mill\n.\n" }
        elsif (/^list/) { print $client "wheel\n" }
        elsif (/^config/) { print $client "graph_title Turns of the wheel\ngraph_category mill\nwheel.label turns\n.\n" }
        elsif (/^fetch/) { print $client "wheel.value 7\n.\n" }
        elsif (/^quit/) { last }
        else { print $client "# Unknown command\n" }
    }
    exit;
}"##;

#[test]
fn munin_draws_pages_and_graphs() {
    if !peer::has(&["munin"]) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return peer::skip(
            "munin's programs run as munin and www-data, which only root can become",
        );
    }
    let folder = Folder::new();
    let dir = text(folder.path());
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    let mut node = Command::new("perl").args(["-e", NODE]).stdout(Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    BufReader::new(node.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let (db, html, run_dir) =
        (writable(&folder, "db"), writable(&folder, "html"), writable(&folder, "run"));
    writable(&folder, "db/cgi-tmp");
    let config = folder.write(
        "munin.conf",
        format!(
            "dbdir {db}\nhtmldir {html}\nrundir {run_dir}\ncgitmpdir {db}/cgi-tmp\n\
             tmpldir /etc/munin/templates\nstaticdir /etc/munin/static\nhtml_strategy cgi\n\
             graph_strategy cgi\ncgiurl_graph /munin-cgi/munin-cgi-graph\n\
             [mill.example.org]\n  address 127.0.0.1\n  port {port}  use_node_name yes\n"
        ),
    );
    for name in ["munin-update", "munin-limits"] {
        // With -T, they take only the directories of /etc/munin/munin.conf.
        let program = fs::read_to_string(format!("/usr/share/munin/{name}")).unwrap();
        let (first, rest) = program.split_once('\n').unwrap();
        let first = first.replace("-wT", "-w").replace("-T", "");
        let program = folder.write(name, format!("{first}\n{rest}"));
        let mut as_munin = Command::new("setpriv");
        as_munin.args(["--reuid=munin", "--regid=munin", "--clear-groups", "perl"]);
        run(as_munin.arg(program).arg("--config").arg(&config));
    }
    node.kill().unwrap();
    node.wait().unwrap();
    // munin-cgi-html forgets its nodes after its first request, so it runs as CGI.
    let env = format!("env = {{ MUNIN_CONFIG = \"{}\" }}", text(&config));
    let forebay = serve(
        folder,
        &format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\n\
             path = \"/munin-cgi/munin-cgi-graph/*\"\napp = \"graph\"\n[[site.route]]\n\
             path = \"/munin/static/*\"\nfiles = \"/etc/munin/static\"\n[[site.route]]\n\
             path = \"/munin/*\"\ncgi = {{ program = \"/usr/lib/munin/cgi/munin-cgi-html\", \
             user = \"www-data\", {env} }}\n[app.graph]\nkind = \"command\"\n\
             run = [\"/usr/lib/munin/cgi/munin-cgi-graph\"]\nspeaks = \"fastcgi\"\n\
             listen = \"stdin\"\nuser = \"www-data\"\n{env}\n"
        ),
    );
    for (target, holds) in [
        ("/munin/", "mill.example.org"),
        ("/munin/example.org/mill.example.org/", "Turns of the wheel"),
        ("/munin/static/style-new.css", "{"),
        ("/munin-cgi/munin-cgi-graph/example.org/mill.example.org/wheel-day.png", "PNG"),
    ] {
        for _ in 0..2 {
            let reply = forebay.get(target);
            let body = String::from_utf8_lossy(&reply.body);
            let is_right = reply.status == 200 && body.contains(holds);
            assert!(is_right, "{target}: {} {body:.500}\n{}", reply.status, forebay.output());
        }
    }
    forebay.stop();
}
