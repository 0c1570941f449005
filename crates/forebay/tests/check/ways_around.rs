//! Warnings about paths and methods that go around a rule.

use std::path::Path;

use crate::{but_root, check, typed, warnings};

#[test]
fn a_strip_prefix_that_no_path_begins_with_is_a_warning() {
    for (path, prefix, is_warned) in [
        ("/d/*", "/shop", true),
        ("/shop/*", "/", true),
        ("/shop/*", "/shop", false),
        ("/shop/a", "/shop/", false),
        ("/*", "/shop", false),
    ] {
        let text = format!(
            "[[site]]\nlisten = 8080\n[[site.route]]\npath = \"{path}\"\n\
             proxy = {{ to = \"http://127.0.0.1:1\", strip_prefix = \"{prefix}\" }}\n"
        );
        let output = check(&[&typed("prefix.toml", &text)]);
        assert_eq!(output.status.code(), Some(0));
        let error = but_root(output.stderr);
        assert_eq!(error.contains("strip_prefix"), is_warned, "{path} {prefix}: {error}");
    }
    let fastcgi = |keys: &str| {
        let said = warnings(
            "prefix.toml",
            &format!(
                "listen = 8080\n[[site.route]]\npath = \"/shop/*\"\n\
                 fastcgi = {{ to = \"127.0.0.1:1\", {keys} }}\n"
            ),
        );
        said.contains("no path of this route begins with the")
    };
    assert!(fastcgi("root = \"/srv\", strip_prefix = \"/store\""));
    assert!(!fastcgi("root = \"/srv\", strip_prefix = \"/shop\""));
    assert!(fastcgi("mount = \"/store\"") && !fastcgi("mount = \"\""));
}

#[test]
fn a_way_around_by_a_mount_point_is_a_warning() {
    let routes = |gate: &str, open: &str| {
        format!(
            "listen = 8080\n\
             [[site.route]]\npath = \"/shop/admin/*\"\ndeny = \"all\"\nscgi = {{ to = \"127.0.0.1:1\"{gate} }}\n\
             [[site.route]]\npath = \"/*\"\nscgi = {{ to = \"127.0.0.1:1\"{open} }}\n"
        )
    };
    let said = |gate: &str, open: &str| warnings("mount.toml", &routes(gate, open));
    let mounted = ", mount = \"/shop\"";
    // For the application, `/admin/x` is the same page.
    assert!(said(mounted, "").contains("/admin/x gets past the rule"), "{}", said(mounted, ""));
    assert!(!said("", "").contains("/admin/x gets past"), "{}", said("", ""));
}

#[test]
fn a_gate_that_other_methods_walk_around_is_warned_about() {
    let gated = "[[site.route]]\npath = \"/a/*\"\nmethods = [\"GET\"]\nrespond = \"a\"\n\
                 deny = [\"10.0.0.1\"]\n";
    let respond = "[[site.route]]\nrespond = \"b\"\n";
    for (below, is_warned) in [
        (respond.to_owned(), true),
        (format!("{respond}path = \"/a/b\"\n"), true),
        (format!("{respond}methods = [\"POST\"]\n"), true),
        (format!("{respond}methods = [\"HEAD\"]\n"), false),
        (format!("{respond}deny = [\"10.0.0.1\"]\n"), false),
        (format!("{respond}path = \"/b/*\"\n"), false),
        (
            format!("[[site.route]]\npath = \"/a/*\"\nrespond = {{ status = 403 }}\n{respond}"),
            false,
        ),
    ] {
        let said = warnings("methods.toml", &format!("listen = 8080\n{gated}{below}"));
        assert_eq!(
            said.contains("the gate of this route holds for GET"),
            is_warned,
            "{below}: {said}"
        );
    }
}

