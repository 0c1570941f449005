//! Finds Python applications: Django, ASGI and WSGI.

use super::look::{Detected, FoundApp, Look};

/// Frameworks whose applications speak ASGI, as their constructors.
const ASGI: [&str; 5] = ["FastAPI(", "Starlette(", "Quart(", "Litestar(", "Sanic("];
/// Frameworks whose applications speak WSGI.
const WSGI: [&str; 3] = ["Flask(", "Bottle(", "falcon.App("];
/// Files that may hold the application of a framework, most likely first.
const FILES: [&str; 8] = [
    "main.py",
    "app.py",
    "application.py",
    "server.py",
    "app/main.py",
    "app/__init__.py",
    "src/main.py",
    "src/app.py",
];

/// Returns the path of the virtual environment's interpreter, relative to the application's
/// directory. Returns `None` if there is no virtual environment.
pub fn interpreter(look: &Look<'_>) -> Option<&'static str> {
    look.first_file(&[".venv/bin/python", "venv/bin/python", "env/bin/python"])
}

/// Returns the application of a Django project, which `manage.py` identifies. Returns `None` if the
/// directory has no such project.
pub fn django(look: &Look<'_>) -> Option<Detected> {
    let manage = look.text("manage.py");
    let (_, rest) = manage.split_once("DJANGO_SETTINGS_MODULE")?;
    let settings = rest.split(['"', '\'']).find(|text| is_dotted(text))?;
    let found = |package: &str, module: &str, app| Detected {
        app,
        mark: "manage.py".into(),
        why: format!("its settings are {settings}, so the application is {package}.{module}"),
    };
    let (packages, interpreter) = (packages_of(settings), interpreter(look).map(str::to_owned));
    for package in &packages {
        let file = |module: &str| format!("{}/{module}.py", package.replace('.', "/"));
        // If a project has both files, take WSGI, which is usual. Only a project with Django
        // Channels needs ASGI.
        let asgi = look.text(&file("asgi"));
        if asgi.contains("channels") || !asgi.is_empty() && !look.is_file(&file("wsgi")) {
            let module = format!("{package}.asgi:{}", callable(&asgi));
            return Some(found(package, "asgi", FoundApp::Asgi { module, interpreter }));
        }
        let wsgi = look.text(&file("wsgi"));
        if !wsgi.is_empty() {
            let module = format!("{package}.wsgi:{}", callable(&wsgi));
            return Some(found(
                package,
                "wsgi",
                FoundApp::Wsgi { module, interpreter, is_django: true },
            ));
        }
    }
    None
}

/// Returns the packages that contain the settings module, the innermost first. For
/// `a.settings.local`, these are `a.settings` and `a`.
fn packages_of(settings: &str) -> Vec<&str> {
    let ends = settings.match_indices('.').map(|(at, _)| at);
    let mut packages: Vec<&str> = ends.map(|end| &settings[..end]).collect();
    packages.reverse();
    packages
}

/// Returns the applications in `asgi.py` and `wsgi.py`. Also returns those in other usual files,
/// such as `app = Flask(...)` in `app.py`.
pub fn modules(look: &Look<'_>) -> Vec<Detected> {
    let mut found = Vec::new();
    for (file, is_asgi) in [("asgi.py", true), ("wsgi.py", false)] {
        if look.is_file(file) {
            let callable = callable(&look.text(file));
            let why = format!("the application is `{callable}` in this file");
            found.push(of(look, file, &callable, is_asgi, why));
        }
    }
    for file in FILES {
        let text = look.text(file);
        let uses =
            |names: &[&'static str]| names.iter().find(|name| text.contains(**name)).copied();
        let (asgi, wsgi) = (uses(&ASGI), uses(&WSGI));
        let Some(framework) = asgi.or(wsgi) else { continue };
        let name = framework.trim_end_matches('(');
        if let Some(callable) = made_by(&text, framework) {
            let why = format!("`{callable}` is an application of {name}");
            found.push(of(look, file, &callable, asgi.is_some(), why));
        }
    }
    found
}

fn of(look: &Look<'_>, file: &str, callable: &str, is_asgi: bool, why: String) -> Detected {
    let path = file.strip_suffix(".py").unwrap_or(file);
    let path = path.strip_suffix("/__init__").unwrap_or(path);
    // A directory without `__init__.py` is a namespace package, so names such as `src.app` work.
    let module = format!("{}:{callable}", path.replace('/', "."));
    let interpreter = interpreter(look).map(str::to_owned);
    let app = if is_asgi {
        FoundApp::Asgi { module, interpreter }
    } else {
        FoundApp::Wsgi { module, interpreter, is_django: false }
    };
    Detected { app, mark: file.to_owned(), why }
}

/// Returns the variable that holds the framework's object, such as `app` in `app = Flask(...)`.
/// Without such a variable, returns a call such as `create_app()` if the text defines this
/// function. Otherwise returns `None`.
fn made_by(text: &str, framework: &str) -> Option<String> {
    let assigned = text.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        let name = name.split(':').next().unwrap_or(name).trim_end();
        (is_dotted(name) && !name.contains('.') && value.contains(framework)).then_some(name)
    });
    let factory = || {
        ["create_app", "make_app", "get_app"]
            .into_iter()
            .find(|name| text.lines().any(|line| line.starts_with(&format!("def {name}("))))
    };
    assigned.map(str::to_owned).or_else(|| factory().map(|name| format!("{name}()")))
}

