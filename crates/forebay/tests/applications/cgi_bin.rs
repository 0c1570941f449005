//! One directory with scripts in Perl, Python and the shell, and a program.

use std::fs;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;

use crate::harness::{Requests, Row, Scripts, compare, row, text};
use crate::perl::make_repository;

/// git's own CGI program, an ELF file.
const PROGRAM: &str = "/usr/lib/git-core/git-http-backend";

const ROWS: [Row; 10] = [
    row("/cgi-bin/perl.cgi/a/b?x=%3Cy%3E", 200, "perl /a/b &lt;y&gt; from data"),
    row("/cgi-bin/perl.cgi", 200, "perl  none from data"),
    row("/cgi-bin/python.cgi/a?x=1", 200, "python 1 /a x=1"),
    row("/cgi-bin/python.cgi", 200, "python 1  "),
    row("/cgi-bin/shell.cgi/a/b?x=1", 200, "shell /a/b x=1"),
    row("/cgi-bin/shell", 404, "gone from /cgi-bin/shell"),
    row("/cgi-bin/git/mill.git/HEAD", 200, "ref: refs/heads/main"),
    row("/cgi-bin/git/mill.git/info/refs?service=git-upload-pack", 200, "refs/tags/v1"),
    row("/cgi-bin/git/none.git/HEAD", 404, ""),
    row("/cgi-bin/moved.pl", 302, ""),
];

const PERL: &str = "#!/usr/bin/perl
use strict; use CGI; my $q = CGI->new;
my $x = CGI::escapeHTML(scalar $q->param('x') // 'none');
print $q->header('text/plain'), 'perl ', $q->path_info, ' ', $x, ' ', <DATA>;
__DATA__
from data
";

const PYTHON: &str = "#!/usr/bin/python3
import os
count = globals().get('count', 0) + 1
print('Content-Type: text/plain\\n')
print('python', count, os.environ.get('PATH_INFO', ''), os.environ['QUERY_STRING'])
";

const SHELL: &str = "#!/bin/sh
printf 'Content-Type: text/plain\\n\\nshell %s %s\\n' \"$PATH_INFO\" \"$QUERY_STRING\"
";

const GONE: &str = "#!/bin/sh
printf 'Status: 404 Not Found\\nContent-Type: text/plain\\n\\ngone from %s\\n' \"$SCRIPT_NAME\"
";

const MOVED: &str = "#!/usr/bin/perl -w
print qq(Status: 302 Found\\nLocation: http://localhost/there\\nContent-Type: text/plain\\n\\nthere\\n);
";

#[test]
fn scripts_of_all_languages_in_one_directory_answer_as_under_cgi() {
    if !peer::has(&["git", "perl", "libcgi-pm-perl", "python3"]) {
        return;
    }
    let folder = Folder::new();
    make_repository(&folder);
    for (name, script) in [
        ("perl.cgi", PERL),
        ("python.cgi", PYTHON),
        ("shell.cgi", SHELL),
        ("shell", GONE),
        ("moved.pl", MOVED),
    ] {
        folder.script(&format!("cgi-bin/{name}"), script);
    }
    folder.script("cgi-bin/git", fs::read(PROGRAM).unwrap());
    let dir = text(folder.path());
    let trust = folder.write("gitconfig", "[safe]\n\tdirectory = *\n");
    let cgi_bin = format!("{dir}/cgi-bin");
    let scripts = Scripts {
        dir: &cgi_bin,
        env: &[
            ("GIT_CONFIG_GLOBAL", text(&trust).to_owned()),
            ("GIT_PROJECT_ROOT", format!("{dir}/repositories")),
            ("GIT_HTTP_EXPORT_ALL", "1".to_owned()),
        ],
    };
    let Some(model) = scripts.plain_cgi() else { return };
    for mode in ["registry", "fork"] {
        let keys = format!("kind = \"cgi-bin\"\nperl_mode = \"{mode}\"");
        let requests = Requests { rows: &ROWS, ..Requests::default() };
        compare(mode, &requests, model.address(), scripts.forebay(&keys));
    }
}