#[test]
fn a_way_around_a_rule_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().display().to_string();
    for dir in ["htdocs/admin", "other"] {
        std::fs::create_dir_all(folder.path().join(dir)).unwrap();
    }
    let deny = "deny = [\"0.0.0.0/0\", \"::/0\"]";
    let php = |path: &str| {
        format!(
            "[[site.route]]\n{path}suffix = \".php\"\nfastcgi = {{ to = \"unix:php.sock\", root = \"ROOT/htdocs\" }}\n"
        )
    };
    let files = |path: &str, root: &str| {
        format!("[[site.route]]\npath = \"{path}\"\nfiles = \"ROOT/{root}\"\n")
    };
    let gate = |paths: &str, action: &str| {
        format!("[[site.route]]\npaths = [{paths}]\n{deny}\n{action}\n")
    };
    let both = "\"/admin\", \"/admin/*\"";
    let proxy = |keys: &str| format!("proxy = {{ to = \"http://127.0.0.1:1\"{keys} }}");
    let respond = "respond = \"no\"";
    for (routes, path) in [
        // Another route serves the same directory, a part of it, or its parent.
        (
            gate("\"/admin/*\"", "files = \"ROOT/htdocs/admin\"") + &files("/all/*", "htdocs"),
            "/all/admin/x",
        ),
        (
            gate("\"/*\"", "files = \"ROOT/htdocs\"").replace("/*", "/a/*")
                + &files("/sub/*", "htdocs/admin"),
            "/sub/x",
        ),
        (gate(both, respond) + &files("/all/*", "htdocs") + &files("/*", "htdocs"), "/all/admin"),
        (
            gate("\"/admin/secret.txt\"", respond)
                + &files("/all/*", "htdocs")
                + &files("/*", "htdocs"),
            "/all/admin/secret.txt",
        ),
        // A route above this one takes a part first.
        (php("") + &gate(both, "files = \"ROOT/htdocs\""), "/x.php"),
        (php("") + &gate("\"/admin/*\"", "files = \"ROOT/htdocs/admin\""), "/admin/x.php"),
        (
            php("path = \"/admin/open/*\"\n")
                + &gate("\"/admin/*\"", "files = \"ROOT/htdocs/admin\""),
            "",
        ),
        // The same server with another prefix.
        (
            gate(both, respond)
                + &format!(
                    "[[site.route]]\npath = \"/api/*\"\n{}\n",
                    proxy(", strip_prefix = \"/api\"")
                )
                + &format!("[[site.route]]\n{}\n", proxy("")),
            "/api/admin",
        ),
        // The path without its slash, or with one.
        (gate("\"/admin/*\"", respond) + &format!("[[site.route]]\n{}\n", proxy("")), "/admin"),
        (gate("\"/admin\"", respond) + &format!("[[site.route]]\n{}\n", proxy("")), "/admin/"),
        (gate("\"/admin/*\"", respond) + &files("/*", "htdocs"), ""),
        (gate(both, respond) + &format!("[[site.route]]\n{}\n", proxy("")), ""),
        (gate(both, respond) + &files("/*", "htdocs") + "", ""),
        (gate("\"/admin/*\"", "files = \"ROOT/other\"") + &files("/all/*", "htdocs"), ""),
    ] {
        let routes = routes.replace("ROOT", &root);
        let output = check(&[&typed("around.toml", &format!("[[site]]\nlisten = 8080\n{routes}"))]);
        let error = but_root(output.stderr);
        assert_eq!(output.status.code(), Some(0), "{error}");
        let expected = format!("WARNING: {path} gets past the rule");
        let is_right =
            if path.is_empty() { !error.contains("gets past") } else { error.contains(&expected) };
        assert!(is_right, "{path}\n{routes}\n{error}");
    }
}

#[test]
fn a_way_around_by_strip_prefix_names_the_path_at_the_backend() {
    let proxy = |path: &str, keys: &str| {
        format!(
            "[[site.route]]\npath = \"{path}\"\n\
             proxy = {{ to = \"http://127.0.0.1:1\"{keys} }}\n"
        )
    };
    let gate = "[[site.route]]\npaths = [\"/a\", \"/a/*\"]\nrespond = { status = 403 }\n";
    let back = proxy("/back/*", ", strip_prefix = \"/back\"") + &proxy("/*", "");
    let said = warnings("strip.toml", &format!("listen = 8080\n{gate}{back}"));
    let said = said.replace("| ", "");
    assert!(said.contains("(/a and this path both become /a at the backend)"), "{said}");
    let gate = gate.replace("/a", "/back/a");
    let said = warnings("strip.toml", &format!("listen = 8080\n{gate}{back}"));
    let said = said.replace("| ", "");
    assert!(said.contains("(/back/a and this path both become /a at the backend)"), "{said}");
    let gated = proxy("/a/*", ", strip_prefix = \"/a\"") + "allow = [\"10.0.0.1\"]\n";
    let deeper = proxy("/sub/*", "");
    let said = warnings("deeper.toml", &format!("listen = 8080\n{gated}{deeper}"));
    let said = said.replace("| ", "");
    assert!(said.contains("(/a/sub/x and this path both become /sub/x at the backend)"), "{said}");
}

