//! Translates the access files (`.htaccess`) of directories without a configuration of Apache.

use super::syntax::Directive;
use super::{Cx, vhosts};
use crate::draft::{Draft, SourceLine};
use crate::keys::Keys;

/// Returns the draft of a site that maps each URL path to its directory, as Apache would do with
/// `AllowOverride All`. The URL path `/` is for `DocumentRoot`. If `runs_cgi` is true, files such as
/// `x.cgi` are scripts.
pub fn translate(mounts: &[(&str, String)], runs_cgi: bool, keys: &Keys) -> Draft {
    let listen = directive("Listen", &["127.0.0.1:8080"], None);
    // With a handler for scripts, the translation keeps `php_flag engine off`.
    let handler = directive("AddHandler", &["application/x-httpd-php", ".php"], None);
    let mut main = vec![listen, handler];
    main.extend(runs_cgi.then(|| directive("AddHandler", &["cgi-script", ".cgi"], None)));
    let options = ["Indexes", "FollowSymLinks", "ExecCGI"];
    let options = if runs_cgi { &options[..] } else { &options[..2] };
    for (url, dir) in mounts {
        let rules = vec![
            directive("AllowOverride", &["All"], None),
            directive("Options", options, None),
            directive("Require", &["all", "granted"], None),
        ];
        main.push(match *url {
            "/" => directive("DocumentRoot", &[dir], None),
            url => directive("Alias", &[url, dir], None),
        });
        main.push(directive("Directory", &[dir], Some(rules)));
    }
    let mut cx = Cx {
        keys,
        main: &main,
        root: "/".into(),
        draft: Draft::default(),
        dirs: Vec::new(),
        proxies: Vec::new(),
        runs_php: true,
    };
    vhosts::translate(&mut cx);
    cx.draft
}

fn directive(name: &str, args: &[&str], block: Option<Vec<Directive>>) -> Directive {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    Directive::new(name, args, block, SourceLine { file: "".into(), line: 0 })
}