/// Returns the name of the application in the text of `wsgi.py` or `asgi.py`. Looks for
/// `application`, then for `app`, then for a variable with a framework's object. If the text has
/// none of these, returns `application`.
fn callable(text: &str) -> String {
    let names = |line: &str, name: &str| {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let start = line.split('=').next().unwrap_or_default();
        let defines = line.starts_with(&format!("def {name}("));
        let imports = line.contains("import ")
            && line.rsplit(|c| !is_word(c)).find(|word| !word.is_empty()) == Some(name);
        defines || imports || (line.contains('=') && start.trim_end() == name)
    };
    let is_there = |name: &&str| text.lines().any(|line| names(line, name));
    let usual = ["application", "app"].into_iter().find(is_there);
    let usual = usual.map(str::to_owned);
    let made = || ASGI.iter().chain(&WSGI).find_map(|framework| made_by(text, framework));
    usual.or_else(made).unwrap_or_else(|| "application".into())
}

/// Returns true if the text is the name of a module of Python.
fn is_dotted(text: &str) -> bool {
    let is_name = |part: &str| {
        let starts = |c: char| c.is_ascii_alphabetic() || c == '_';
        part.starts_with(starts) && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    text.split('.').all(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_application_is_found_by_its_name() {
        for (text, name) in [
            ("application = get_wsgi_application()\n", "application"),
            ("from shop import app as application\n", "application"),
            ("from shop import app\napp.run()\n", "app"),
            ("def application(environ, start_response):\n    return []\n", "application"),
            ("app: Flask = Flask(__name__)\n", "app"),
            ("shop = Flask(__name__)\n", "shop"),
            ("import shop\n", "application"),
            ("", "application"),
        ] {
            assert_eq!(callable(text), name, "{text}");
        }
        assert_eq!(
            made_by("def create_app():\n    a = x\n", "Flask("),
            Some("create_app()".into())
        );
        assert_eq!(
            made_by("def create_app():\n    app = Flask(n)\n", "Flask("),
            Some("create_app()".into())
        );
        assert_eq!(made_by("x[\"\"] = Flask()\n", "Flask("), None);
    }

    #[test]
    fn only_names_of_modules_are_taken_from_settings() {
        assert!(is_dotted("a.b_1") && is_dotted("_x"));
        for text in ["", "a..b", "a\"b", "1a", "a b", "a\nb", "../x"] {
            assert!(!is_dotted(text), "{text}");
        }
        assert_eq!(packages_of("a.b.settings"), ["a.b", "a"]);
    }
}