#[test]
fn a_rule_for_a_path_with_a_final_slash_is_warned_about() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("p")).unwrap();
    let files = format!("[[site.route]]\npath = \"/*\"\nfiles = \"{}\"\n", folder.path().display());
    let proxy = "[[site.route]]\nproxy = \"http://127.0.0.1:1\"\n".to_owned();
    let none = String::new();
    let deny = "deny = [\"all\"]\n";
    let own = format!("{deny}files = \"{}\"\n", folder.path().display());
    let respond = "respond = { status = 403 }\n";
    for (path, rule, below, is_warned) in [
        ("\"/p/\"", &*own, &files, true),
        ("\"/p/\"", &own, &proxy, true),
        ("\"/p/\"", respond, &files, true),
        ("\"/p/\"", respond, &files.replace("/*", "/p/*"), true),
        ("\"/p/\"", respond, &none, false),
        ("[\"/p\", \"/p/\", \"/p/*\"]", respond, &files, false),
        ("\"/\"", respond, &files, false),
        ("\"/p/\"", respond, &format!("{files}{deny}"), false),
        // Redirecting one page is usual. If there are files below it, the redirection is doubtful.
        ("\"/p/\"", "redirect = \"/new/\"\n", &files, true),
        ("\"/q/\"", "redirect = \"/new/\"\n", &files, false),
        ("\"/p/\"", "redirect = \"/p/index.html\"\n", &files, false),
        ("\"/p/\"", "redirect = \"/new/\"\n", &files.replace("/*", "/p/*"), false),
        ("\"/p/\"", "redirect = \"/new/\"\n", &proxy, false),
        ("\"/p/\"", "respond = \"hello\"\n", &files, true),
    ] {
        let site = format!("listen = 8080\n[[site.route]]\npaths = {path}\n{rule}{below}");
        let site = site.replace("paths = \"", "path = \"");
        let said = warnings("slash.toml", &site).replace("| ", "");
        let is_said = said.contains("\"/p/\" is this one path only")
            && said.contains("write paths = [\"/p\", \"/p/*\"]");
        assert_eq!(is_said, is_warned, "{path} {rule}{below}\n{said}");
    }
}

#[test]
fn a_script_that_a_route_of_files_keeps_from_being_run_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("up")).unwrap();
    std::fs::write(folder.path().join("up/x.php"), "<?php").unwrap();
    let root = folder.path().display();
    let upper = "suffix = \".PHP\"\n";
    let any_case = "suffix = \".PHP\"\nsuffix_ignore_case = true\n";
    for (ends, keys, is_warned) in [
        ("", "", true),
        ("", ", scripts = \"below\"", false),
        ("", ", scripts = \"refuse\"", false),
        (upper, "", false),
        (any_case, "", true),
        ("paths = [\"/up/robots.txt\", \"/up/y.php\"]\n", "", false),
        ("paths = [\"/up/robots.txt\", \"/up/x.php\"]\n", "", true),
        ("paths = [\"/up/\"]\n", "", true),
    ] {
        let (path, ends) =
            if ends.starts_with("paths") { (ends, "") } else { ("path = \"/up/*\"\n", ends) };
        let text = format!(
            "[[site]]\nlisten = 8080\n[[site.route]]\n{path}{ends}\
             files = {{ root = \"{root}/up\"{keys} }}\n[[site.route]]\nsuffix = \".php\"\n\
             fastcgi = {{ to = \"unix:php.sock\", root = \"{root}\" }}\n"
        );
        let output = check(&[&typed("kept.toml", &text)]);
        let error = but_root(output.stderr);
        assert_eq!(output.status.code(), Some(0), "{error}");
        let line = 6 + ends.lines().count();
        let warning =
            format!("x.php is not run: this route takes it first, and the route on line {line}");
        assert_eq!(error.contains(&warning), is_warned, "{ends}{keys}\n{error}");
    }
}

