//! Warnings about settings without an effect.

use crate::{but_root, check, typed, warnings};

#[test]
fn a_missing_watched_file_is_a_warning() {
    let text = "[[site]]\nlisten = 0\n[[site.route]]\napp = \"x\"\n[app.x]\nkind = \"perl-cgi\"\n\
                dir = \".\"\nwatch = [\".\", \"no-such-lib\"]\n";
    let output = check(&[&typed("watch.toml", text)]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let warning = but_root(output.stderr);
    assert!(warning.trim_start().starts_with("! nothing to watch: "), "{warning}");
    assert!(warning.contains("no-such-lib does not exist"), "{warning}");
    assert!(warning.contains("watch.toml:8:15]"), "{warning}");
}

#[test]
fn source_that_no_route_runs_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("index.php"), "<?php").unwrap();
    let files = format!("[[site.route]]\npath = \"/*\"\nfiles = \"{}\"\n", folder.path().display());
    let php = format!(
        "[[site.route]]\nsuffix = \".php\"\nfastcgi = {{ to = \"unix:php.sock\", root = \"{}\" }}\n",
        folder.path().display()
    );
    let warning = "the source of index.php is sent: no route of this site runs it";
    for (routes, is_warned) in [(files.clone(), true), (php + &files, false)] {
        let text = format!("[[site]]\nlisten = 8080\n{routes}");
        let output = check(&[&typed("source.toml", &text)]);
        assert_eq!(output.status.code(), Some(0));
        let error = but_root(output.stderr);
        assert_eq!(error.contains(warning), is_warned, "{error}");
        assert_eq!(error.contains("source.toml:5:9"), is_warned, "{error}");
        // An upload directory must not run uploaded files.
        assert_eq!(error.contains("help: move it elsewhere, or refuse"), is_warned, "{error}");
    }
}

#[test]
fn source_of_other_names_that_no_route_runs_is_a_warning_too() {
    // The directory of an expression is below the root.
    let parent = tempfile::tempdir().unwrap();
    std::fs::create_dir(parent.path().join("app")).unwrap();
    std::fs::write(parent.path().join("app/index.php"), "<?php").unwrap();
    let files = format!(
        "[[site]]\nlisten = 8080\n[[site.route]]\npath_regex = '^/app'\nfiles = \"{}\"\n",
        parent.path().display()
    );
    let output = check(&[&typed("sources.toml", &files)]);
    assert!(but_root(output.stderr).contains("the source of index.php is sent"));
    for name in ["a.phtml", "a.php5", "UP.PHP", "x.cgi", "x.pl", "y.py"] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(name), "").unwrap();
        let dir = folder.path().display();
        let text = format!(
            "[[site]]\nlisten = 8080\n[[site.route]]\nsuffix = \".php\"\n\
             fastcgi = {{ to = \"unix:php.sock\", root = \"{dir}\" }}\n\
             [[site.route]]\npath = \"/*\"\nfiles = \"{dir}\"\n"
        );
        let output = check(&[&typed("sources.toml", &text)]);
        assert_eq!(output.status.code(), Some(0));
        let error = but_root(output.stderr);
        let warning = format!("the source of {name} is sent: no route of this site runs it");
        assert!(error.contains(&warning), "{name}: {error}");
    }
}

