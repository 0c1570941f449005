//! The application that was found in a directory.

/// Kind of an application, with the values that its configuration needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundApp {
    /// A PSGI application in this file.
    Psgi {
        file: String,
    },
    Wsgi {
        module: String,
        interpreter: Option<String>,
        is_django: bool,
    },
    Asgi {
        module: String,
        interpreter: Option<String>,
    },
    Rack {
        is_rails: bool,
    },
    /// PHP below `root`. If `entry` is true, `index.php` answers all paths without a file.
    Php {
        root: &'static str,
        entry: bool,
        is_wordpress: bool,
    },
    Mono,
    /// A program in Go: its package, relative to the directory.
    Go {
        package: String,
        reads_port: bool,
    },
    Node {
        start: String,
        is_installed: bool,
    },
    /// A web application for a servlet container.
    Servlet {
        tomcat: Option<&'static str>,
    },
    /// A directory of CGI scripts.
    CgiBin {
        scripts: Vec<String>,
    },
    /// CGI scripts with the suffix `.cgi` among other files.
    CgiFiles,
    /// Files only. If `entry` is true, the index answers all other paths (single-page application).
    Files {
        root: &'static str,
        listing: bool,
        entry: bool,
    },
}

/// An application that was found. `mark` and `why` explain its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detected {
    pub app: FoundApp,
    /// File or directory that identifies the application.
    pub mark: String,
    pub why: String,
}

/// Name of the file that `forebay init site` writes.
pub const SITE_FILE: &str = "site.toml";