#[test]
fn an_htaccess_file_that_no_rule_replaces_is_a_warning() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("htaccess");
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("private/.htaccess", "<Files *>\n  Require all denied\n</Files>\n");
    write("plain/.htaccess", "RewriteEngine On\n");
    let warning = |routes: &str| {
        let text = format!(
            "[[site]]\nlisten = 8080\n{routes}[[site.route]]\nfiles = \"{}\"\n",
            dir.display()
        );
        let output = check(&[&typed("htaccess.toml", &text)]);
        assert_eq!(output.status.code(), Some(0));
        but_root(output.stderr)
    };
    let text = warning("");
    let line = "private/.htaccess restricts access for Apache: what it protects gets 403";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("1 more such file"), "{text}");
    let closed = "[[site.route]]\npath = \"/private/*\"\nrespond = { status = 403 }\n";
    let text = warning(closed);
    assert!(text.contains("plain/.htaccess has settings of Apache"), "{text}");
    let both = closed.replace("path = \"/private/*\"", "paths = [\"/private/*\", \"/plain/*\"]");
    assert_eq!(warning(&both), "");
    // A condition may leave the directory open.
    let some = closed.replace("respond", "when = { method = \"POST\" }\nrespond");
    assert!(warning(&some).contains("restricts access"));
}

#[test]
fn a_route_for_other_paths_than_the_rule_is_no_way_around() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("icons")).unwrap();
    let dir = folder.path().display();
    let site = |path: &str| {
        format!(
            "listen = 8080\n[[site.route]]\npath = \"/cgi-bin/nagios4*\"\nrespond = {{ status = 403 }}\n\
             [[site.route]]\npath = \"{path}\"\nfiles = \"{dir}/icons\"\n\
             [[site.route]]\npath = \"/*\"\nfiles = \"{dir}\"\n"
        )
    };
    let said = warnings("other.toml", &site("/icons/*"));
    assert!(!said.contains("gets past"), "{said}");
}

#[test]
fn links_to_htaccess_files_and_rules_that_refuse_are_warnings() {
    let folder = forebay_testkit::folder::Folder::new();
    let cases = [
        ("RewriteEngine on\n RewriteRule ^(config|temp)/ - [NC, F]\n", "restricts access"),
        ("RewriteRule ^x - [R=404,L]\n", "restricts access"),
        ("RewriteRule ^x - [R=503]\n", "restricts access"),
        ("RewriteRule ^x - \"[G]\"\n", "restricts access"),
        ("#RewriteRule ^x - [F]\nRewriteRule ^f[g] /y [R=301]\n", "has settings of Apache"),
        ("Deny from all\n", "restricts access"),
    ];
    for (number, (rules, text)) in cases.into_iter().enumerate() {
        let root = format!("{number}/site");
        folder.write(&format!("{root}/a.txt"), "");
        // The layout of Debian: a link to a file in /etc, in a directory with another name.
        let file = folder.write(&format!("{number}/etc/htaccess"), rules);
        let dir = file.parent().unwrap();
        let root = folder.path().join(root);
        std::os::unix::fs::symlink(&file, dir.join(".htaccess")).unwrap();
        std::os::unix::fs::symlink(dir, root.join("config")).unwrap();
        // Links that lead back do not end the search or repeat a file.
        std::os::unix::fs::symlink(&root, root.join("again")).unwrap();
        let site = format!("[[site]]\nlisten = 8080\n[[site.route]]\nfiles = {root:?}\n");
        let error = but_root(check(&[&typed(&format!("links-{number}.toml"), &site)]).stderr);
        assert!(error.contains(&format!("config/.htaccess {text}")), "{rules}: {error}");
        assert!(!error.contains("more such file"), "{error}");
    }
}
