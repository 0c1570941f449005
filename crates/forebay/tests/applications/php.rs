//! WordPress with permalinks, which are not files.

use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer::{self, Peer};

use crate::harness::{Mask, Requests, Row, compare, mariadb, row, run, text, user};
use crate::support::{Forebay, serve};

const WORDPRESS: [Row; 12] = [
    row("/", 200, "The wheel turns"),
    row("/2020/01/the-wheel-turns/", 200, "<title>The wheel turns"),
    row("/2020/01/the-wheel-turns", 301, ""),
    row("/gates/", 200, "The gates are open"),
    row("/category/uncategorized/", 200, "The wheel turns"),
    row("/2020/01/", 200, "The wheel turns"),
    row("/feed/", 200, "<rss"),
    row("/?s=wheel", 200, "The wheel turns"),
    row("/no/such/page/", 404, "Nothing here"),
    row("/wp-login.php", 200, "user_login"),
    row("/wp-admin/", 302, ""),
    row("/wp-includes/css/buttons.css", 200, "button"),
];

/// Parts that WordPress generates for each request.
const MASKS: [Mask; 4] =
    [("_wpnonce=", "\""), ("nonce\" value=\"", "\""), ("<lastBuildDate>", "<"), ("ver=", "'")];

/// Installs WordPress as the form of `wp-admin/install.php` does, with a post and a page.
const INSTALL: &str = r#"<?php
define('WP_INSTALLING', true);
$_SERVER['HTTP_HOST'] = 'localhost'; $_SERVER['REQUEST_URI'] = '/';
require $argv[1] . '/wp-load.php';
require ABSPATH . 'wp-admin/includes/upgrade.php';
function wp_mail() { return true; }
wp_install('The Mill', 'ann', 'ann@mill.example', true, '', 'pond');
update_option('siteurl', 'http://localhost'); update_option('home', 'http://localhost');
global $wp_rewrite; $wp_rewrite->set_permalink_structure('/%year%/%monthnum%/%postname%/');
$post = ['post_status' => 'publish', 'post_author' => 1, 'post_date' => '2020-01-02 03:04:05'];
wp_insert_post($post + ['post_title' => 'The wheel turns', 'post_content' => 'Again.']);
wp_insert_post($post + ['post_title' => 'Gates', 'post_type' => 'page',
    'post_content' => 'The gates are open.']);
switch_theme('plain'); $wp_rewrite->flush_rules(true);
"#;

const THEME: &str = "<!DOCTYPE html><title><?php the_title(); ?></title><?php wp_head(); ?>\n\
    <?php if (!have_posts()) echo 'Nothing here';\n\
    while (have_posts()) { the_post(); ?><h2><a href=\"<?php the_permalink(); ?>\"><?php the_title(); ?>\
    </a></h2><?php the_content(); } wp_footer();\n";

#[test]
fn wordpress_with_permalinks_answers_as_under_nginx() {
    let packages = ["wordpress", "php-mysql", "mariadb-server-core", "php-cli"];
    if !(peer::has(&packages) && peer::has_php_fpm()) {
        return;
    }
    let folder = Folder::new();
    let database = mariadb(&folder, "wordpress");
    let root = install(&folder);
    let (Some(php), forebay) = (peer::php_fpm(4), forebay(&root)) else { return };
    let Some(model) = nginx(&root, &php) else { return };
    let requests = Requests { rows: &WORDPRESS, masks: &MASKS, ..Requests::default() };
    compare("php", &requests, model.address(), forebay);
    database.stop();
}

/// Installs a copy of WordPress.
fn install(folder: &Folder) -> String {
    let root = folder.path().join("wordpress");
    run(Command::new("cp").args(["-rL", "/usr/share/wordpress"]).arg(&root));
    let socket = folder.path().join("database.sock");
    folder.write(
        "wordpress/wp-config.php",
        format!(
            "<?php define('DB_NAME', 'wordpress'); define('DB_USER', 'root');\n\
             define('DB_PASSWORD', ''); define('DB_HOST', 'localhost:{}');\n\
             define('DB_CHARSET', 'utf8mb4'); define('DISABLE_WP_CRON', true);\n\
             define('AUTOMATIC_UPDATER_DISABLED', true); define('WP_HTTP_BLOCK_EXTERNAL', true);\n\
             foreach (['AUTH', 'SECURE_AUTH', 'LOGGED_IN', 'NONCE'] as $n) {{\n\
             define($n . '_KEY', 'key'); define($n . '_SALT', 'salt'); }}\n\
             $table_prefix = 'wp_'; if (!defined('ABSPATH')) define('ABSPATH', __DIR__ . '/');\n\
             require_once ABSPATH . 'wp-settings.php';\n",
            text(&socket)
        ),
    );
    folder.write("wordpress/wp-content/themes/plain/style.css", "/*\nTheme Name: Plain\n*/\n");
    folder.write("wordpress/wp-content/themes/plain/index.php", THEME);
    let script = folder.write("install.php", INSTALL);
    run(Command::new("php").arg(script).arg(&root));
    text(&root).to_owned()
}

fn forebay(root: &str) -> Forebay {
    serve(
        Folder::new(),
        &format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n\
             [[site.route]]\nsuffix = [\".php\"]\napp = \"blog\"\n\
             [[site.route]]\npath = \"/*\"\nfallback_to = \"/index.php\"\n\
             files = {{ root = \"{root}\", index = [\"index.php\"] }}\n\
             [app.blog]\nkind = \"php\"\nroot = \"{root}\"\nworkers = 4\n{}",
            user()
        ),
    )
}

fn nginx(root: &str, php: &Peer) -> Option<Peer> {
    peer::nginx(&format!(
        "include /etc/nginx/mime.types;
         server {{
             listen 127.0.0.1:{{port}};
             root {root};
             index index.php;
             location / {{ try_files $uri $uri/ /index.php$is_args$args; }}
             location ~ \\.php$ {{
                 include /etc/nginx/fastcgi_params;
                 fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
                 fastcgi_pass unix:{};
             }}
         }}",
        php.socket().display()
    ))
}