#[test]
fn source_that_an_earlier_route_keeps_from_clients_is_no_warning() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("app/app")).unwrap();
    std::fs::create_dir(folder.path().join("docs")).unwrap();
    let root = folder.path().display();
    for (name, earlier) in [
        (
            "index.php",
            format!(
                "path = \"/app/*\"\nsuffix = \".php\"\n\
                 fastcgi = {{ to = \"unix:php.sock\", root = \"{root}/docs\" }}\n"
            ),
        ),
        ("x.pl", "suffix = \".pl\"\nrespond = { status = 403 }\n".to_owned()),
        ("y.py", "path = \"/app/y.py\"\nproxy = \"http://127.0.0.1:3000\"\n".to_owned()),
        ("z.pl", "path = \"/app/*\"\ndeny = \"all\"\nrespond = \"in\"\n".to_owned()),
    ] {
        let file = folder.path().join("app").join(name);
        std::fs::write(&file, "").unwrap();
        let files = format!(
            "[[site.route]]\npath = \"/app/*\"\n\
             files = {{ root = \"{root}/app\", index = [\"{name}\"] }}\n"
        );
        for (earlier, is_warned) in
            [(format!("[[site.route]]\n{earlier}"), false), (String::new(), true)]
        {
            let text = format!("[[site]]\nlisten = 8080\n{earlier}{files}");
            let output = check(&[&typed("kept.toml", &text)]);
            let error = but_root(output.stderr);
            assert_eq!(error.contains("the source of"), is_warned, "{name}: {error}");
        }
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn a_group_of_servers_that_no_route_names_is_a_warning() {
    let site = "[[site]]\nlisten = 8080\n[[site.route]]\n";
    let group = "[upstream.shop]\nto = \"http://127.0.0.1:3000\"\n";
    let unused = typed("unused.toml", &format!("{site}respond = \"a\"\n{group}"));
    let output = check(&[&unused]);
    assert_eq!(output.status.code(), Some(0));
    let warning = but_root(output.stderr);
    for text in [":5:1]", "no route passes requests to [upstream.shop]", "proxy = \"@shop\""] {
        assert!(warning.contains(text), "no {text} in\n{warning}");
    }
    let used = typed("used.toml", &format!("{site}proxy = \"@shop\"\n{group}"));
    assert_eq!(but_root(check(&[&used]).stderr), "");
}

/// Asserts that `check` ends with this code, and that its messages contain `shown`.
fn assert_says(path: &str, code: i32, shown: &str) {
    let output = check(&[path]);
    let error = String::from_utf8(output.stderr).unwrap().replace(['\n', '|'], " ");
    let error = error.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(error.contains(shown), "{error}");
}

#[test]
fn an_odd_line_among_users_is_a_warning_and_refused_where_nobody_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    let text = format!(
        "[[site]]\nlisten = 8080\n[[site.route]]\nrespond = \"in\"\n\
         basic_auth = {{ file = \"{}\" }}\n",
        file.display()
    );
    let path = typed("users.toml", &text);
    let user = "me:$apr1$12345678$my0OIRja9KzJPSFy62uTY1\n";
    for (users, code, shown) in [
        (format!("{user}old:crypted\n"), 0, "its user cannot log in"),
        ("old:crypted\n".to_owned(), 2, "line 1"),
    ] {
        std::fs::write(&file, users).unwrap();
        assert_says(&path, code, shown);
    }
}

#[test]
fn unusable_keys_and_realms_without_a_user_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let site = "[[site]]\nlisten = 8080\n[[site.route]]\nrespond = \"in\"\n";
    let digest = format!("digest_auth = {{ file = \"{}\", realm = \"staff\" }}\n", file.display());
    let token = format!("jwt = {{ key = \"{}\" }}\n", file.display());
    let hash = "0".repeat(32);
    for (rule, content, code, shown) in [
        (&digest, format!("ann:staff:{hash}\n"), 0, ""),
        (&digest, format!("ann:staff:{hash}\nold\n"), 0, "its user cannot log in"),
        (&digest, format!("ann:other:{hash}\n"), 0, "no user has the realm staff"),
        (&digest, "ann:staff\n".to_owned(), 2, "write the line anew: htdigest FILE REALM USER"),
        (&token, "-----BEGIN PRIVATE KEY-----\n".to_owned(), 2, "has a private key"),
        (&token, "key\n".to_owned(), 2, "is not a public key in PEM form"),
    ] {
        std::fs::write(&file, content).unwrap();
        let path = typed("gate.toml", &format!("{site}{rule}"));
        assert_says(&path, code, shown);
    }
}

