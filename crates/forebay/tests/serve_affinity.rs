//! The processors of the threads of `forebay serve`, and of the processes that it starts.

mod support;

use std::fs;
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::process::eventually;
use support::{Forebay, program, serve_command, serve_file, write_configuration};

/// Prints the processors that its process may run on, and computes a little.
const SCRIPT: &str = "#!/usr/bin/perl\n\
    open my $status, '<', '/proc/self/status'; my ($list) = grep /^Cpus_allowed_list/, <$status>;\n\
    my $n = 0; $n += $_ for 1 .. 1000;\n\
    print \"Content-Type: text/plain\\n\\n$list\";\n";

/// As `SCRIPT`, but also sleeps.
const SLEEPER: &str = "#!/usr/bin/perl\n\
    open my $status, '<', '/proc/self/status'; my ($list) = grep /^Cpus_allowed_list/, <$status>;\n\
    select undef, undef, undef, 0.0005 for 1 .. 4;\n\
    print \"Content-Type: text/plain\\n\\n$list\";\n";

fn folder() -> Folder {
    let folder = Folder::new();
    folder.script("scripts/where.pl", SCRIPT);
    folder.script("scripts/sleeper.pl", SLEEPER);
    folder.script("cgi/where.pl", SCRIPT);
    folder
}

fn configuration(server: &str) -> String {
    format!(
        "[server]\n{server}\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/s/*\"\napp = \"scripts\"\n\
         [[site.route]]\npath = \"/cgi/*\"\ncgi = {{ dir = \"cgi\" }}\n\
         [app.scripts]\nkind = \"perl-cgi\"\ndir = \"scripts\"\nmode = \"registry\"\nworkers = 2\n"
    )
}

/// Returns the processors of each serving thread.
fn threads(forebay: &Forebay) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", forebay.process.id())).unwrap().flatten();
    let status = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    let mut lists: Vec<_> = status
        .filter(|status| status.starts_with("Name:\tserve-"))
        .map(|status| list(&status))
        .collect();
    lists.sort();
    lists
}

fn list(status: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.expect("the kernel lists processors").trim().to_owned()
}

/// Returns the processors that this test may use, also one by one.
fn found() -> (String, Vec<String>) {
    let list = list(&fs::read_to_string("/proc/self/status").unwrap());
    let numbers = list.split(',').flat_map(|span| {
        let (first, last) = span.split_once('-').unwrap_or((span, span));
        first.parse::<usize>().unwrap()..=last.parse().unwrap()
    });
    let mut each: Vec<_> = numbers.map(|number| number.to_string()).collect();
    each.sort();
    (list, each)
}

#[test]
fn each_thread_has_a_processor_and_workers_that_only_compute_are_there_too() {
    let (all, each) = found();
    let threads_and_workers = if each.len() > 1 { each } else { vec![all.clone()] };
    let forebay = serve_file(folder(), &configuration(""));
    assert!(eventually(|| threads(&forebay) == threads_and_workers), "{:?}", threads(&forebay));
    assert_eq!(list(forebay.get("/cgi/where.pl").text()), all, "a CGI script has all of them");
    assert_eq!(list(forebay.get("/s/where.pl").text()), all, "too little is known");
    let mut client = forebay.connect();
    let mut ask = |path: &str| list(client.get(path).text());
    // Each look follows many requests, because the pool learns from many.
    let mut becomes = |path: &str, fits: &dyn Fn(&String) -> bool| {
        eventually(|| (0..100).any(|_| fits(&ask(path))))
    };
    assert!(becomes("/s/where.pl", &|list| threads_and_workers.contains(list)));
    assert!(becomes("/s/sleeper.pl", &|list| *list == all), "one that sleeps is held nowhere");
    assert_eq!(list(forebay.get("/cgi/where.pl").text()), all);
    forebay.stop();
}

#[test]
fn nothing_is_kept_anywhere_where_the_configuration_says_so_or_threads_are_fewer() {
    let (all, _) = found();
    for (server, count) in [("affinity = false\nthreads = 2", 2), ("threads = 1", 1)] {
        let forebay = serve_file(folder(), &configuration(server));
        let mut client = forebay.connect();
        for _ in 0..600 {
            assert_eq!(list(client.get("/s/where.pl").text()), all);
        }
        assert!(eventually(|| threads(&forebay) == vec![all.clone(); count]), "{server}");
        forebay.stop();
    }
}

#[test]
fn threads_stay_on_the_processors_of_taskset() {
    let (_, each) = found();
    let folder = folder();
    let file = write_configuration(&folder, &configuration(""));
    let mut command = Command::new("taskset");
    command.args(["-c", &each[0]]).arg(program()).arg("serve").arg(file);
    let forebay = serve_command(folder, command);
    assert!(eventually(|| threads(&forebay) == [each[0].clone()]), "{:?}", threads(&forebay));
    for path in ["/cgi/where.pl", "/s/where.pl"] {
        assert_eq!(list(forebay.get(path).text()), each[0]);
    }
    forebay.stop();
}