#[test]
fn a_rule_by_address_that_no_client_of_a_unix_socket_fulfils_is_warned_about() {
    let unix = "listen = \"unix:no-such.sock\"\n";
    let route = "[[site.route]]\nrespond = \"a\"\n";
    let refuses = "this rule refuses all of them";
    for (site, rule, is_warned) in [
        (unix, "allow = [\"10.0.0.0/8\"]", true),
        (unix, "deny = [\"10.0.0.0/8\"]", true),
        (unix, "deny = [\"all\"]", false),
        (unix, "allow = [\"10.0.0.0/8\", \"unix\"]", false),
        ("listen = 8080\n", "allow = [\"10.0.0.0/8\"]", false),
        ("listen = \"unix:x.sock\"\ntrusted_proxies = \"unix\"\n", "deny = \"10.0.0.1\"", false),
        ("listen = \"unix:x.sock\"\nproxy_protocol = true\n", "deny = \"10.0.0.1\"", false),
        ("listen = \"ajp://unix:x.sock\"\n", "deny = \"10.0.0.1\"", false),
    ] {
        let said = warnings("unix.toml", &format!("{site}{route}{rule}\n"));
        assert_eq!(said.contains(refuses), is_warned, "{site}{rule}: {said}");
    }
    let old = format!("{unix}trusted_proxies = \"127.0.0.0/8\"\n{route}");
    assert!(warnings("unix.toml", &old).contains("write \"unix\" for them"));
}

#[test]
fn stored_replies_that_know_the_user_are_warned_about() {
    let route = "listen = 8080\n[[site.route]]\nproxy = 'http://127.0.0.1:3000'\n";
    let user = "request_headers = { X-User = '{user}' }\n";
    for (keys, is_warned) in
        [("cache = true\n", true), ("cache = { key = '{uri}{user}' }\n", false), ("", false)]
    {
        let said = warnings("cache.toml", &format!("{route}{user}{keys}"));
        let warning = "`X-User` names the user to the application";
        assert_eq!(said.contains(warning), is_warned, "{keys}: {said}");
    }
}

#[test]
fn a_refusal_of_one_family_of_addresses_is_warned_about() {
    for (rule, is_warned) in [
        ("deny = [\"0.0.0.0/0\"]", true),
        ("deny = [\"::/0\", \"10.0.0.1\"]", true),
        ("deny = [\"0.0.0.0/0\"]\nallow = [\"2001:db8::/32\"]", true),
        ("deny = [\"0.0.0.0/0\"]\nallow = [\"unix\"]", false),
        ("deny = [\"0.0.0.0/0\", \"::/0\"]", false),
        ("deny = [\"all\"]", false),
        ("deny = [\"10.0.0.0/8\"]", false),
    ] {
        let site = format!("listen = 8080\n[[site.route]]\nrespond = \"a\"\n{rule}\n");
        let said = warnings("family.toml", &site);
        assert_eq!(said.contains("write deny = [\"all\"]"), is_warned, "{rule}: {said}");
    }
}

#[test]
fn rules_that_admit_nobody_and_texts_with_placeholders_are_warnings() {
    let of_route = |keys: &str| {
        let site = format!("[[site]]\nlisten = 8080\n[[site.route]]\n{keys}\n");
        let output = check(&[&typed("warned.toml", &site)]);
        let error = but_root(output.stderr).replace("| ", "");
        assert_eq!(output.status.code(), Some(0), "{error}");
        error.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let nobody = "this refuses all clients, also those in `allow`";
    let unnamed = "no client of this route has a name";
    let sent = "this text is sent as it is, with the names in braces";
    for (keys, warning, is_warned) in [
        ("allow = \"10.0.0.0/8\"\ndeny = \"all\"\nrespond = \"x\"", nobody, true),
        ("allow = \"10.0.0.0/8\"\ndeny = \"10.1.0.0/16\"\nrespond = \"x\"", nobody, false),
        ("deny = \"all\"\nrespond = \"x\"", nobody, false),
        ("rate_limit = { rate = \"1/s\", key = \"{user}\" }\nrespond = \"x\"", unnamed, true),
        ("rate_limit = { rate = \"1/s\", key = \"{path}\" }\nrespond = \"x\"", unnamed, false),
        ("respond = \"hi {host}\"", sent, true),
        ("respond = '{\"a\": {\"b\": 1}} {other} {status}'", sent, false),
    ] {
        let said = of_route(keys);
        assert_eq!(said.contains(warning), is_warned, "{keys}: {said}");
    }
}
